"""Optimisers, threads that fail, rows, saved policies and evaluation."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trainers
from trainers import CARTPOLE, SMALL

from cleanba import actor_threads, actors, async_actors, envs, evaluate, impala, policy, ppo, training
from cleanba.channel import Channel, Stopped


def test_rmsprop_is_torchs():
    """lr 6e-4, decay .99, eps .01, gradient 1e-3: the first step is -5.94e-5; optax's default form gives -6.0e-6."""
    ours = impala.make_optimizer(trainers.config("impala", **CARTPOLE))
    assert first_step(ours, gradient=1e-3, learning_rate=6e-4) == pytest.approx(-5.94e-5, rel=1e-3)
    inside = optax.scale_by_rms(0.99, 0.01)
    assert first_step(inside, gradient=1e-3, learning_rate=6e-4) == pytest.approx(-6.0e-6, rel=1e-3)


def test_adams_first_step_is_the_learning_rate():
    """g / (|g| + eps): at a gradient of 1e-5, as large as eps, half of it."""
    ours = ppo.make_optimizer(trainers.config("ppo", **CARTPOLE))
    assert first_step(ours, gradient=1e-5, learning_rate=2.5e-4) == pytest.approx(-1.25e-4, rel=1e-3)


@pytest.mark.parametrize(("algo", "norm"), [("impala", 40.0), ("ppo", 0.5)])
def test_gradients_are_clipped_at_the_papers_norms(algo, norm):
    """The optimiser cannot tell a gradient of ten times the norm from one of twice."""
    optimizer = {"impala": impala, "ppo": ppo}[algo].make_optimizer(trainers.config(algo, **CARTPOLE))
    state = optimizer.init(jnp.zeros(2))
    steps = [optimizer.update(jnp.array([0.6, 0.8]) * norm * by, state)[0] for by in (0.5, 2.0, 10.0)]
    moments = [optimizer.update(jnp.array([0.6, 0.8]) * norm * by, state)[1][1].nu for by in (0.5, 2.0, 10.0)]
    np.testing.assert_allclose(moments[1], moments[2], rtol=1e-6)
    np.testing.assert_allclose(steps[1], steps[2], rtol=1e-6)
    assert not np.allclose(moments[0], moments[1])


def first_step(optimizer, gradient, learning_rate):
    params = {"w": jnp.zeros(1)}
    apply = training.make_apply(optimizer, params)
    state = training.State(params, optimizer.init(params))
    return float(
        apply(state, [training.ShardGradient(jnp.array([gradient]), {})], 1.0, learning_rate)[0].params["w"][0]
    )


def test_the_gradient_is_clipped_by_its_global_norm_and_the_unclipped_norm_is_reported():
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    optimizer = optax.clip_by_global_norm(1.0)
    apply = training.make_apply(optimizer, params)
    sums = [training.ShardGradient(jnp.array([6.0, 8.0]), {"loss": jnp.float32(4.0)})]
    state, metrics = apply(training.State(params, optimizer.init(params)), sums, 0.5, 0.1)  # mean gradient (3, 4)
    assert float(metrics["stats/gradient_norm"]) == 5.0
    assert float(metrics["losses/loss"]) == 2.0
    np.testing.assert_allclose([state.params["a"][0], state.params["b"][0]], [-0.06, -0.08], rtol=1e-6)


def test_the_learning_rate_falls_linearly_per_update():
    config = trainers.config("impala", **CARTPOLE, **SMALL, total_env_steps=160 * 4, learning_rate=1.0)
    assert [training.learning_rate(config, update) for update in (1, 2, 3, 4)] == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize(("algo", "schedule"), [("impala", "cleanba"), ("ppo", "sync"), ("impala", "async")])
def test_an_actors_exception_ends_the_run(algo, schedule, monkeypatch):
    """The original's learner waits for ever (FINDINGS C8)."""
    step, calls = envs.Envs.step, []

    def failing(self, actions):
        calls.append(1)
        if len(calls) == 50:
            raise OSError("the emulator is gone")
        return step(self, actions)

    monkeypatch.setattr(envs.Envs, "step", failing)
    settings = CARTPOLE | SMALL | {"schedule": schedule, "total_env_steps": 160_000, "rollout_length": 20}
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="an actor thread failed: OSError: the emulator is gone"):
        trainers.run(trainers.config(algo, **settings))
    assert threading.active_count() == before


@pytest.mark.parametrize("schedule", ["sync", "cleanba", "async"])
def test_an_actor_that_hangs_ends_the_run(schedule, monkeypatch):
    """One of two. Only the other threads of the run can tell: nothing is raised where an emulator does not return."""
    step, calls, let_go = envs.Envs.step, [], threading.Event()

    def hanging(self, actions):
        calls.append(1)
        if len(calls) > 50 and threading.current_thread().name == "actor-0":
            let_go.wait()
            raise Stopped
        return step(self, actions)

    monkeypatch.setattr(envs.Envs, "step", hanging)
    monkeypatch.setattr(actor_threads, "_JOIN_SECONDS", 0.1)
    for module in (actor_threads, actors, async_actors):
        monkeypatch.setattr(module, "HUNG_SECONDS", 3.0)
    with pytest.raises(RuntimeError, match="no rollout for 3 s: an actor thread hangs in its environment"):
        trainers.run(trainers.config("impala", **CARTPOLE, **SMALL, total_env_steps=1_600_000, schedule=schedule))
    let_go.set()


def test_a_loss_that_is_not_finite_ends_the_run(monkeypatch):
    rates = training.learning_rate
    monkeypatch.setattr(training, "learning_rate", lambda c, update: np.nan if update == 2 else rates(c, update))
    with pytest.raises(FloatingPointError, match=r"update 3: losses/\w+ is nan"):
        trainers.run(trainers.config("impala", **CARTPOLE, **SMALL, total_env_steps=1600, schedule="sync"))


def test_channels_stop_instead_of_waiting():
    stop = threading.Event()
    channel = Channel(stop)
    channel.put(1)
    assert channel.get() == 1
    stop.set()
    with pytest.raises(Stopped):
        channel.get()


def test_a_channel_waits_as_long_as_its_patience():
    channel = Channel(threading.Event(), patience_seconds=0.1)
    with pytest.raises(TimeoutError):
        channel.get()


def test_rows_are_counted_and_no_average_precedes_an_episode():
    """The original averages zeros for envs without a finished episode (FINDINGS C7)."""
    settings = CARTPOLE | SMALL | {"total_env_steps": 8 * 40, "rollout_length": 4}
    _, rows = trainers.run(trainers.config("impala", **settings))
    assert [row["env_steps"] for row in rows["metrics"]] == list(range(32, 321, 32))
    assert rows["metrics"][0]["frames"] == 32  # CartPole has one frame a step; Atari four
    first = rows["episodes"][0]
    assert first["episode_return"] == first["episode_length"] > 4
    for row in rows["metrics"]:
        finished = {}
        for episode in rows["episodes"]:
            if episode["update"] <= row["update"]:
                finished[episode["group"], episode["env"]] = episode["episode_return"]
        assert row.get("charts/avg_episodic_return") == (np.mean(list(finished.values())) if finished else None)
    assert "charts/avg_episodic_return" not in rows["metrics"][0]
    places = [(row["env_steps"], row["group"], row["env"]) for row in rows["episodes"]]
    assert places == sorted(places)


def test_a_saved_policy_is_the_policy(tmp_path):
    config = trainers.config("ppo", **CARTPOLE, **SMALL, total_env_steps=8 * 128)
    params, _ = trainers.run(config)
    policy.save(tmp_path / "policy.msgpack", config, params)
    loaded_config, loaded = policy.load(tmp_path / "policy.msgpack")
    assert loaded_config == config
    assert jax.tree.all(jax.tree.map(np.array_equal, params, loaded))
    (tmp_path / "no.msgpack").write_bytes(b"\x00something else")
    with pytest.raises(ValueError, match=r"no.msgpack: not a policy"):
        policy.load(tmp_path / "no.msgpack")


def test_evaluation_plays_the_games_it_says():
    """20 games in 16 envs: 4 envs play two and 12 one, whatever their length; twice the same."""
    config = trainers.config("ppo", **CARTPOLE, **SMALL, total_env_steps=8 * 128)
    _, params = training.make_network(config)
    rows = evaluate.evaluate(config, params, num_episodes=20, seed=3)
    games = np.bincount([row["env"] for row in rows], minlength=16)
    assert games.tolist() == [2] * 4 + [1] * 12
    assert rows == evaluate.evaluate(config, params, num_episodes=20, seed=3)
    assert rows != evaluate.evaluate(config, params, num_episodes=20, seed=4)


def test_networks_are_for_their_observations():
    with pytest.raises(ValueError, match="network is 'resnet', which is not for observations of shape"):
        training.make_network(trainers.config("ppo", **(CARTPOLE | {"network": "resnet"})))


@pytest.mark.parametrize(("layout", "message"), [("a0-l7-d1", "needs 8 devices"), ("a0-l0-d2", "1 processes, not 2")])
def test_layouts_that_the_machine_cannot_have(layout, message):
    with pytest.raises(ValueError, match=message):
        trainers.run(trainers.config("ppo", **CARTPOLE, **SMALL), layout)


def test_a_thread_that_hangs_does_not_keep_the_run(monkeypatch):
    """Another actor's exception ends the run though one is stuck in its emulator."""
    release = threading.Event()

    def hang_or_fail(self, actions):
        if threading.current_thread().name == "actor-0":
            release.wait(60)
        else:
            raise OSError("the emulator is gone")

    monkeypatch.setattr(envs.Envs, "step", hang_or_fail)
    monkeypatch.setattr(actor_threads, "_JOIN_SECONDS", 0.5)
    begin = time.perf_counter()
    with pytest.raises(RuntimeError, match="the emulator is gone"):
        trainers.run(trainers.config("impala", **CARTPOLE, **SMALL, total_env_steps=160_000, rollout_length=20))
    assert time.perf_counter() - begin < 45
    release.set()
