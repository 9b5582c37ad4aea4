"""The two algorithms' own arithmetic, on numbers small enough to do again in float64: minibatches, masks, sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trainers

from cleanba import impala, ppo
from cleanba.rollout import Batch

SINGLE = {"rtol": 1e-5, "atol": 1e-6}  # float32 sums of some tens of terms
S, N, T, A = 2, 3, 4, 2  # shards, envs of a shard, rollout length, actions


def config(algo, **more):
    settings = trainers.CARTPOLE | {
        "num_envs": S * N, "num_shards": S, "rollout_length": T, "num_minibatches": 3, "num_actor_groups": 1,
    }  # fmt: skip
    return trainers.config(algo, **(settings | more))


class Linear:
    """A network whose logits and values are linear in an observation, so that a gradient can be done by hand."""

    def forward(self, params, observations):
        return observations @ params["policy"], (observations @ params["value"])[:, 0]


PARAMS = {"policy": jnp.zeros((2, A)), "value": jnp.zeros((2, 1))}


def batch(seed=0):
    """One shard's rows; observation (e, t) is numbered (1, e (T + 1) + t), so that a row shows where it came from."""
    rng = np.random.default_rng(seed)
    rows = np.arange(N * (T + 1), dtype=np.float32).reshape(N, T + 1)
    return Batch(
        observations=jnp.asarray(np.stack([np.ones_like(rows), rows], axis=-1)),
        actions=jnp.asarray(rng.integers(A, size=(N, T)), jnp.int32),
        behaviour_logits=jnp.zeros((N, T, A)),
        values=jnp.asarray(rng.normal(size=(N, T)), jnp.float32),
        rewards=jnp.asarray(rng.normal(size=(N, T)), jnp.float32),
        terminated=jnp.zeros((N, T), bool),
        valid=jnp.asarray(rng.random((N, T)) < 0.7),
    )


def test_every_epoch_visits_every_row_once_and_shards_differ():
    orders = [ppo.shard_shuffle(config("ppo"), jax.random.key(0), shard) for shard in range(S)]
    assert orders[0].shape == (4 * 3, N * T // 3)
    for epoch in np.asarray(orders[0]).reshape(4, -1):
        assert sorted(epoch) == list(range(N * T))
    epochs = np.asarray(orders).reshape(S * 4, -1)
    assert len(np.unique(epochs, axis=0)) == S * 4


def test_advantages_are_normalised_over_the_valid_rows_of_all_shards():
    """The original takes them over one learner's rows, so that the algorithm depends on the device count (C5)."""
    rng = np.random.default_rng(1)
    valid, advantages = rng.random((S, N, T)) < 0.7, rng.normal(size=(S, N, T)) + 5
    orders = np.stack([ppo.shard_shuffle(config("ppo"), jax.random.key(1), shard) for shard in range(S)])
    got = ppo.minibatch_statistics(config("ppo"), *(jnp.asarray(x) for x in (valid, advantages, orders)))
    for m in range(orders.shape[1]):
        rows = np.concatenate([advantages[s].ravel()[orders[s, m]] for s in range(S)])
        keep = np.concatenate([valid[s].ravel()[orders[s, m]] for s in range(S)])
        np.testing.assert_allclose(got.mean[m], rows[keep].mean(), **SINGLE)
        np.testing.assert_allclose(got.deviation[m], rows[keep].std(), **SINGLE)
        np.testing.assert_allclose(got.weight[m], 1 / keep.sum(), **SINGLE)


def test_a_minibatch_of_resets_alone_has_a_finite_weight():
    orders = jnp.arange(N * T).reshape(1, 1, -1)
    got = ppo.minibatch_statistics(config("ppo"), jnp.zeros((1, N, T), bool), jnp.ones((1, N, T)), orders)
    assert np.isfinite(np.asarray(got)).all()


@pytest.mark.parametrize("parts", [1, 2])
def test_ppos_gradient_is_of_the_minibatchs_valid_rows(parts):
    """At uniform logits and ratio 1, d(-sum w A ratio) / d logits_b = -w A (1[a = b] - 1/2), by hand for each row."""
    settings = config("ppo", entropy_coefficient=0.0, value_coefficient=0.5, gradient_accumulation_steps=parts)
    data = batch()
    targets = ppo.shard_targets(settings, Linear(), PARAMS, data)
    orders = ppo.shard_shuffle(settings, jax.random.key(2), 0)
    everyone = (x[None] for x in (data.valid, targets.advantages, orders))
    statistics = ppo.minibatch_statistics(settings, *everyone)
    minibatch = 5
    got = sum(
        ppo.shard_gradient(settings, Linear(), (PARAMS, statistics, minibatch, part), (data, targets, orders)).gradient
        for part in range(parts)
    )
    expected = {name: np.zeros(x.shape) for name, x in PARAMS.items()}
    for row in np.asarray(orders[minibatch]):
        e, t = divmod(int(row), T)
        observation = np.array([1.0, e * (T + 1) + t])
        np.testing.assert_array_equal(data.observations[e, t], observation)
        advantage = (targets.advantages[e, t] - statistics.mean[minibatch]) / statistics.deviation[minibatch]
        toward = (np.arange(A) == int(data.actions[e, t])) - 0.5
        if data.valid[e, t]:
            expected["policy"] -= advantage * np.outer(observation, toward)
            expected["value"] += 0.5 * (0.0 - targets.value_targets[e, t]) * observation[:, None]
    np.testing.assert_allclose(got, np.concatenate([expected["policy"].ravel(), expected["value"].ravel()]), rtol=1e-4)


def test_ppos_targets_bootstrap_from_the_last_observation():
    """With V = 3 everywhere after the rollout, the last row's target is r + 0.99 * 3 where it is valid."""
    params = PARAMS | {"value": jnp.array([[3.0], [0.0]])}
    data = batch()
    targets = ppo.shard_targets(config("ppo"), Linear(), params, data)
    last = np.where(data.valid[:, -1], data.rewards[:, -1] + 0.99 * 3.0, data.values[:, -1])
    np.testing.assert_allclose(targets.value_targets[:, -1], last, **SINGLE)


def test_impalas_gradient_is_the_sum_over_valid_rows():
    """At V = 0 and ratio 1: policy -A (1[a = b] - 1/2), value -coefficient * (v - V), summed over all rows."""
    settings = config("impala", entropy_coefficient=0.0)
    data = batch()
    got, targets = impala.shard_gradient(settings, Linear(), PARAMS, data)
    expected = {name: np.zeros(x.shape) for name, x in PARAMS.items()}
    for e in range(N):
        for t in range(T):
            observation = np.asarray(data.observations[e, t], float)
            toward = (np.arange(A) == int(data.actions[e, t])) - 0.5
            expected["policy"] -= float(targets.policy_advantages[e, t]) * np.outer(observation, toward)
            expected["value"] -= 0.5 * float(targets.value_errors[e, t]) * observation[:, None]
    flat = np.concatenate([expected["policy"].ravel(), expected["value"].ravel()])
    np.testing.assert_allclose(got.gradient, flat, rtol=1e-4)
    assert not np.asarray(targets.value_errors)[~np.asarray(data.valid)].any()
    assert np.asarray(targets.value_errors)[np.asarray(data.valid)].all()


def test_impalas_parts_are_whole_sequences_of_each_shard():
    rows = np.arange(S * 6 * T).reshape(S, 6, T)
    filled = Batch(*(rows for _ in Batch._fields))
    settings = config("impala", num_envs=S * 6, num_minibatches=3)
    parts = impala.envs_in_parts(settings, filled)
    assert [part.rewards.shape for part in parts] == [(S, 2, T)] * 3
    np.testing.assert_array_equal(np.concatenate([part.rewards for part in parts], axis=1), rows)
