"""EnvPool under the protocol: masks, time limits, raw and clipped rewards, seeds."""

import numpy as np
import pytest

from cleanba import envs, streams
from cleanba.rollout import Batch, EpisodeTracker


def rollout(env_seeds, num_steps=40, env_id="Breakout-v5", protocol="machado2018", num_threads=1):
    made = envs.Envs(env_id, protocol, env_seeds, num_threads)
    observations = [made.reset()]
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(num_steps):
        actions = np.full(len(env_seeds), rng.integers(made.spec.num_actions), np.int32)
        steps.append(made.step(actions))
        observations.append(steps[-1].observations)
    made.close()
    return np.stack(observations, axis=1), steps


def test_the_protocol_is_machados():
    protocol = envs.PROTOCOLS["machado2018"]
    assert protocol["repeat_action_probability"] == 0.25
    assert protocol["max_episode_steps"] == 27_000
    assert envs.spec("Breakout-v5", "machado2018").num_actions == 18  # Breakout's own set has 4


def test_frames_depend_on_the_envs_own_seed_alone():
    """Swap two seeds, change the thread count: the frames are swapped and else the same (FINDINGS T15)."""
    a, _ = rollout([11, 12, 13])
    b, _ = rollout([12, 11, 13], num_threads=3)
    np.testing.assert_array_equal(a[[1, 0, 2]], b)
    assert not np.array_equal(a[0], a[1])  # the control: different seeds, different frames


def test_a_time_limit_is_a_truncation_and_resets_the_return(monkeypatch):
    """Episodes of 10 steps give 10-step returns, not 20 (FINDINGS T1)."""
    monkeypatch.setitem(envs.PROTOCOLS["machado2018"], "max_episode_steps", 10)
    _, steps = rollout([1, 2], num_steps=22)
    truncated = np.stack([s.truncated for s in steps])
    assert np.flatnonzero(truncated[:, 0]).tolist() == [9, 20]  # step 10 is the reset
    assert not np.stack([s.terminated for s in steps]).any()
    valid = np.stack([s.valid for s in steps])
    assert np.flatnonzero(~valid[:, 0]).tolist() == [10, 21]
    tracker = EpisodeTracker(2)
    rows = [row for s in steps for row in tracker.step(s._replace(raw_rewards=s.valid * 1.0, rewards=s.valid * 0.5))]
    assert [(row["env"], row["episode_return"], row["clipped_return"], row["episode_length"]) for row in rows] == [
        (0, 10.0, 5.0, 10), (1, 10.0, 5.0, 10), (0, 10.0, 5.0, 10), (1, 10.0, 5.0, 10),
    ]  # fmt: skip
    assert all(row["truncated"] == 1 for row in rows)


def test_a_game_end_is_no_truncation():
    _, steps = rollout([1, 2], num_steps=60, env_id="CartPole-v1", protocol="classic_control")
    ended = [s.terminated for s in steps]
    assert np.any(ended)
    assert not np.any([s.truncated for s in steps])
    for before, after in zip(ended, steps[1:]):
        np.testing.assert_array_equal(after.valid, ~before)


def test_learning_rewards_are_clipped_and_logged_ones_are_not():
    """CrazyClimber pays 100 a step (FINDINGS T2)."""
    _, steps = rollout([1, 2, 3, 4], num_steps=400, env_id="CrazyClimber-v5")
    clipped, raw = (np.stack([getattr(s, name) for s in steps]) for name in ("rewards", "raw_rewards"))
    assert raw.max() >= 100
    np.testing.assert_array_equal(clipped, np.sign(raw))


def test_a_reset_that_was_not_expected_is_an_error(monkeypatch):
    made = envs.Envs("CartPole-v1", "classic_control", [1, 2], 1)
    made.reset()
    made._ended[:] = True
    with pytest.raises(RuntimeError, match="EnvPool reset envs"):
        made.step(np.zeros(2, np.int32))


@pytest.mark.parametrize(
    ("env_id", "protocol", "message"),
    [
        ("Brakeout-v5", "machado2018", "env_id is 'Brakeout-v5'.*nearest: Breakout-v5"),
        ("CartPole-v1", "machado2018", "protocol is 'machado2018', which is not for env_id 'CartPole-v1'"),
        ("Pong-v5", "classic_control", "protocol is 'classic_control', which is not for env_id 'Pong-v5'"),
    ],
)
def test_environments_that_cannot_be(env_id, protocol, message):
    with pytest.raises(ValueError, match=message):
        envs.spec(env_id, protocol)


def test_a_batch_is_fresh_memory_that_jax_may_share():
    """Two updates' batches never share memory, and groups write disjoint rows of it (FINDINGS T3)."""
    spec = envs.Spec(2, (4,), np.dtype(np.float32))
    one, two = (Batch.empty(2, 4, 5, spec) for _ in range(2))
    assert all(a.ctypes.data % 64 == 0 for a in one)
    assert not any(np.shares_memory(a, b) for a, b in zip(one, two))
    for first in (0, 4):
        one.rows_of(slice(first, first + 4)).rewards[:] = first
    np.testing.assert_array_equal(one.rewards[0], np.zeros((4, 5)))
    np.testing.assert_array_equal(one.rewards[1], np.full((4, 5), 4.0))


def test_runs_use_the_addressed_seeds(monkeypatch):
    import trainers

    seen = []
    real = envs.Envs.__init__
    monkeypatch.setattr(envs.Envs, "__init__", lambda self, *a: (seen.extend(a[2]), real(self, *a))[1])
    trainers.run(trainers.config("impala", **trainers.CARTPOLE, **trainers.SMALL, total_env_steps=160))
    assert seen == streams.env_seeds(1, range(8))
