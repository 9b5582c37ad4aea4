"""Digests of arrays, whatever devices they sit on, that tell the first update and stage at which two runs differ."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cleanba import streams
from cleanba.config import Config
from cleanba.learners import Learners

_CHAIN = 0x9E3779B1  # odd (2^32 / golden ratio): appending to a chain of digests loses nothing
WHOLE = -1  # the `shard` of what is the same on all devices


def digest(tree) -> jax.Array:
    """Two 32-bit lanes, [2] uint32, of every leaf of `tree` in order. Traceable; bits in, bits out.

    Each leaf is read as 32-bit words w_i. Lane 1 is sum(w_i (2 i + 1)), lane 2 sum(w_i (mix(i) | 1)), modulo 2^32.
    The weights are odd, so that a change of any one word changes both lanes, and integer sums have no rounding, so that
    the order of summation cannot matter.
    """
    total = jnp.zeros(2, jnp.uint32)
    for leaf in jax.tree.leaves(tree):
        words = _words(leaf)
        position = jax.lax.iota(jnp.uint32, words.shape[0])
        lanes = jnp.stack([jnp.sum(words * (2 * position + 1)), jnp.sum(words * (_mix(position) | 1))])
        total = total * jnp.uint32(_CHAIN) + lanes
    return total


def step_digests(rows) -> jax.Array:
    """A digest of each env step of an array [n, T, ...], [T] uint32, any part of which tells steps apart. Traceable."""
    return _mix(jax.vmap(lambda row: digest(row)[1])(jnp.moveaxis(rows, 1, 0)))


def hexadecimal(lanes: np.ndarray) -> str:
    """16 hex digits of a digest [2]."""
    return "".join(f"{int(lane):08x}" for lane in np.asarray(lanes))


class Fingerprints:
    """The digests of a run's updates, stage by stage in causal order. Reads what it is given and changes nothing."""

    def __init__(self, config: Config, learners: Learners):
        self._config = config
        self._learners = learners
        self._of_shard = learners.shard_program(lambda _, own: digest(own))
        self._steps_of_shard = learners.shard_program(lambda _, own: step_digests(own))
        self._of_whole = jax.jit(digest)
        self._active = False
        self._stages: dict[tuple[str, bool], list[jax.Array]] = {}
        self._steps: dict[str, list[jax.Array]] = {}  # of the rollout's stages, [shards, T] each time

    def begin(self, update: int) -> None:
        """Start an update; it is fingerprinted if it is the first or its number is a multiple of the frequency."""
        every = self._config.fingerprint_every_updates
        self._active = every > 0 and (update == 1 or update % every == 0)
        self._stages, self._steps = {}, {}
        if self._active:
            groups = range(self._config.num_actor_groups)
            self.whole("prng", [streams.action_key(self._config, group, update) for group in groups])

    def rollout(self, slots: Sequence[Any]) -> None:
        """Add the fields of the shards' batches, each a stage of its own, whose env steps have digests too: fields
        follow from each other at every step, so that only the first step that differs tells which field is first."""
        for name in slots[0]._fields:
            stage, own = f"rollout/{name}", [getattr(slot, name) for slot in slots]
            self.shards(stage, own)
            if self._active:
                steps = self._learners.gather([self._steps_of_shard((), slot) for slot in own])
                self._steps.setdefault(stage, []).append(steps)

    def shards(self, stage: str, slots: Sequence[Any]) -> None:
        """Add the shards' own values to a stage; a stage met again in an update is chained."""
        if self._active:
            lanes = self._learners.gather([self._of_shard((), slot) for slot in slots])
            self._stages.setdefault((stage, False), []).append(lanes)

    def whole(self, stage: str, tree: Any) -> None:
        """Add a replicated tree to a stage."""
        if self._active:
            self._stages.setdefault((stage, True), []).append(self._of_whole(tree))

    def rows(self, update: int) -> list[dict[str, Any]]:
        """The recorder's rows of this update."""
        rows = []
        for (stage, whole), parts in self._stages.items():
            lanes = _chain_all([np.asarray(part).reshape(-1, 2) for part in parts])
            steps = _chain_all([np.asarray(part) for part in self._steps.get(stage, [])])
            for shard, chained in enumerate(lanes):
                rows.append(
                    {
                        "update": update,
                        "stage": stage,
                        "shard": WHOLE if whole else shard,
                        "digest": hexadecimal(chained),
                        "step_digests": "".join(f"{step >> 16:04x}" for step in steps[shard]) if len(steps) else "",
                    }
                )
        return rows


def _chain_all(parts: Sequence[np.ndarray]) -> np.ndarray:
    """uint32 arrays of one shape, chained; empty without any."""
    total = np.zeros(0, np.uint32)
    for i, part in enumerate(parts):
        total = total * np.uint32(_CHAIN) + part if i else part
    return total


def _words(leaf: jax.Array) -> jax.Array:
    """The bits of an array as a vector of uint32."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    if leaf.dtype == jnp.bool:
        leaf = leaf.astype(jnp.uint8)
    flat = leaf.reshape(-1)
    width = flat.dtype.itemsize
    if width == 4:
        return jax.lax.bitcast_convert_type(flat, jnp.uint32)
    if width > 4:
        raise TypeError(f"no digest for {flat.dtype}: trainers keep nothing wider than 32 bits")
    flat = jnp.pad(flat, (0, -flat.shape[0] % (4 // width)))
    return jax.lax.bitcast_convert_type(flat.reshape(-1, 4 // width), jnp.uint32)


def _mix(position: jax.Array) -> jax.Array:
    """Scatter consecutive positions over 32 bits (the finaliser of MurmurHash3, public domain)."""
    position = (position ^ (position >> 16)) * jnp.uint32(0x85EBCA6B)
    position = (position ^ (position >> 13)) * jnp.uint32(0xC2B2AE35)
    return position ^ (position >> 16)
