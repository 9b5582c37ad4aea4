"""Addressed randomness: every stream is a function of (seed, role, index, update), and none is used twice."""

from enum import IntEnum

import jax

from cleanba.config import Config


class Role(IntEnum):
    """What a stream is for. The numbers are part of every result: never renumber."""

    PARAMETERS = 0
    ACTIONS = 1
    MINIBATCHES = 2
    EVALUATION = 3
    DELAYS = 4


_SEED_BITS, _SEGMENT_BITS, _ENV_BITS = 10, 9, 11  # with one bit for evaluation: the 31 of a non-negative int32
_ODD = 0x5DEECE66D & 0x7FFFFFFF | 1  # any odd factor permutes the integers modulo 2^31


def env_seeds(seed: int, envs: range, *, segment: int = 0, evaluation: bool = False) -> list[int]:
    """One EnvPool seed per env, in [0, 2^31).

    The address (evaluation, seed, segment, env) is packed into 31 bits and permuted, so that two different addresses
    can never meet, whatever seeds are run beside each other. `envs` counts over all groups of the run.
    """
    for name, value, bits in (
        ("seed", seed, _SEED_BITS),
        ("segment", segment, _SEGMENT_BITS),
        ("env", envs.stop - 1, _ENV_BITS),
    ):
        if not 0 <= value < 2**bits:
            raise ValueError(f"{name} is {value}; allowed: 0 to {2**bits - 1}")
    prefix = (int(evaluation) << _SEED_BITS | seed) << _SEGMENT_BITS | segment
    return [((prefix << _ENV_BITS | env) * _ODD) % 2**31 for env in envs]


def group_env_seeds(config: Config, group: int, segment: int) -> list[int]:
    """The EnvPool seeds of one actor group's envs. `seeding: original` gives env i of group g the seed + g + i, as the
    original gives it to env i of thread g (FINDINGS C4): most streams are used several times."""
    first = group * config.envs_per_group
    if config.seeding == "original":
        return [config.seed + group + env for env in range(config.envs_per_group)]
    return env_seeds(config.seed, range(first, first + config.envs_per_group), segment=segment)


def action_key(config: Config, group: int, rollout: int) -> jax.Array:
    """The key of one group's actions in one rollout; `seeding: original` has one for all groups (FINDINGS C3)."""
    return key(config.seed, Role.ACTIONS, 0 if config.seeding == "original" else group, rollout)


def key(seed: int, role: Role, *address: int) -> jax.Array:
    """The PRNG key at an address, such as (group, update)."""
    out = jax.random.key(seed, impl="threefry2x32")  # by name: the default can be set from outside
    for part in (int(role), *address):
        out = jax.random.fold_in(out, part)
    return out
