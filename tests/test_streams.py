"""Contract D6: no stream is used twice."""

import jax
import numpy as np
import pytest
import trainers
from trainers import CARTPOLE, SMALL

from cleanba import seed_audit, streams
from cleanba.streams import Role


def test_env_seeds_never_meet():
    """The original's 64 envs x 2 threads have 65 distinct of 128, seeds 1 to 3 together 67 of 384 (FINDINGS C4)."""
    seeds = [s for seed in (1, 2, 3) for s in streams.env_seeds(seed, range(128))]
    assert len(set(seeds)) == 384
    original = {seed + thread + env for seed in (1, 2, 3) for thread in range(2) for env in range(64)}
    assert len(original) == 67  # the control: this count can find an overlap


def test_seeding_original_shares_the_streams_that_the_original_shares():
    """64 envs x 2 threads: 65 distinct env seeds of 128, 67 of 384 with seeds 1 to 3, one key for both threads."""
    runs = [trainers.config("impala", env_id="Pong-v5", seed=seed, seeding="original") for seed in (1, 2, 3)]
    seeds = [[s for group in (0, 1) for s in streams.group_env_seeds(run, group, 0)] for run in runs]
    assert (len(seeds[0]), len(set(seeds[0])), len({s for own in seeds for s in own})) == (128, 65, 67)
    keys = [jax.random.key_data(streams.action_key(runs[0], group, 5)).tolist() for group in (0, 1)]
    assert keys[0] == keys[1]
    seed_audit.check(runs[0])  # what is declared is not an error
    ours = trainers.config("impala", env_id="Pong-v5", seed=1)
    assert len({s for group in (0, 1) for s in streams.group_env_seeds(ours, group, 0)}) == 128
    keys = [jax.random.key_data(streams.action_key(ours, group, 5)).tolist() for group in (0, 1)]
    assert keys[0] != keys[1]


def test_every_segment_of_a_group_has_seeds_of_its_own():
    config = trainers.config("impala", **SETTINGS | {"segment_updates": 2})
    seeds = [s for segment in range(3) for group in range(4) for s in streams.group_env_seeds(config, group, segment)]
    assert len(set(seeds)) == len(seeds) == 24
    listed = dict(seed_audit.streams_of(config, seed=1))
    assert listed["env 7 of seed 1 in segment 2"] == (seeds[-1],)


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


SETTINGS = CARTPOLE | SMALL | {"total_env_steps": 8 * 20 * 5, "rollout_length": 20}  # 8 envs, 4 groups, 5 updates


def test_the_audit_lists_every_stream_of_a_run():
    listed = dict(seed_audit.streams_of(trainers.config("ppo", **SETTINGS), seed=7))
    assert len(listed) == 8 + 1 + 4 * 5 + 5 + 1
    assert [listed[f"env {env} of seed 7"] for env in range(8)] == [(s,) for s in streams.env_seeds(7, range(8))]
    for name, key in {
        "parameters ()": streams.key(7, Role.PARAMETERS),
        "actions (3, 5)": streams.key(7, Role.ACTIONS, 3, 5),
        "minibatches (2,)": streams.key(7, Role.MINIBATCHES, 2),
        "evaluation ()": streams.key(7, Role.EVALUATION),
    }.items():
        assert listed[f"{name} of seed 7"] == tuple(np.asarray(jax.random.key_data(key)).tolist())


@pytest.mark.parametrize("seed", [0, 1, 1023])
def test_the_audit_passes_for_a_run_and_its_replicates(seed):
    seed_audit.check(trainers.config("impala", **SETTINGS | {"seed": seed}))


def test_the_audit_control_the_originals_env_seeds_fail_it(monkeypatch):
    """EnvPool gives env i of a thread seed + i, and a thread's seed is seed + thread (FINDINGS C4)."""
    monkeypatch.setattr(streams, "env_seeds", lambda seed, envs, **_: [seed + env // 4 + env % 4 for env in envs])
    with pytest.raises(RuntimeError, match="env 1 of seed 1 and env 4 of seed 1 have the same random stream"):
        seed_audit.check(trainers.config("impala", **SETTINGS))


def test_the_audit_control_replicates_whose_env_seeds_meet_fail_it(monkeypatch):
    """Distinct within a run is not enough: EnvPool's own `seed + i` makes env 1 of seed 1 env 0 of seed 2."""
    monkeypatch.setattr(streams, "env_seeds", lambda seed, envs, **_: [seed + env for env in envs])
    with pytest.raises(RuntimeError, match="env 1 of seed 1 and env 0 of seed 2 have the same random stream"):
        seed_audit.check(trainers.config("impala", **SETTINGS))


def test_the_audit_control_the_originals_keys_fail_it(monkeypatch):
    """Every actor thread of every process has the same key (FINDINGS C3)."""
    real = streams.key
    monkeypatch.setattr(
        streams, "key", lambda seed, role, *at: real(seed, role, *at[1:] if role == Role.ACTIONS else at)
    )
    with pytest.raises(RuntimeError, match=r"actions \(0, 1\) of seed 1 and actions \(1, 1\) of seed 1 have the same"):
        seed_audit.check(trainers.config("impala", **SETTINGS))
