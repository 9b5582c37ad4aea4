"""Learner shards on learner devices, such that the layout cannot change a bit of the result (contract D2).

A shard's program has a fixed shape, and every device runs it once for each of its shards. What concerns all shards is
computed on one device of each process, its lead, from the shards' results in shard order. Between the two are only
copies: no program that computes communicates, so that none has a text, an order of addition or a rounding that depends
on the number of devices or processes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cleanba.layout import Layout
from cleanba.processes import Processes

_AXIS = "learners"


class Learners:
    """This process' learner devices, the first of which leads, and its part of the run's `num_shards` shards.

    Of this process' shards, the i-th sits on device i // k as its slot i % k, with k shards a device. A slot, one shard
    of every device, is one array [devices, ...] sharded over its first axis.
    """

    def __init__(self, layout: Layout, num_shards: int, processes: Processes):
        devices = [jax.local_devices()[i] for i in layout.learner_device_ids]
        here = num_shards // processes.count
        self.lead = processes.lead
        self._processes = processes
        self._mesh = Mesh(np.asarray(devices), (_AXIS,))
        self._num_slots = here // len(devices)
        self.shards = np.arange(processes.index * here, (processes.index + 1) * here, dtype=np.int32)

    def put(self, arrays: Any) -> list[Any]:
        """A tree of host arrays [shards of this process, ...] -> the slots. Device memory may be the host's own on CPU:
        see `rollout`."""
        return [jax.tree.map(partial(self._put_slot, slot), arrays) for slot in range(self._num_slots)]

    def replicate(self, tree: Any) -> Any:
        """Copy what the lead holds to all learner devices."""
        return tree if self._mesh.size == 1 else jax.device_put(tree, NamedSharding(self._mesh, P()))

    def shard_program(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Compile `function(same, own)` for one shard; call the result with a replicated tree and one slot."""

        def one_shard(same, own):
            out = function(same, jax.tree.map(lambda x: x[0], own))
            return jax.tree.map(lambda x: x[None], out)

        specs = {"in_specs": (P(), P(_AXIS)), "out_specs": P(_AXIS)}
        return jax.jit(jax.shard_map(one_shard, mesh=self._mesh, check_vma=False, **specs))

    def sum(self, slots: Sequence[Any]) -> Any:
        """The sum over all shards of the run, added in shard order, on the lead."""
        shards = self._on_lead(slots)
        if self._processes.count > 1:
            everyone = self._processes.gather(_concatenate(shards))
            number = len(shards) * self._processes.count
            shards = [jax.tree.map(lambda x, i=i: x[i : i + 1], everyone) for i in range(number)]
        return _sum(shards)

    def gather(self, slots: Sequence[Any]) -> Any:
        """The values of all shards of the run, [shards, ...], on the lead."""
        return self._processes.gather(_concatenate(self._on_lead(slots)))

    def _put_slot(self, slot: int, rows: np.ndarray) -> jax.Array:
        rows = rows[slot :: self._num_slots]
        pieces = [jax.device_put(row[None], device) for row, device in zip(rows, self._mesh.devices, strict=True)]
        return jax.make_array_from_single_device_arrays(rows.shape, NamedSharding(self._mesh, P(_AXIS)), pieces)

    def _on_lead(self, slots: Sequence[Any]) -> list[Any]:
        """Every tree of [1, ...] of this process' shards on the lead, in shard order."""
        by_slot = [_pieces_by_device(slot) for slot in slots]
        return jax.device_put([pieces[device] for device in range(self._mesh.size) for pieces in by_slot], self.lead)


def _pieces_by_device(slot: Any) -> list[Any]:
    """A tree of arrays [devices, ...] -> for each device, the tree of its own [1, ...]."""
    leaves, structure = jax.tree.flatten(slot)
    pieces = [sorted(x.addressable_shards, key=lambda piece: piece.index[0].start or 0) for x in leaves]
    return [structure.unflatten([piece.data for piece in own]) for own in zip(*pieces, strict=True)]


@jax.jit
def _sum(shards: list[Any]) -> Any:
    total = shards[0]
    for shard in shards[1:]:
        total = jax.tree.map(jnp.add, total, shard)
    return jax.tree.map(lambda x: x[0], total)


@jax.jit
def _concatenate(shards: list[Any]) -> Any:
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *shards)
