"""Contracts D1 to D5: what must not change a bit of a run, and controls that show the comparison can fail."""

import re
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
import trainers
from trainers import BREAKOUT, CARTPOLE, SMALL, first_difference

from cleanba import actors, fingerprint, learners, seed_audit, streams, training

UPDATES = 4
ALGORITHMS = [("impala", "cleanba"), ("impala", "sync"), ("ppo", "sync"), ("ppo", "cleanba")]
STAGES = {
    "impala": ["prng", "rollout/observations", "rollout/actions", "rollout/behaviour_logits", "rollout/values",
               "rollout/rewards", "rollout/terminated", "rollout/valid", "targets", "loss", "shard_gradient",
               "gradient", "optimizer_state", "parameters"],
    "ppo": ["prng", "rollout/observations", "rollout/actions", "rollout/behaviour_logits", "rollout/values",
            "rollout/rewards", "rollout/terminated", "rollout/valid", "targets", "minibatches", "loss",
            "shard_gradient", "gradient", "optimizer_state", "parameters"],
}  # fmt: skip


def cartpole(algo, schedule, **more):
    settings = CARTPOLE | SMALL | {"schedule": schedule, "rollout_length": 20, "total_env_steps": UPDATES * 160} | more
    return trainers.config(algo, **settings)


def prints(config, layout="a0-l0-d1", threads=2):
    return trainers.run(config, layout, threads)[1]["fingerprints"]


@pytest.mark.parametrize(("algo", "schedule"), ALGORITHMS)
def test_d1_and_d2_same_bits_again_and_on_other_layouts(algo, schedule):
    reference = prints(cartpole(algo, schedule))
    assert [row["stage"] for row in reference if row["update"] == 2 and row["shard"] <= 0] == STAGES[algo]
    assert {row["shard"] for row in reference} == {-1, 0, 1, 2, 3}
    assert {row["update"] for row in reference} == set(range(1, UPDATES + 1))
    for layout, threads in [("a0-l0-d1", 2), ("a0-l0-d1", 4), ("a0-l0,1-d1", 1), ("a0,1-l2,3-d1", 2)]:
        assert first_difference(reference, prints(cartpole(algo, schedule), layout, threads)) is None, layout
    other = prints(cartpole(algo, schedule, seed=2))
    assert first_difference(reference, other)  # the control: another seed is another run


@pytest.mark.parametrize("algo", ["impala", "ppo"])
def test_d2_on_frames(algo):
    settings = BREAKOUT | {"num_envs": 4, "num_shards": 2, "rollout_length": 4, "num_minibatches": 1}
    config = trainers.config(algo, **settings, total_env_steps=48)
    assert first_difference(prints(config), prints(config, "a0-l1,2-d1")) is None


def test_d2_control_the_order_of_summation_is_seen(monkeypatch):
    """Adding the shards last to first, as a ring of devices may, is found at the first gradient."""
    config = cartpole("impala", "sync")
    reference = prints(config)
    add = learners._sum
    monkeypatch.setattr(learners, "_sum", lambda shards: add(shards[::-1]))
    before, _ = first_difference(reference, prints(config))
    assert (before["update"], before["stage"]) == (1, "gradient")


DELAYS = [
    {"actor_delay_seconds": 0.01, "delay_kind": "random"},
    {"learner_delay_seconds": 0.2},
    {"actor_delay_seconds": 0.01, "learner_delay_seconds": 0.2, "delay_kind": "random"},
]


def test_reduction_fast_has_a_shard_a_device_and_gives_invariance_up():
    """On one device it is the run of one shard; on two, the order of addition is another, and only that."""
    fast = {"reduction": "fast", "total_env_steps": 160}
    one_shard = prints(cartpole("impala", "sync", num_shards=1, total_env_steps=160))
    assert first_difference(one_shard, prints(cartpole("impala", "sync", **fast))) is None
    two = prints(cartpole("impala", "sync", **fast), "a0-l0,1-d1")
    assert {row["shard"] for row in two} == {-1, 0, 1}
    whole = [{row["stage"]: row["digest"] for row in rows if row["shard"] == -1} for rows in (one_shard, two)]
    assert whole[0]["prng"] == whole[1]["prng"]
    assert whole[0]["gradient"] != whole[1]["gradient"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("algo", "schedule"), [("impala", "cleanba"), ("ppo", "sync")])
def test_d3_for_50_updates_on_a_loaded_machine(algo, schedule):
    """Sleeps of up to 50 ms in actors and learner, and two processes beside it that never wait."""
    more = {"total_env_steps": 50 * 160}
    reference = prints(cartpole(algo, schedule, **more))
    delays = {"actor_delay_seconds": 0.05, "learner_delay_seconds": 0.05, "delay_kind": "random"}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        delayed = prints(cartpole(algo, schedule, **more, **delays))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert {row["update"] for row in delayed} == set(range(1, 51))
    assert first_difference(reference, delayed) is None


@pytest.mark.parametrize(("algo", "schedule"), [("impala", "sync"), ("ppo", "cleanba")])
def test_d3_delays_change_nothing(algo, schedule, monkeypatch):
    slept, sleep = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (slept.append(seconds), sleep(seconds))[1])
    reference = prints(cartpole(algo, schedule))
    for settings in DELAYS:
        slept.clear()
        assert first_difference(reference, prints(cartpole(algo, schedule, **settings))) is None, settings
        actor_sleeps = UPDATES * 20 * 4 if "actor_delay_seconds" in settings else 0  # one for each group's env step
        learner_sleeps = UPDATES if "learner_delay_seconds" in settings else 0
        assert len(slept) == actor_sleeps + learner_sleeps


def test_d3_control_under_async_delays_change_the_run():
    """Whichever actors are first and whatever is newest: the first update differs already, or a later one."""
    slow_learner = prints(cartpole("impala", "async", learner_delay_seconds=0.2))
    slow_actors = prints(cartpole("impala", "async", actor_delay_seconds=0.01))
    assert first_difference(slow_learner, slow_actors)


@pytest.mark.parametrize("algo", ["impala", "ppo"])
def test_async_records_its_lags_and_ends_cleanly(algo):
    """A learner of 0.1 s an update beside actors that need less: rollouts wait, and age while they do."""
    threads_before = threading.active_count()
    config = cartpole(algo, "async", total_env_steps=12 * 160, learner_delay_seconds=0.1)
    _, rows = trainers.run(config)
    assert threading.active_count() == threads_before
    assert [row["env_steps"] for row in rows["metrics"]] == list(range(160, 12 * 160 + 1, 160))
    for row in rows["metrics"]:
        counts = {int(key.rpartition("_")[2]): row[key] for key in row if re.fullmatch(r"stats/policy_lag_\d+", key)}
        assert sum(counts.values()) == 160
        assert (row["stats/policy_lag_min"], row["stats/policy_lag_max"]) == (min(counts), max(counts))
        mean = sum(lag * count for lag, count in counts.items()) / 160
        assert row["policy_lag"] == pytest.approx(mean)
        assert row["actor_policy_version"] == pytest.approx(row["update"] - 1 - mean)
        assert min(counts) >= 0
    assert rows["metrics"][0]["policy_lag"] == 0  # nothing is older than version 0
    assert max(row["stats/policy_lag_max"] for row in rows["metrics"]) >= 1
    places = [(row["env_steps"], row["group"], row["env"]) for row in rows["episodes"]]
    assert places == sorted(places)


def test_lags_are_counted_in_env_steps():
    versions = {5: 60, 8: 20, 9: 80}
    assert training.policy_lag("async", 10, versions) == {
        "actor_policy_version": 7.375, "policy_lag": 1.625, "stats/policy_lag_min": 0, "stats/policy_lag_max": 4,
        "stats/policy_lag_0": 80, "stats/policy_lag_1": 20, "stats/policy_lag_4": 60,
    }  # fmt: skip


def test_d4_fingerprints_change_nothing():
    off, _ = trainers.run(cartpole("ppo", "sync", fingerprint_every_updates=0))
    on, rows = trainers.run(cartpole("ppo", "sync", fingerprint_every_updates=2))
    assert {row["update"] for row in rows["fingerprints"]} == {1, 2, 4}
    assert jax.tree.all(jax.tree.map(np.array_equal, on, off))


@pytest.mark.parametrize(("schedule", "lags"), [("sync", [0, 0, 0, 0]), ("cleanba", [0, 1, 1, 1])])
def test_d5_policy_lag(schedule, lags):
    _, rows = trainers.run(cartpole("impala", schedule))
    assert [row["policy_lag"] for row in rows["metrics"]] == lags
    assert [row["actor_policy_version"] + row["policy_lag"] for row in rows["metrics"]] == [0, 1, 2, 3]


def test_d5_control_a_stale_version_is_an_error(monkeypatch):
    """Actors that go on with the old parameters are found at the update that they reach."""
    real = actors.policy_version

    def stale(schedule, update):
        is_actor = threading.current_thread().name.startswith("actor")
        return real(schedule, update) - (is_actor and update == 3)

    monkeypatch.setattr(actors, "policy_version", stale)
    with pytest.raises(RuntimeError, match=r"update 3: rollouts are of policy versions \{1\}, expected 2"):
        trainers.run(cartpole("impala", "sync"))


def test_d4_control_a_digest_that_writes_is_seen(monkeypatch):
    """A fingerprint that changed what it reads would change the parameters of the run."""
    off, _ = trainers.run(cartpole("impala", "sync", fingerprint_every_updates=0))
    shards = fingerprint.Fingerprints.shards

    def writing(self, stage, slots):
        if stage == "targets":
            monkeypatch.setattr(training, "learning_rate", lambda config, update: 1.0)
        shards(self, stage, slots)

    monkeypatch.setattr(fingerprint.Fingerprints, "shards", writing)
    on, _ = trainers.run(cartpole("impala", "sync"))
    assert not jax.tree.all(jax.tree.map(np.array_equal, on, off))


def test_d6_control_a_shared_key_is_seen(monkeypatch):
    """With one key for all groups, as in the original, groups of equal observations act alike (FINDINGS C3)."""
    reference = prints(cartpole("impala", "sync"))
    real = streams.key
    monkeypatch.setattr(streams, "key", lambda seed, role, *at: real(seed, role, *(0 for _ in at)))
    with pytest.raises(RuntimeError, match=r"actions \(0, 1\) of seed 1 and actions \(0, 2\) of seed 1 have the same"):
        prints(cartpole("impala", "sync"))
    monkeypatch.setattr(seed_audit, "check", lambda config: None)
    before, _ = first_difference(reference, prints(cartpole("impala", "sync")))
    assert (before["update"], before["stage"]) == (1, "prng")


def test_gradient_accumulation_is_the_same_step_up_to_rounding():
    """Parts of a minibatch add up to it; only the order of addition differs (float32, sums of 160 rows)."""
    for algo in ("impala", "ppo"):
        whole, _ = trainers.run(cartpole(algo, "sync", num_shards=2, total_env_steps=160))
        parts, _ = trainers.run(
            cartpole(algo, "sync", num_shards=2, total_env_steps=160, gradient_accumulation_steps=4)
        )
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts)):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
