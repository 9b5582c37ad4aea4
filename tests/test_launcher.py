"""Worker and launcher: every cell in its own process, every end known and told."""

import dataclasses
import fcntl
import json
import os
import re
import signal
import sys
import threading
import time
from io import StringIO

import fake_worker
import pytest
from cells import FAKE_WORKER, PROFILE, ROOT, SETTINGS, make_spec
from rich.console import Console

from runners import launcher
from runners.launcher import cpu_sets, launch, select, unfinished
from runners.options import BUSY, Options
from runners.progress import LiveDisplay, PlainDisplay, describe
from runners.record import last_metrics, prepare, read_rows, read_status, write_status
from runners.worker import run_cell, set_environment


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def go(tmp_path):
    """Launch cells on the fake worker; the outcomes and what was displayed."""

    def start(cells, jobs=2, **options):
        shown = StringIO()
        display = PlainDisplay(Console(file=shown, width=200), len(cells))
        outcomes = launch(cells, tmp_path, jobs=jobs, options=Options(**options), command=FAKE_WORKER, display=display)
        return {outcome.spec.seed: outcome for outcome in outcomes}, shown.getvalue()

    return start


def test_good_runs_are_complete_and_failures_are_told(go, tmp_path):
    cells = [make_spec(seed=seed) for seed in (1, 2, 3, 5)]
    outcomes, shown = go(cells)
    assert {seed: (outcome.state, outcome.reason) for seed, outcome in outcomes.items()} == {
        fake_worker.GOOD: ("complete", ""),
        fake_worker.RAISES: ("failed", "RuntimeError: actor 1 died: no such game"),
        fake_worker.KILLED: ("failed", "the worker was ended by SIGKILL"),
        fake_worker.STOPS_EARLY: ("failed", "RuntimeError: training ended after 60 of 200 env steps"),
    }
    assert "no such game" in outcomes[fake_worker.RAISES].log.read_text()  # with its traceback
    for cell in cells:
        status = read_status(cell.folder(tmp_path))
        assert (status.state, status.reason) == (outcomes[cell.seed].state, outcomes[cell.seed].reason)
    good, killed = cells[0].folder(tmp_path), cells[2].folder(tmp_path)
    assert len(read_rows(good, "episodes")) == 10
    assert len(read_rows(killed, "episodes")) == 3  # all that was written before
    assert (good / "metrics.parquet").exists()
    assert json.loads((good / "machine.0.json").read_text())["usable_cpus"] == 1
    assert "complete impala-CartPole-v1-a0-l0-d1-one-s1" in shown
    assert "failed   impala-CartPole-v1-a0-l0-d1-one-s3: the worker was ended by SIGKILL" in shown


def test_complete_runs_are_skipped_and_failed_ones_begin_a_new_segment(go, tmp_path):
    cells = [make_spec(seed=1), make_spec(seed=2)]
    go(cells)
    assert unfinished(cells, tmp_path) == [cells[1]]
    go(unfinished(cells, tmp_path))
    assert read_status(cells[1].folder(tmp_path)).segment == 1
    assert read_status(cells[0].folder(tmp_path)).segment == 0
    rows = read_rows(cells[1].folder(tmp_path), "metrics")
    assert rows[["segment", "update"]].to_numpy().tolist() == [[1, 1], [1, 2], [1, 3]]


def test_jobs_run_side_by_side_on_cpus_apart(go):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs 2 CPUs")
    cells = [make_spec(seed=seed) for seed in (6, 7)]
    outcomes, _ = go(cells, jobs=2)
    sets = [re.search(r"cpus (\[\d+\])", outcomes[seed].log.read_text()).group(1) for seed in (6, 7)]
    assert len(set(sets)) == 2


def test_cpu_sets():
    assert cpu_sets([0, 1, 2, 3], jobs=2, cpus=2) == [(0, 1), (2, 3)]
    assert cpu_sets([4, 7], jobs=2, cpus=1) == [(4,), (7,)]
    assert cpu_sets([4, 7], jobs=2, cpus=2) == [(4, 7), (4, 7)]  # too few: shared
    assert cpu_sets([4], jobs=1, cpus=10) == [(4,)]  # where a mismatch is allowed


def test_ctrl_c_stops_the_children_and_marks_them(go, tmp_path):
    cells = [make_spec(seed=fake_worker.HANGS), make_spec(seed=fake_worker.GOOD, experiment="later")]
    folder = cells[0].folder(tmp_path)
    threading.Thread(target=interrupt_when, args=[lambda: reached_update_3(folder)]).start()
    started = time.monotonic()
    outcomes, _ = go(cells, jobs=1)
    assert time.monotonic() - started < 10
    assert {seed: (outcome.state, outcome.reason) for seed, outcome in outcomes.items()} == {
        fake_worker.HANGS: ("failed", "Stopped: by SIGTERM")
    }
    assert read_status(folder).reason == "Stopped: by SIGTERM"
    assert not process_exists(read_status(folder).pid)
    assert len(read_rows(folder, "metrics")) == 3


def reached_update_3(folder):
    return (last_metrics(folder) or {}).get("update") == 3


def interrupt_when(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def process_exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_that_does_not_stop_is_killed_and_marked(go, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(launcher.subprocess.Popen, "terminate", lambda self: None)  # a worker deaf to SIGTERM
    cell = make_spec(seed=fake_worker.HANGS)
    threading.Thread(target=interrupt_when, args=[lambda: reached_update_3(cell.folder(tmp_path))]).start()
    outcomes, _ = go([cell], jobs=1)
    assert outcomes[cell.seed].reason == "the worker was ended by SIGKILL"
    status = read_status(cell.folder(tmp_path))
    assert (status.state, status.env_steps) == ("failed", 60)


def test_a_record_that_another_worker_has_is_left_alone(go, tmp_path):
    cell = make_spec()
    folder = cell.folder(tmp_path)
    prepare(folder, cell)
    write_status(folder, dataclasses.replace(read_status(folder), env_steps=123))
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    outcomes, _ = go([cell])
    os.close(handle)
    assert (outcomes[1].state, outcomes[1].reason) == ("busy", "another worker has this record")
    assert read_status(folder).state == "running"
    assert read_status(folder).env_steps == 123
    outcomes, _ = go([cell])  # the other is gone
    assert outcomes[1].state == "complete"


def test_a_machine_that_is_not_the_profile_is_refused_or_filed_as_invalid(go, tmp_path):
    cell = make_spec(profile=dataclasses.replace(PROFILE, memory_gib=2.0**17))
    outcomes, _ = go([cell])
    assert outcomes[1].state == "failed"
    assert outcomes[1].reason.startswith("ValueError: the machine is not profile one: 131072 GiB of memory declared, ")
    assert len(read_rows(cell.folder(tmp_path), "metrics")) == 0
    outcomes, _ = go([cell], allow_mismatch=True)
    assert outcomes[1].state == "invalid"
    assert outcomes[1].reason.startswith("131072 GiB of memory declared, ")
    assert len(read_rows(cell.folder(tmp_path), "metrics")) == 10
    assert unfinished([cell], tmp_path) == [cell]
    assert unfinished([cell], tmp_path, allow_mismatch=True) == []


def test_an_existing_record_of_another_meaning_is_refused_before_anything_runs(go, tmp_path):
    cells = [make_spec(seed=1), make_spec(seed=2, algorithm="b")]
    prepare(cells[1].folder(tmp_path), make_spec(seed=2, algorithm="a"))
    with pytest.raises(ValueError, match="holds a record with algorithm a, not b"):
        unfinished(cells, tmp_path)
    assert not (cells[0].folder(tmp_path) / "log.txt").exists()


def test_when_a_record_cannot_be_begun_the_children_are_stopped(go, tmp_path):
    cells = [make_spec(seed=fake_worker.HANGS), make_spec(seed=1, experiment="taken")]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "taken").write_text("a file where a folder belongs")
    with pytest.raises(NotADirectoryError):
        go(cells)
    status = read_status(cells[0].folder(tmp_path))
    assert status.state == "failed"
    assert "SIGTERM" in status.reason


def test_select_by_part_pattern_and_id():
    cells = [make_spec(seed=seed, algorithm=label) for label in ("impala", "other") for seed in (1, 2)]
    assert select(cells, None) == cells
    assert select(cells, "other") == cells[2:]
    assert select(cells, "impala-*-s2") == [cells[1]]
    assert select(cells, cells[0].run_id[:6]) == [cells[0], cells[2]]
    with pytest.raises(ValueError, match="--only pong: no run has such a name"):
        select(cells, "pong")


def test_a_layout_of_several_processes_is_named():
    cell = make_spec(
        profile=dataclasses.replace(PROFILE, layout="a0-l0-d2"),
        settings=SETTINGS | {"num_shards": 2, "num_minibatches": 1},
    )
    assert launcher.check_processes([cell]) == [
        "profile one: layout a0-l0-d2 has 2 processes; allowed here: one process (-d1)"
    ]
    assert launcher.check_processes([make_spec()]) == []


def test_the_environment_is_refused_when_jax_is_already_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", object())
    with pytest.raises(RuntimeError, match="jax is imported already"):
        set_environment(make_spec())


def test_run_cell_says_busy_without_touching_the_record(tmp_path, capsys):
    cell = make_spec()
    prepare(tmp_path / "run", cell)
    handle = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    before = (tmp_path / "run" / "status.json").read_bytes()
    assert run_cell(cell, tmp_path / "run", fake_worker.count, Options(), measure=dict) == BUSY
    os.close(handle)
    assert (tmp_path / "run" / "status.json").read_bytes() == before


def test_words_of_the_progress():
    spec = make_spec()
    assert describe(spec, None) == "0 of 200 env steps"
    row = {"env_steps": 50, "wall_seconds": 5.0, "charts/SPS": 1234.4}
    assert describe(spec, row) == "50 of 200 env steps, 1,234 SPS, 0:00:15 left"
    row["charts/avg_episodic_return"] = -20.71
    assert describe(spec, row) == "50 of 200 env steps, 1,234 SPS, return -20.7, 0:00:15 left"


def test_the_live_display_shows_a_bar_per_run(tmp_path):
    shown = StringIO()
    display = LiveDisplay(Console(file=shown, force_terminal=True, width=160), 2)
    cell = make_spec()
    prepare(cell.folder(tmp_path), cell)
    display.started(cell, cell.folder(tmp_path))
    row = {"env_steps": 50, "wall_seconds": 5.0, "charts/SPS": 10.0, "charts/avg_episodic_return": 9.5}
    (cell.folder(tmp_path) / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    display.look([cell.folder(tmp_path)])
    display.finished(cell, cell.folder(tmp_path), "complete", "")
    display.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue())
    assert "50 of 200 env steps, 10 SPS, return 9.5, 0:00:15 left" in text
    assert "1 of 2" in text
    assert f"complete {cell.name}" in text


def test_the_plain_display_speaks_every_half_minute(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("runners.progress.monotonic", lambda: clock[0])
    shown = StringIO()
    display = PlainDisplay(Console(file=shown, width=200), 1)
    cell = make_spec()
    display.started(cell, tmp_path)
    for clock[0] in (10.0, 29.9, 30.0, 45.0, 60.0):
        display.look([tmp_path])
    assert shown.getvalue().splitlines() == [
        f"started  {cell.name}",
        *[f"running  {cell.name}: 0 of 200 env steps"] * 2,
    ]
