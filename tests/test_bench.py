"""The trainers' bench: its measurements on a small run, and its arithmetic."""

import subprocess
import sys
from functools import cache

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


def test_the_cost_of_determinism_is_a_ratio(monkeypatch):
    """90 against 100 env steps/s: a price of a tenth. Digests at each update make 90 to 75, a fifth more time: a
    fiftieth at every tenth update."""
    rates = {"invariant": 90.0, "fast": 100.0, "fingerprints": 75.0}

    def measured(name, *, settings, **_):
        every = settings["fingerprint_every_updates"]
        kind = "fast" if "reduction" in settings else "fingerprints" if every else "invariant"
        return {"env_steps_per_second": rates[kind]}

    monkeypatch.setattr(bench, "_in_own_process", measured)
    row = bench._determinism("impala", 10, bench.Console(quiet=True))
    assert row["price_of_invariance"] == pytest.approx(0.1)
    assert row["fingerprint_share"] == pytest.approx(0.02)


def test_the_mirrors_price_is_of_runs_in_turn(monkeypatch):
    """98 against 100 env steps/s."""
    order = []

    def rate(wandb_mode, env_steps):
        order.append(wandb_mode)
        return {"disabled": 100.0, "offline": 98.0}[wandb_mode]

    monkeypatch.setattr(bench, "_command_rate", rate)
    found = bench._mirror(1000, bench.Console(quiet=True))
    assert order == ["disabled", "offline"] * 3
    assert found["price"] == pytest.approx(0.02)


def test_the_rate_of_a_command_is_its_records_after_the_warm_up():
    """`cleanba train` for 8 updates; and by hand: 4 updates, 100 env steps/s after the first."""
    assert bench._command_rate("disabled", 8 * 320) > 0
    rows = [{"env_steps": 50 * update, "wall_seconds": 60 + update / 2} for update in (1, 2, 3, 4)]
    assert bench.steady_rate(rows) == 100


def test_the_original_runs_just_before_and_just_after_ours(tmp_path, monkeypatch):
    """5 and 3 env steps/s beside 100: 25 times. What the table measured of the same settings is not taken again."""
    order = []
    rates = iter([5.0, 3.0])

    def original(*_):
        order.append("original")
        return next(rates)

    def ours(command, **_):
        order.append("ours")
        return subprocess.CompletedProcess(command, 0, stdout='{"env_steps_per_second": 100.0}')

    monkeypatch.setattr(bench, "_measured", cache(bench._measured.__wrapped__))  # this test's own memory
    monkeypatch.setenv("CLEANBA_ORIGINAL", str(tmp_path))
    monkeypatch.setenv("CLEANBA_ORIGINAL_PYTHON", sys.executable)
    monkeypatch.setattr(bench, "_original_rate", original)
    monkeypatch.setattr(bench.subprocess, "run", ours)
    bench._in_own_process("run", algo="impala", settings=bench.settings_of(*bench.ORIGINAL_CASE))
    order.clear()
    assert bench._against_original() == {"ours": 100.0, "original_before": 5.0, "original_after": 3.0, "ratio": 25.0}
    assert order == ["original", "ours", "original"]


def test_the_originals_rate_is_taken_after_its_second_update(tmp_path):
    """A stand-in prints as the original does: a slow first update, then 80 env steps every 0.2 s."""
    checkout = tmp_path / "cleanba"
    checkout.mkdir()
    (checkout / "cleanba_impala.py").write_text(
        "import sys, time\n"
        "assert sys.argv[1:3] == ['--env-id', 'Breakout-v5']\n"
        "for update in range(1, 7):\n"
        "    time.sleep(0.5 if update == 1 else 0.2)\n"
        "    print(f'global_step={80 * update}, rollout_time=1')\n"
        "    print(f'{80 * update} actor_policy_version={update}, learner_policy_version={update}, 1s')\n"
    )
    settings = bench.settings_of("impala", "resnet", "cleanba", 40)
    rate = bench._original_rate(tmp_path, sys.executable, settings)
    assert rate == pytest.approx(400, rel=0.3)  # a sleep is never short and may be late
    with pytest.raises(RuntimeError, match="the original ended after 6 of 7 updates"):
        bench._original_rate(tmp_path, sys.executable, settings, updates=7)
