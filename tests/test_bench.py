"""The trainers' bench: its measurements on a small run, and its arithmetic."""

import sys

import pytest

from runners import bench

CARTPOLE = {
    "env_id": "CartPole-v1", "seed": 1, "protocol": "classic_control", "network": "mlp", "num_envs": 4,
    "num_minibatches": 1, "total_env_steps": 4 * 20 * 12, "rollout_length": 20,
}  # fmt: skip


def test_measurements_run_in_a_process_of_their_own():
    measured = bench._in_own_process("run", algo="impala", settings=CARTPOLE)
    assert measured["env_steps_per_second"] > 0
    assert 0 < measured["learn_seconds_per_env_step"] < 1


def test_a_failed_measurement_is_told():
    with pytest.raises(RuntimeError, match=r"measurement run failed:[\s\S]*num_envs is 3"):
        bench._in_own_process("run", algo="impala", settings=CARTPOLE | {"num_envs": 3})


def test_the_share_is_of_what_the_parts_allow(monkeypatch):
    """1 / (1 / 1000 + 0.001 + 0.002) = 250 env steps/s are attainable; 200 are a share of 0.8."""
    measured = {
        "run": {"env_steps_per_second": 200.0, "learn_seconds_per_env_step": 0.002},
        "ceiling": {"env_steps_per_second": 1000.0},
        "inference": {"seconds_per_env_step": 0.001},
    }
    monkeypatch.setattr(bench, "_in_own_process", lambda name, **_: measured[name])
    row = bench._speed(("impala", "impala_shallow", "sync", 10), bench.Console(quiet=True))
    assert row["attainable_env_steps_per_second"] == pytest.approx(250)
    assert row["share"] == pytest.approx(0.8)


def test_the_originals_rate_is_taken_between_two_reports(tmp_path):
    """A stand-in prints as the original does: 640 env steps within half a second, after a slow start."""
    checkout = tmp_path / "cleanba"
    checkout.mkdir()
    (checkout / "cleanba_impala.py").write_text(
        "import sys, time\n"
        "assert sys.argv[1:3] == ['--env-id', 'Breakout-v5']\n"
        "time.sleep(0.3)\n"
        "print('global_step=3200, avg_episodic_return=0.0, rollout_time=1', flush=True)\n"
        "print('SPS: 5', flush=True)\n"
        "time.sleep(0.5)\n"
        "print('global_step=3840, avg_episodic_return=0.0, rollout_time=1', flush=True)\n"
        "time.sleep(60)\n"
    )
    rate = bench._original_rate(tmp_path, sys.executable, bench.settings_of("impala", "resnet", "cleanba", 40))
    assert rate == pytest.approx(1280, rel=0.3)  # a sleep of 0.5 s is never short and may be late
