"""Which random streams a run uses, and the check that none of them is used twice (contract D6).

Checked when a run starts, also against the two seeds that follow its own: replicates usually have neighbouring seeds.
"""

from collections.abc import Iterable, Iterator
from itertools import product

import jax
import numpy as np

from cleanba import streams
from cleanba.config import Config
from cleanba.streams import Role

_REPLICATES = 3
_NUM_SEEDS = 1024  # of a Config

Stream = tuple[str, tuple[int, ...]]  # name, what its generator starts from


def check(config: Config) -> None:
    """Raise RuntimeError where two streams of the run, or of it and its replicates, start from the same number.

    `seeding: original` declares that they do, and is what ours is compared with."""
    if config.seeding == "original":
        return
    seeds = [(config.seed + i) % _NUM_SEEDS for i in range(_REPLICATES)]
    if found := overlap(stream for seed in seeds for stream in streams_of(config, seed)):
        raise RuntimeError(f"{found[0]} and {found[1]} have the same random stream; allowed: one stream for each")


def overlap(all_streams: Iterable[Stream]) -> tuple[str, str] | None:
    """The names of the first two streams that are the same, or None."""
    taken: dict[tuple[int, ...], str] = {}
    for name, start in all_streams:
        if start in taken:
            return taken[start], name
        taken[start] = name
    return None


def streams_of(config: Config, seed: int) -> Iterator[Stream]:
    """Every env and PRNG stream of a run with `seed`, under `sync` and `cleanba`; delays have a generator of their own.

    A key is listed where an address ends; what is folded into it further (env step, shard, epoch) has no other user.
    """
    for segment in range(config.segment_of(config.num_updates) + 1):
        where = f" in segment {segment}" if segment else ""
        for env, env_seed in enumerate(streams.env_seeds(seed, range(config.num_envs), segment=segment)):
            yield f"env {env} of seed {seed}{where}", (env_seed,)
    updates = range(1, config.num_updates + 1)
    addresses: dict[Role, list[tuple[int, ...]]] = {
        Role.PARAMETERS: [()],
        Role.ACTIONS: list(product(range(config.num_actor_groups), updates)),
        Role.MINIBATCHES: [(update,) for update in updates],
        Role.EVALUATION: [()],
    }
    for role, places in addresses.items():
        for place, words in zip(places, _words(seed, role, np.array(places, np.int32)), strict=True):
            yield f"{role.name.lower()} {place} of seed {seed}", tuple(words)


def _words(seed: int, role: Role, addresses: np.ndarray) -> list[list[int]]:
    """Addresses [n, parts] -> the words of the key at each, [n, 2]."""
    keys = jax.vmap(lambda address: streams.key(seed, role, *address))(addresses)
    return np.asarray(jax.random.key_data(keys)).tolist()
