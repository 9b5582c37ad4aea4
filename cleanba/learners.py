"""Learner shards on learner devices, such that the layout cannot change a bit of the result (contract D2).

All arithmetic is in programs that do not communicate: the program of one shard, which every device runs once for each
of its shards, and programs whose inputs are the same on all devices. Their text depends on the shard's fixed shape
alone. The one program that communicates only copies and adds, shard 0 first, whatever device a shard sits on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_AXIS = "learners"


class Learners:
    """The learner devices of all processes, and the `num_shards` shards on them.

    Shard s is slot s % k of device s // k, with k = num_shards / number of devices: contiguous per device and process.
    A "slot" is one shard of every device, as one array [devices, ...] sharded over its first axis.
    """

    def __init__(self, devices: Sequence[jax.Device], num_shards: int):
        self.mesh = Mesh(np.asarray(devices), (_AXIS,))
        self.num_slots = num_shards // len(devices)
        self._local_devices = [d for d in devices if d.process_index == jax.process_index()]
        self._sum = jax.jit(self._map(_sum_in_shard_order, P(_AXIS), P()))
        self._gather = jax.jit(self._map(_in_shard_order, P(_AXIS), P()))

    @property
    def num_local_shards(self) -> int:
        """How many shards this process feeds."""
        return self.num_slots * len(self._local_devices)

    @property
    def local_shards(self) -> np.ndarray:
        """The numbers of the shards that this process feeds."""
        first = jax.process_index() * self.num_local_shards
        return np.arange(first, first + self.num_local_shards, dtype=np.int32)

    def put(self, arrays: Any) -> list[Any]:
        """A tree of host arrays [num_local_shards, ...] -> the slots. Host memory is shared, not copied, on CPU."""
        return [jax.tree.map(lambda x: self._put_slot(x[slot :: self.num_slots]), arrays) for slot in range(self.num_slots)]

    def replicate(self, tree: Any) -> Any:
        """The same values on all learner devices."""
        return jax.device_put(tree, NamedSharding(self.mesh, P()))

    def local(self, replicated: Any) -> Any:
        """The copy of a replicated tree on this process' first learner device."""
        return jax.tree.map(lambda x: x.addressable_data(0), replicated)

    def shard_program(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Compile `function(same, own)` for one shard; call the result with a replicated tree and one slot."""

        def one_shard(same, own):
            out = function(same, jax.tree.map(lambda x: x[0], own))
            return jax.tree.map(lambda x: x[None], out)

        return jax.jit(self._map(one_shard, (P(), P(_AXIS)), P(_AXIS)))

    def replicated_program(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile `function` to run on every device on the same inputs."""
        return jax.jit(self._map(function, P(), P()))

    def sum(self, slots: Sequence[Any]) -> Any:
        """The sum over shards, added in shard order, on all devices."""
        return self._sum(tuple(slots))

    def gather(self, slots: Sequence[Any]) -> Any:
        """All shards' values, [num_shards, ...] in shard order, on all devices."""
        return self._gather(tuple(slots))

    def _put_slot(self, rows: np.ndarray) -> jax.Array:
        """`rows` [local devices, ...], one row to each local device."""
        pieces = [jax.device_put(row[None], device) for row, device in zip(rows, self._local_devices, strict=True)]
        shape = (self.mesh.size, *rows.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(self.mesh, P(_AXIS)), pieces)

    def _map(self, function, in_specs, out_specs):
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _in_shard_order(slots: Sequence[Any]) -> Any:
    """Inside the mesh: the slots' local parts [1, ...] -> every shard's, [num_shards, ...]."""

    def gather(*parts):
        return jax.lax.all_gather(jax.numpy.concatenate(parts), _AXIS, tiled=True)

    return jax.tree.map(gather, *slots)


def _sum_in_shard_order(slots: Sequence[Any]) -> Any:
    def add(shards):
        total = shards[0]
        for shard in shards[1:]:
            total = total + shard
        return total

    return jax.tree.map(add, _in_shard_order(slots))
