"""`cleanba status`: the state of every cell, from the records alone."""

import json
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
import yaml
from cells import SETTINGS, make_spec
from rich.console import Console

from runners import status
from runners.record import now, prepare, read_status, write_status
from runners.record_claim import BEAT, claim


def record(results, spec, state, reason="", **changes):
    folder = spec.folder(results)
    prepare(folder, spec)
    write_status(folder, replace(read_status(folder), state=state, reason=reason, **changes))
    return folder


@pytest.fixture
def results(tmp_path):
    """Six runs, each in a state of its own; the worker of the third is this process."""
    record(tmp_path, make_spec(seed=1), "complete", env_steps=200, sps=50.0)
    record(tmp_path, make_spec(seed=2), "failed", "RuntimeError: actor 1 died")
    running = record(tmp_path, make_spec(seed=3), "running", env_steps=100, sps=10.0)
    record(tmp_path, make_spec(seed=4), "running", env_steps=80, updated_at="2026-01-02T03:04:05+00:00")
    record(tmp_path, make_spec(seed=5, experiment="other"), "invalid", "2 usable CPUs declared, 1 found")
    record(tmp_path, make_spec(seed=6), "interrupted", "Ended: by SIGTERM", env_steps=20)
    prepare(make_spec(seed=7).folder(tmp_path), make_spec(seed=7))
    with ExitStack() as held:
        held.enter_context(claim(running))
        yield tmp_path


def test_states_and_reasons(results):
    found = {cell.seed: (cell.state, cell.reason) for cell in status.cells(results, None)}
    assert found == {
        1: ("complete", ""),
        2: ("failed", "RuntimeError: actor 1 died"),
        3: ("running", ""),
        4: ("interrupted", "its process is gone; last heard of at 2026-01-02T03:04:05+00:00"),
        5: ("invalid", "2 usable CPUs declared, 1 found"),
        6: ("interrupted", "Ended: by SIGTERM"),
        7: ("pending", ""),
    }


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_claim_is_what_makes_a_run_a_running_one(tmp_path, state):
    folder = record(tmp_path, make_spec(), state, updated_at="2026-01-02T03:04:09+00:00")
    without = {
        "pending": ("pending", ""),
        "running": ("interrupted", "its process is gone; last heard of at 2026-01-02T03:04:09+00:00"),
    }[state]
    assert status.state_of(folder) == without
    with claim(folder):
        assert status.state_of(folder) == ("running", "")
    assert status.state_of(folder) == without
    (folder / "claim.7").write_text("{}\n" + BEAT.format(3))
    assert status.state_of(folder) == ("running", "on another machine")


def test_age_speed_and_hours_left(results):
    found = {cell.seed: cell for cell in status.cells(results, "trial")}
    assert (found[3].sps, found[3].env_steps, found[3].planned_env_steps) == (10.0, 100, 200)
    assert found[3].hours_left == 100 / 10 / 3600
    assert found[6].hours_left == 180 / 30 / 3600  # at the mean of 50 and 10
    assert found[7].hours_left == 200 / 30 / 3600
    assert found[1].hours_left is found[2].hours_left is None  # nothing left, and nothing that a plain run would do
    assert 0 <= found[3].age_seconds < 60


def test_a_clock_set_back_makes_no_age_below_zero(tmp_path):
    ahead = (datetime.now(UTC) + timedelta(hours=5)).isoformat(timespec="seconds")
    record(tmp_path, make_spec(), "failed", updated_at=ahead)
    (cell,) = status.cells(tmp_path, None)
    assert cell.age_seconds == 0.0


def test_one_experiment_by_name(results):
    assert {cell.seed for cell in status.cells(results, "trial")} == {1, 2, 3, 4, 6, 7}
    with pytest.raises(ValueError, match="no experiment 'trail'; allowed: other, trial"):
        status.cells(results, "trail")
    with pytest.raises(ValueError, match="no experiment 'trial'; allowed: none yet"):
        status.cells(results / "empty", "trial")


def test_an_experiments_file_adds_what_has_not_run(results):
    profile = make_spec().profile
    (results / "profiles").mkdir()
    (results / "profiles" / "one.yaml").write_text(yaml.safe_dump(
        {"name": "one", "platform": "cpu", "layout": profile.layout, "cpus": 1, "memory_gib": 0.1}
    ))  # fmt: skip
    declared = {
        "name": "trial", "env_ids": ["CartPole-v1"], "seeds": [1, 2, 9], "profiles": ["one"],
        "algorithms": {"impala": {"algo": "impala"} | SETTINGS},
    }  # fmt: skip
    (results / "trial.yaml").write_text(yaml.safe_dump(declared))
    found = {cell.seed: cell.state for cell in status.cells(results, str(results / "trial.yaml"))}
    assert found == {
        1: "complete", 2: "failed", 3: "running", 4: "interrupted", 6: "interrupted", 7: "pending", 9: "pending",
    }  # fmt: skip


def test_json_has_the_documented_fields(results):
    listed = json.loads(status.as_json(status.cells(results, "trial")))
    assert {tuple(entry) for entry in listed} == {(
        "run_id", "experiment", "algorithm", "env_id", "seed", "profile", "state", "reason",
        "age_seconds", "env_steps", "planned_env_steps", "sps", "hours_left",
    )}  # fmt: skip
    first = next(entry for entry in listed if entry["seed"] == 2)
    assert first.pop("age_seconds") < 60
    assert first == {
        "run_id": make_spec(seed=2).run_id, "experiment": "trial", "algorithm": "impala", "env_id": "CartPole-v1",
        "seed": 2, "profile": "one", "state": "failed", "reason": "RuntimeError: actor 1 died",
        "env_steps": 0, "planned_env_steps": 200, "sps": None, "hours_left": None,
    }  # fmt: skip


def test_what_is_shown_counts_and_lists_what_is_not_complete(results, monkeypatch):
    at = datetime.fromisoformat(now()) + timedelta(seconds=90)
    monkeypatch.setattr(status, "datetime", FixedClock(at))
    for cell in (make_spec(seed=2), make_spec(seed=3)):
        there = read_status(cell.folder(results))
        write_status(cell.folder(results), replace(there, updated_at=(at - timedelta(seconds=30)).isoformat()))
    shown = StringIO()
    status.show(status.cells(results, None), Console(file=shown, width=80))
    lines = shown.getvalue().splitlines()
    assert lines[0] == ("1 failed, 1 running, 2 interrupted, 1 invalid, 1 pending, 1 complete; 0.0 hours of runs left")
    assert lines[1] == (
        f"failed      {make_spec(seed=2).run_id} trial impala CartPole-v1 one s2: "
        "RuntimeError: actor 1 died; 0:00:30 ago"
    )
    assert lines[2] == (
        f"running     {make_spec(seed=3).run_id} trial impala CartPole-v1 one s3: "
        "100 of 200 env steps; 10 SPS; 0.0 h left; 0:00:30 ago"
    )
    states = ["failed", "running", "interrupted", "interrupted", "invalid", "pending"]
    assert [line.split()[0] for line in lines[1:]] == states


class FixedClock:
    """In the place of `datetime`: it is always `at`."""

    fromisoformat = staticmethod(datetime.fromisoformat)

    def __init__(self, at):
        self._at = at

    def now(self, _):
        return self._at


def test_nothing_yet(tmp_path):
    shown = StringIO()
    status.show(status.cells(tmp_path, None), Console(file=shown))
    assert shown.getvalue() == "no runs yet\n"
