"""Contract D6: no stream is used twice."""

import jax
import numpy as np
import pytest

from cleanba import streams
from cleanba.streams import Role


def test_env_seeds_never_meet():
    """The original's 64 envs x 2 threads have 65 distinct of 128, seeds 1 to 3 together 67 of 384 (FINDINGS C4)."""
    seeds = [s for seed in (1, 2, 3) for s in streams.env_seeds(seed, range(128))]
    assert len(set(seeds)) == 384
    original = {seed + thread + env for seed in (1, 2, 3) for thread in range(2) for env in range(64)}
    assert len(original) == 67  # the control: this count can find an overlap


def test_env_seeds_never_meet_over_all_roles():
    addresses = [
        streams.env_seeds(seed, range(2048), segment=segment, evaluation=evaluation)
        for seed in (0, 1, 1023)
        for segment in (0, 511)
        for evaluation in (False, True)
    ]
    flat = np.array(addresses).ravel()
    assert len(np.unique(flat)) == len(flat)
    assert flat.min() >= 0
    assert flat.max() < 2**31


def test_env_seeds_do_not_depend_on_the_grouping():
    assert streams.env_seeds(1, range(8)) == streams.env_seeds(1, range(4)) + streams.env_seeds(1, range(4, 8))


@pytest.mark.parametrize(
    ("arguments", "message"), [((1024, range(2)), "seed is 1024"), ((1, range(2049)), "env is 2048")]
)
def test_addresses_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        streams.env_seeds(*arguments)


def test_keys_are_distinct_by_role_group_and_update():
    """The original gives every actor thread of every process the same key (FINDINGS C3)."""
    keys = [
        streams.key(seed, role, group, update)
        for seed in (1, 2)
        for role in Role
        for group in range(4)
        for update in range(4)
    ]
    words = {tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}
    assert len(words) == len(keys)
