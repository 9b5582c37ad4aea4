"""Worker and launcher: every cell in its own process, every end known and told."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from io import StringIO

import fake_worker
import pytest
from cells import FAKE_WORKER, PROFILE, ROOT, make_spec
from rich.console import Console

from runners import launcher, machine, worker
from runners.launcher import gpu_environment, launch, select, share_cpus, slot_sets, unfinished
from runners.machine import host_facts
from runners.options import BUSY, Options
from runners.progress import LiveDisplay, PlainDisplay, describe
from runners.record import last_metrics, prepare, read_rows, read_status, write_status
from runners.record_claim import claim
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
        fake_worker.KILLED: ("interrupted", "the worker was ended by SIGKILL"),
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
    assert "interrupted impala-CartPole-v1-a0-l0-d1-one-s3: the worker was ended by SIGKILL" in shown


def test_complete_runs_are_skipped_failed_ones_too_unless_asked_for_and_interrupted_ones_go_on(go, tmp_path):
    cells = [make_spec(seed=1), make_spec(seed=2), make_spec(seed=fake_worker.KILLED), make_spec(seed=8)]
    go(cells[:3])
    assert unfinished(cells, tmp_path) == cells[2:]
    assert unfinished(cells, tmp_path, retry_failed=True) == cells[1:]


def test_a_failed_run_begins_a_new_segment(go, tmp_path):
    cells = [make_spec(seed=1), make_spec(seed=2)]
    go(cells)
    go(unfinished(cells, tmp_path, retry_failed=True))
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


def test_a_run_has_no_more_cpus_than_its_own_profile_declares(go):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs 2 CPUs")
    cells = [make_spec(seed=6), make_spec(seed=7, profile=dataclasses.replace(PROFILE, name="two", cpus=2))]
    outcomes, _ = go(cells, jobs=1)
    counts = {seed: len(json.loads(log_line(outcomes[seed], "cpus "))) for seed in (6, 7)}
    assert counts == {6: 1, 7: 2}


def test_jobs_without_a_cell_share_no_cpus(go, tmp_path):
    cell = make_spec()
    go([cell], jobs=1000)
    assert json.loads((cell.folder(tmp_path) / "machine.0.json").read_text())["cpus_shared"] is False


def test_cpus_are_shared_where_a_quota_has_fewer_than_the_machine(monkeypatch):
    two = [make_spec(seed=seed, profile=dataclasses.replace(PROFILE, name="two", cpus=2)) for seed in (1, 2)]
    monkeypatch.setattr(machine, "_cpu_quota", lambda _: 2.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert share_cpus(two, jobs=2)
    assert not share_cpus(two, jobs=1)


def test_a_process_that_slurm_starts_shares_none_of_its_cpus(monkeypatch):
    """Each of the two has the two CPUs that the profile states; started here they would be four."""
    profile = dataclasses.replace(PROFILE, name="two", cpus=2, layout="a0-l0-d2")
    cell = make_spec(profile=profile, settings=make_spec().settings | {"num_shards": 2, "num_minibatches": 1})
    monkeypatch.setattr(machine, "usable_cpus", lambda: 2)
    assert share_cpus([cell], jobs=1)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert not share_cpus([cell], jobs=1)


def log_line(outcome, start):
    """What stands after `start` in the last such line of a run's log."""
    return [line for line in outcome.log.read_text().splitlines() if line.startswith(start)][-1].removeprefix(start)


def test_slot_sets():
    assert slot_sets([0, 1, 2, 3], jobs=2, size=2) == [(0, 1), (2, 3)]
    assert slot_sets([4, 7], jobs=2, size=1) == [(4,), (7,)]
    assert slot_sets([4, 7], jobs=2, size=2) == [(4, 7), (4, 7)]  # too few: shared
    assert slot_sets([4], jobs=1, size=10) == [(4,)]  # where a mismatch is allowed
    assert slot_sets([], jobs=2, size=0) == [(), ()]  # the GPUs of CPU profiles


def test_jobs_have_gpus_apart_and_share_the_memory_of_those_they_share():
    apart, shared = slot_sets(["0", "1", "2", "3"], jobs=2, size=2), slot_sets(["0", "1"], jobs=3, size=1)
    assert gpu_environment(apart[1], apart) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert gpu_environment(shared[0], shared) == {
        "CUDA_VISIBLE_DEVICES": "0", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.450",
    }  # fmt: skip
    assert gpu_environment(shared[1], shared) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert gpu_environment((), apart) == {}


def test_workers_of_gpu_profiles_see_the_gpus_of_their_slot(go, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    gpu = dataclasses.replace(PROFILE, platform="gpu", layout="a0-l1-d1")
    go([make_spec(seed=1, profile=gpu), make_spec(seed=1)], jobs=2)
    facts = {
        spec.profile.platform: json.loads((spec.folder(tmp_path) / "machine.0.json").read_text())["environment"]
        for spec in (make_spec(seed=1, profile=gpu), make_spec(seed=1))
    }
    assert facts["gpu"]["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert facts["cpu"]["CUDA_VISIBLE_DEVICES"] == "GPU-a, GPU-b"  # as it was


def test_ctrl_c_stops_the_children_and_marks_them(go, tmp_path):
    cells = [make_spec(seed=fake_worker.HANGS), make_spec(seed=fake_worker.GOOD, experiment="later")]
    folder = cells[0].folder(tmp_path)
    threading.Thread(target=interrupt_when, args=[lambda: reached_update_3(folder)]).start()
    started = time.monotonic()
    outcomes, _ = go(cells, jobs=1)
    assert time.monotonic() - started < 10
    assert {seed: (outcome.state, outcome.reason) for seed, outcome in outcomes.items()} == {
        fake_worker.HANGS: ("interrupted", "Ended: by SIGTERM")
    }
    assert read_status(folder).reason == "Ended: by SIGTERM"
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


def test_a_second_ctrl_c_loses_nothing(go, tmp_path):
    cells = [make_spec(seed=fake_worker.HANGS), make_spec(seed=fake_worker.HANGS, experiment="beside")]
    folders = [cell.folder(tmp_path) for cell in cells]

    def interrupt_twice():
        interrupt_when(lambda: all(map(reached_update_3, folders)))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_twice).start()
    go(cells, jobs=2)
    assert [read_status(folder).reason for folder in folders] == ["Ended: by SIGTERM"] * 2


LAUNCH = """
import signal, sys
for name in sys.argv[2:]:  # before the launcher looks, as a shell that starts it in the background does
    signal.signal(int(name), signal.SIG_IGN)
from pathlib import Path
from cells import FAKE_WORKER, make_spec
from runners.launcher import launch
from runners.options import Options
outcomes = launch([make_spec(seed=4)], Path(sys.argv[1]), jobs=1, options=Options(), command=FAKE_WORKER)
print([outcome.reason for outcome in outcomes])
"""


def launch_apart(tmp_path, ignored=()):
    """A launcher in a process of its own with a run that hangs; it and the run's folder, once the run is under way."""
    arguments = [str(tmp_path), *(str(int(name)) for name in ignored)]
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH, *arguments], cwd=ROOT / "tests", stdout=subprocess.PIPE, text=True
    )
    folder = make_spec(seed=fake_worker.HANGS).folder(tmp_path)
    assert within_seconds(20, lambda: folder.exists() and reached_update_3(folder))
    return process, folder


def within_seconds(seconds, condition):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_launcher_that_is_asked_to_end_takes_its_workers_along(tmp_path, number):
    process, folder = launch_apart(tmp_path)
    process.send_signal(number)
    assert process.communicate(timeout=20)[0].splitlines()[-1] == "['Ended: by SIGTERM']"
    assert read_status(folder).reason == "Ended: by SIGTERM"


def test_a_launcher_in_the_background_ends_on_sigterm_alone(tmp_path):
    process, folder = launch_apart(tmp_path, ignored=(signal.SIGINT, signal.SIGHUP))
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert read_status(folder).state == "running"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0].splitlines()[-1] == "['Ended: by SIGTERM']"


def test_the_worker_of_a_killed_launcher_ends(tmp_path):
    process, folder = launch_apart(tmp_path)
    process.kill()
    process.communicate()
    assert within_seconds(10, lambda: read_status(folder).state != "running")
    assert read_status(folder).reason == "Ended: by SIGTERM"
    assert within_seconds(10, lambda: not process_exists(read_status(folder).pid))


def test_a_worker_whose_launcher_is_gone_already_does_not_begin(tmp_path):
    cell = make_spec()
    prepare(tmp_path / "run", cell)
    gone = Options(launcher_pid=os.getpid())  # which is not the parent of this process
    code = f"""
from pathlib import Path
import fake_worker
from runners.options import Options
from runners.record import read_spec
folder = Path({str(tmp_path / "run")!r})
fake_worker.run_cell(read_spec(folder), folder, fake_worker.count, Options.from_json('{gone.to_json()}'), measure=dict)
"""
    between = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    subprocess.run([sys.executable, "-c", between], cwd=ROOT / "tests", check=True)
    assert read_status(tmp_path / "run").reason == "Ended: its launcher is gone"


def test_a_child_that_does_not_stop_is_killed_and_marked(go, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(launcher.subprocess.Popen, "terminate", lambda self: None)  # a worker deaf to SIGTERM
    cell = make_spec(seed=fake_worker.HANGS)
    threading.Thread(target=interrupt_when, args=[lambda: reached_update_3(cell.folder(tmp_path))]).start()
    outcomes, _ = go([cell], jobs=1)
    assert outcomes[cell.seed].reason == "the worker was ended by SIGKILL"
    status = read_status(cell.folder(tmp_path))
    assert (status.state, status.env_steps) == ("interrupted", 60)


def test_a_record_that_another_worker_has_is_left_alone(go, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "HELD_SECONDS", 0.2)
    cell = make_spec()
    folder = cell.folder(tmp_path)
    prepare(folder, cell)
    write_status(folder, dataclasses.replace(read_status(folder), env_steps=123))
    with claim(folder):
        outcomes, _ = go([cell])
    assert (outcomes[1].state, outcomes[1].reason) == ("busy", "another worker has this record")
    assert not (folder / "log.txt").exists()  # no worker was started for it
    assert read_status(folder).state == "pending"
    assert read_status(folder).env_steps == 123
    outcomes, _ = go([cell])  # the other is gone
    assert outcomes[1].state == "complete"


def test_a_record_whose_worker_is_about_to_end_is_waited_for(go, tmp_path):
    """The worker of a launcher that was killed ends when its program lets it: one command goes on with its cell."""
    cells = [make_spec(seed=1), make_spec(seed=7)]
    folder = cells[0].folder(tmp_path)
    prepare(folder, cells[0])
    claimed = threading.Event()

    def hold():
        with claim(folder):
            claimed.set()
            time.sleep(1.5)

    holder = threading.Thread(target=hold)
    holder.start()
    claimed.wait()
    outcomes, _ = go(cells, jobs=1)
    holder.join()
    assert outcomes[1].state == "complete"


def test_a_record_that_another_launcher_has_completed_is_left_as_it_is(go, tmp_path):
    cell = make_spec()
    go([cell])
    before = (cell.folder(tmp_path) / "status.json").read_bytes()
    outcomes, _ = go([cell])  # whose launcher looked before the other one was through
    assert (outcomes[1].state, outcomes[1].reason) == ("complete", "")
    assert (cell.folder(tmp_path) / "status.json").read_bytes() == before
    assert not (cell.folder(tmp_path) / "machine.1.json").exists()


@pytest.fixture
def unconfined(monkeypatch):
    """For a run in this process, which needs its CPUs afterwards."""
    monkeypatch.setattr(machine, "confine", lambda *_: None)


class Mirror:
    """In the place of W&B's: what it is told, and what it does when the run is over."""

    def __init__(self, finish=lambda: None):
        self.exit_codes, self._finish = [], finish

    def metrics(self, row):
        pass

    def finish(self, exit_code):
        self.exit_codes.append(exit_code)
        self._finish()


def test_a_signal_after_the_record_is_closed_changes_nothing_of_it(tmp_path, monkeypatch, unconfined):
    mirror = Mirror(lambda: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(worker, "start_mirror", lambda *_, **__: mirror)
    prepare(tmp_path, make_spec())
    assert run_cell(make_spec(), tmp_path, fake_worker.count, Options(), measure=host_facts) == 0
    assert mirror.exit_codes == [0]
    assert (read_status(tmp_path).state, read_status(tmp_path).reason) == ("complete", "")


def test_a_worker_that_ends_badly_after_it_closed_its_record_leaves_it_complete(go, tmp_path):
    cell = make_spec(seed=fake_worker.ENDS_BADLY)
    outcomes, _ = go([cell])
    assert outcomes[cell.seed].state == read_status(cell.folder(tmp_path)).state == "complete"


def fail(*_, **__):
    raise RuntimeError("JAX cannot\n  start")


@pytest.mark.parametrize("part", ["machine.confine", "write_machine", "start_mirror", "measure"])
def test_a_failure_at_the_start_has_its_own_sentence_and_not_the_last_runs(tmp_path, monkeypatch, unconfined, part):
    prepare(tmp_path, make_spec())
    write_status(tmp_path, dataclasses.replace(read_status(tmp_path), state="failed", reason="of yesterday"))
    if part != "measure":
        monkeypatch.setattr(f"runners.worker.{part}", fail)
    measure = fail if part == "measure" else host_facts
    assert run_cell(make_spec(), tmp_path, fake_worker.count, Options(), measure=measure) == 1
    assert (read_status(tmp_path).state, read_status(tmp_path).reason) == ("failed", "RuntimeError: JAX cannot start")


def test_a_worker_that_cannot_even_begin_has_the_last_line_of_its_log(tmp_path):
    cell = make_spec()
    prepare(cell.folder(tmp_path), cell)
    write_status(cell.folder(tmp_path), dataclasses.replace(read_status(cell.folder(tmp_path)), state="failed"))
    command = (sys.executable, "-c", "raise RuntimeError('jax is imported already')")
    display = PlainDisplay(Console(file=StringIO()), 1)
    (outcome,) = launch([cell], tmp_path, jobs=1, options=Options(), command=command, display=display)
    assert outcome.reason == "the worker ended with exit code 1 (RuntimeError: jax is imported already)"
    assert read_status(cell.folder(tmp_path)).reason == outcome.reason


def test_what_went_wrong_beside_a_run_is_shown_when_it_is_finished(go, tmp_path, monkeypatch):
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "wandb.py").write_text(
        "Settings = dict\ndef teardown(): pass\ndef init(**_): raise OSError('no network')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'stub'}:{ROOT}")
    monkeypatch.delenv("WANDB_MODE")
    cell = make_spec()
    outcomes, shown = go([cell], track=True)
    warnings = [f"W&B {mode} mirror failed, the run goes on: OSError: no network" for mode in ("online", "offline")]
    assert outcomes[1].state == "complete"
    assert read_status(cell.folder(tmp_path)).warnings == warnings
    assert f"complete {cell.name}: warning: {warnings[0]}; warning: {warnings[1]} (1 of 1 runs)" in shown


def test_a_gpu_profile_is_refused_where_there_is_no_driver(monkeypatch):
    cell = make_spec(profile=dataclasses.replace(PROFILE, platform="gpu"))
    monkeypatch.setattr(machine, "default_platform", lambda: "cpu")
    assert launcher.check_machine([cell]) == [
        "the machine is not profile one: platform gpu declared, no NVIDIA driver found"
    ]
    monkeypatch.setattr(machine, "default_platform", lambda: "gpu")
    assert launcher.check_machine([cell]) == []


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
    assert status.state == "interrupted"
    assert "SIGTERM" in status.reason


def test_select_by_part_pattern_and_id():
    cells = [make_spec(seed=seed, algorithm=label) for label in ("impala", "other") for seed in (1, 2)]
    assert select(cells, None) == cells
    assert select(cells, "other") == cells[2:]
    assert select(cells, "impala-*-s2") == [cells[1]]
    assert select(cells, cells[0].run_id[:6]) == [cells[0], cells[2]]
    with pytest.raises(ValueError, match="--only pong: no run has such a name"):
        select(cells, "pong")


def test_the_environment_is_refused_when_jax_is_already_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", object())
    with pytest.raises(RuntimeError, match="jax is imported already"):
        set_environment(make_spec())


def test_run_cell_says_busy_without_touching_the_record(tmp_path, capsys):
    cell = make_spec()
    prepare(tmp_path / "run", cell)
    before = (tmp_path / "run" / "status.json").read_bytes()
    with claim(tmp_path / "run"):
        assert run_cell(cell, tmp_path / "run", fake_worker.count, Options(), measure=dict) == BUSY
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
