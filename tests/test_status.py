"""`cleanba status`: the state of every cell, from the records alone."""

import json
import os
from dataclasses import replace
from io import StringIO

import pytest
import yaml
from cells import SETTINGS, make_spec
from rich.console import Console

from runners import status
from runners.record import claim, prepare, read_status, write_status

DEAD_PID = 2**22 + 1  # above the largest pid that Linux gives


def record(results, spec, state, reason="", **changes):
    folder = spec.folder(results)
    prepare(folder, spec)
    write_status(folder, replace(read_status(folder), state=state, reason=reason, **changes))
    return folder


@pytest.fixture
def results(tmp_path):
    record(tmp_path, make_spec(seed=1), "complete")
    record(tmp_path, make_spec(seed=2), "failed", "RuntimeError: actor 1 died")
    record(tmp_path, make_spec(seed=3), "running", pid=os.getpid())
    record(tmp_path, make_spec(seed=4), "running", pid=DEAD_PID, env_steps=1234, updated_at="2026-01-02T03:04:05+00:00")
    record(tmp_path, make_spec(seed=5, experiment="other"), "invalid", "2 usable CPUs declared, 1 found")
    return tmp_path


def test_states_and_reasons(results):
    found = {cell.seed: (cell.state, cell.reason) for cell in status.cells(results, None)}
    assert found == {
        1: ("complete", ""),
        2: ("failed", "RuntimeError: actor 1 died"),
        3: ("running", ""),
        4: ("failed", "its process is gone; last heard of at 2026-01-02T03:04:05+00:00, 1,234 env steps"),
        5: ("invalid", "2 usable CPUs declared, 1 found"),
    }


def test_the_lock_of_a_worker_is_the_truth_on_this_machine(tmp_path):
    """And its pid a hint, which another process may have by now."""
    started = {"started_at": "2026-01-02T03:04:05+00:00", "updated_at": "2026-01-02T03:04:09+00:00"}
    folder = record(tmp_path, make_spec(), "running", pid=os.getpid(), **started)  # older than this process
    gone = ("failed", "its process is gone; last heard of at 2026-01-02T03:04:09+00:00, 0 env steps")
    assert status.state_of(folder) == gone
    with claim(folder):
        assert status.state_of(folder) == ("running", "")
    assert status.state_of(folder) == gone
    write_status(folder, replace(read_status(folder), pid=DEAD_PID))
    with claim(folder):  # of another process namespace, whose pids are not ours
        assert status.state_of(folder) == ("running", "")


def test_one_experiment_by_name(results):
    assert {cell.seed for cell in status.cells(results, "trial")} == {1, 2, 3, 4}
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
    assert found == {1: "complete", 2: "failed", 3: "running", 4: "failed", 9: "pending"}


def test_json_has_the_documented_fields(results):
    listed = json.loads(status.as_json(status.cells(results, "trial")))
    assert {tuple(entry) for entry in listed} == {
        ("run_id", "experiment", "algorithm", "env_id", "seed", "profile", "state", "reason")
    }
    first = next(entry for entry in listed if entry["seed"] == 2)
    assert first == {
        "run_id": make_spec(seed=2).run_id, "experiment": "trial", "algorithm": "impala", "env_id": "CartPole-v1",
        "seed": 2, "profile": "one", "state": "failed", "reason": "RuntimeError: actor 1 died",
    }  # fmt: skip


def test_what_is_shown_counts_and_lists_what_is_not_complete(results):
    shown = StringIO()
    status.show(status.cells(results, None), Console(file=shown, width=80))
    lines = shown.getvalue().splitlines()
    assert lines[0] == "2 failed, 1 running, 1 invalid, 1 complete"
    assert lines[1] == (
        f"failed   {make_spec(seed=2).run_id} trial impala CartPole-v1 one s2: RuntimeError: actor 1 died"
    )
    assert [line.split()[0] for line in lines[1:]] == ["failed", "failed", "running", "invalid"]


def test_nothing_yet(tmp_path):
    shown = StringIO()
    status.show(status.cells(tmp_path, None), Console(file=shown))
    assert shown.getvalue() == "no runs yet\n"
