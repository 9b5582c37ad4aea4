"""The processes of a run: how arrays and rows pass between them.

Every process has the same state and takes the same optimiser steps; what its shards gave is handed to all others. One
device of each process, its lead, takes part in that, in one order, from the main thread.
"""

import json
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cleanba.layout import Layout

_AXIS = "processes"


class Processes:
    """All processes of `layout`; with one, nothing is passed. `lead` is the device that this one takes part with."""

    def __init__(self, layout: Layout):
        if jax.process_count() != layout.num_processes:
            raise ValueError(f"layout {layout}: there are {jax.process_count()} processes, not {layout.num_processes}")
        here = jax.local_device_count()
        if here < layout.devices_per_process:
            raise ValueError(
                f"layout {layout}: it needs {layout.devices_per_process} devices a process, here are {here}"
            )
        by_process = [[d for d in jax.devices() if d.process_index == p] for p in range(layout.num_processes)]
        leads = [devices[layout.learner_device_ids[0]] for devices in by_process]
        mesh = Mesh(np.asarray(leads), (_AXIS,))
        self.count = layout.num_processes
        self.index = jax.process_index()
        self.lead = leads[self.index]
        self._split = NamedSharding(mesh, P(_AXIS))
        self._gather = jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, P()))

    def gather(self, tree: Any) -> Any:
        """A tree of [n, ...] on the lead of each process -> [processes * n, ...] on every lead, process by process."""
        if self.count == 1:
            return tree
        everywhere = self._gather(jax.tree.map(self._part, tree))
        return jax.tree.map(lambda x: x.addressable_shards[0].data, everywhere)

    def gather_rows(self, rows: Any) -> list[Any]:
        """What can be JSON, of every process, in their order."""
        if self.count == 1:
            return [rows]
        text = np.frombuffer(json.dumps(rows).encode(), np.uint8)
        sizes = np.asarray(self.gather(self._on_lead(np.array([len(text)], np.int32))))
        padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)  # few sizes: each is a program of its own
        padded[: len(text)] = text
        everyone = np.asarray(self.gather(self._on_lead(padded[None])))
        return [json.loads(own[:size].tobytes()) for own, size in zip(everyone, sizes)]

    def _part(self, own: jax.Array) -> jax.Array:
        shape = (self.count * own.shape[0], *own.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._split, [own])

    @property
    def _on_lead(self):
        return partial(jax.device_put, device=self.lead)
