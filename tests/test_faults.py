"""Faults: what docs/reliability.md promises, provoked. Run by `make test-faults`, which prints the figures.

The trainers are parameters: one that counts, so that a run is all store and launcher, and the real one on CartPole.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from time import monotonic, process_time

import pandas as pd
import psutil
import pytest
import sabotaged_worker
from cells import ROOT, make_spec

from runners import launcher, status
from runners.launcher import WORKER, launch, unfinished
from runners.options import Options
from runners.record import last_metrics, prepare, read_rows, read_status, write_status
from runners.spec import RunSpec

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("FAULT_KILLS", "200"))  # of each trainer
STARTS = 500  # after which runs that are still not complete never will be
CARTPOLE = {
    "total_env_steps": 9600, "protocol": "classic_control", "network": "mlp", "num_envs": 16, "num_actor_groups": 2,
    "num_shards": 2, "num_minibatches": 1, "rollout_length": 10, "fingerprint_every_updates": 1, "segment_updates": 10,
}  # fmt: skip
OF_ONE_START = ["schema", "segment", "wall_seconds", "charts/SPS"]  # columns that another start has other values in


@dataclass(frozen=True)
class Trainer:
    name: str
    command: Sequence[str]
    cells: list[RunSpec]
    rows: int  # of metrics, within which a launch is killed


COUNTING = Trainer(
    "counting",
    (sys.executable, str(ROOT / "tests" / "fault_worker.py")),
    [make_spec(seed=seed, settings=make_spec().settings | {"total_env_steps": 800}) for seed in (1, 2)],
    70,
)
REAL = Trainer("cartpole", WORKER, [make_spec(settings=CARTPOLE)], 55)


@pytest.fixture(params=[COUNTING, REAL], ids=lambda trainer: trainer.name)
def trainer(request):
    return request.param


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


LAUNCH = """
import json, sys
from pathlib import Path
from runners.launcher import launch, unfinished
from runners.options import Options
from runners.spec import RunSpec
results, jobs, command, cells = json.loads(sys.argv[1])
cells = unfinished([RunSpec.from_json(cell) for cell in cells], Path(results))
outcomes = launch(cells, Path(results), jobs=jobs, options=Options(), command=command) if cells else []
sys.exit(any(outcome.state != "complete" for outcome in outcomes))
"""


def start(trainer: Trainer, results: Path, jobs: int = 2) -> subprocess.Popen:
    """A launcher in a process of its own, as `cleanba run` is."""
    told = json.dumps([str(results), jobs, trainer.command, [cell.to_json() for cell in trainer.cells]])
    return subprocess.Popen([sys.executable, "-c", LAUNCH, told], stdout=subprocess.DEVNULL, start_new_session=True)


def finish(trainer: Trainer, results: Path) -> int:
    """Run again until every cell is complete; how many commands that took. A failed cell is an error."""
    for commands in range(1, STARTS):
        start(trainer, results).wait()
        states = [status.state_of(cell.folder(results)) for cell in trainer.cells]
        assert not [state for state in states if state[0] in ("failed", "invalid")], states
        if all(state[0] == "complete" for state in states):
            return commands
    raise AssertionError(f"not complete after {STARTS} commands: {states}")


def rows(trainer: Trainer, results: Path) -> list[pd.DataFrame]:
    """Every row of every record, without what differs between two starts of one run."""
    tables = [
        read_rows(cell.folder(results), table)
        for cell in trainer.cells
        for table in ("metrics", "episodes", "fingerprints")
    ]
    return [table.drop(columns=[name for name in OF_ONE_START if name in table]) for table in tables]


def assert_same_rows(found: list[pd.DataFrame], reference: list[pd.DataFrame]) -> None:
    for table, expected in zip(found, reference, strict=True):
        pd.testing.assert_frame_equal(table, expected, check_exact=True, check_like=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The rows of runs that nothing happened to, made once for each trainer."""
    made = {}

    def of(trainer):
        if trainer.name not in made:
            results = tmp_path_factory.mktemp("uninterrupted")
            os.environ["WANDB_MODE"] = "disabled"
            assert finish(trainer, results) == 1
            made[trainer.name] = rows(trainer, results)
            assert len(made[trainer.name][1]) > 50  # episodes
        return made[trainer.name]

    return of


def rows_written(trainer: Trainer, results: Path) -> int:
    """Of metrics, by all starts; a record that is compacted counts as a thousand."""
    tables = [cell.folder(results) / "metrics.jsonl" for cell in trainer.cells]
    return sum(
        table.read_bytes().count(b"\n") if table.exists() else 1000 * table.with_suffix(".parquet").exists()
        for table in tables
    )


def kill_at_random(trainer: Trainer, results: Path, chance: random.Random) -> str:
    """Start a launcher, and kill -9 a worker, the launcher or both: one time in four within its first second, else when
    some more rows are written, or up to 50 ms later. Who was killed; "" when all were through before."""
    who = chance.choice(["worker", "launcher", "both"])
    goal = rows_written(trainer, results) + chance.randrange(trainer.rows)
    process = start(trainer, results)
    if chance.random() < 0.25:
        time.sleep(chance.random())
    else:
        while process.poll() is None and rows_written(trainer, results) <= goal:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.05))
    workers = psutil.Process(process.pid).children() if process.poll() is None else []
    victims = {"worker": workers[:1], "launcher": [process], "both": [process, *workers]}[who]
    killed = bool(workers)
    for victim in victims:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            victim.kill()
    process.wait()
    return who if killed else ""


def test_killed_runs_lose_and_double_nothing(trainer, uninterrupted, tmp_path):
    reference, chance = uninterrupted(trainer), random.Random(5)
    kills, experiments, segments, after_kill = Counter(), 0, 0, []
    while sum(kills.values()) < KILLS:
        results = tmp_path / str(experiments)
        experiments += 1
        for _ in range(chance.randrange(1, 6)):  # kills before it is left in peace
            kills[kill_at_random(trainer, results, chance)] += 1
        del kills[""]
        after_kill.append(finish(trainer, results))
        assert_same_rows(rows(trainer, results), reference)
        segments += sum(len(list(cell.folder(results).glob("machine.*.json"))) for cell in trainer.cells)
    print(
        f"\n{trainer.name}: {sum(kills.values())} kills ({dict(kills)}) in {experiments} experiments, "
        f"{segments} segments, complete after {sum(after_kill) / experiments:.2f} more commands "
        f"(at most {max(after_kill)})"
    )


@contextmanager
def under_way(trainer: Trainer, results: Path, updates: int = 5):
    """A launcher and the worker of its first cell, once that has made some updates."""
    process, folder = start(trainer, results), trainer.cells[0].folder(results)
    wait_until(lambda: (last_metrics(folder) or {"update": 0})["update"] >= updates)
    yield process, psutil.Process(read_status(folder).pid)
    with suppress(ProcessLookupError):
        process.kill()
    process.wait()


def wait_until(condition) -> None:
    deadline = monotonic() + 240
    while not condition():
        assert monotonic() < deadline, "it did not come to that in four minutes"
        time.sleep(0.05)


def test_sigterm_is_an_end_that_the_next_command_goes_on_from(trainer, uninterrupted, tmp_path):
    with under_way(trainer, tmp_path) as (process, _):
        process.terminate()
        process.wait()
    state, reason = status.state_of(trainer.cells[0].folder(tmp_path))
    assert state == "interrupted"
    assert reason.startswith("Ended: by SIGTERM")
    assert finish(trainer, tmp_path) == 1
    assert_same_rows(rows(trainer, tmp_path), uninterrupted(trainer))


def test_a_stopped_worker_is_left_alone_and_goes_on(trainer, uninterrupted, tmp_path):
    with under_way(trainer, tmp_path) as (process, worker):
        worker.suspend()
        other = start(trainer, tmp_path)
        time.sleep(2)
        assert status.state_of(trainer.cells[0].folder(tmp_path)) == ("running", "")
        worker.resume()
        process.wait()
        other.wait()
    assert [status.state_of(cell.folder(tmp_path))[0] for cell in trainer.cells] == ["complete"] * len(trainer.cells)
    assert_same_rows(rows(trainer, tmp_path), uninterrupted(trainer))


def test_two_launchers_at_once_run_each_cell_once(tmp_path):
    many = replace(COUNTING, cells=[make_spec(seed=seed, settings=COUNTING.cells[0].settings) for seed in range(1, 9)])
    for launched in [start(many, tmp_path), start(many, tmp_path)]:
        launched.wait()
    finish(many, tmp_path)
    for cell in many.cells:
        folder = cell.folder(tmp_path)
        assert sorted(path.name for path in folder.glob("machine.*.json")) == ["machine.0.json"]
        assert len(read_rows(folder, "episodes")) == 80
        assert read_rows(folder, "metrics")["update"].tolist() == list(range(1, 41))


def sabotaged(seed: int, results: Path, **more) -> launcher.Outcome:
    command = (sys.executable, str(ROOT / "tests" / "sabotaged_worker.py"))
    cell = make_spec(seed=seed, settings=CARTPOLE | {"total_env_steps": 160_000} | more)
    (outcome,) = launch([cell], results, jobs=1, options=Options(), command=command)
    return outcome


def test_an_exception_in_an_actor_ends_the_run_as_failed(tmp_path):
    outcome = sabotaged(sabotaged_worker.ACTOR_RAISES, tmp_path)
    assert (outcome.state, outcome.reason) == (
        "failed", "RuntimeError: an actor thread failed: OSError: the emulator is gone",
    )  # fmt: skip


def test_a_learner_without_numbers_ends_the_run_as_failed_naming_update_and_loss(tmp_path):
    outcome = sabotaged(sabotaged_worker.LEARNER_NAN, tmp_path, schedule="sync")
    assert outcome.state == "failed"
    assert outcome.reason.startswith("FloatingPointError: update 3: losses/")
    assert " is nan" in outcome.reason


def test_an_actor_that_hangs_does_not_keep_the_run_from_being_ended(tmp_path):
    """Long before the learner loses patience with it (tests/test_training.py), a signal ends the run."""
    hanging = Trainer(
        "hanging",
        (sys.executable, str(ROOT / "tests" / "sabotaged_worker.py")),
        [make_spec(seed=sabotaged_worker.ACTOR_HANGS, settings=CARTPOLE | {"total_env_steps": 160_000})],
        0,
    )
    with under_way(hanging, tmp_path, updates=2) as (process, worker):
        time.sleep(3)
        began = monotonic()
        process.terminate()
        process.wait()
        assert monotonic() - began < 2 * launcher.GRACE_SECONDS
        assert not worker.is_running()
    assert status.state_of(hanging.cells[0].folder(tmp_path))[0] == "interrupted"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    if os.geteuid():
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"nothing may be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_fills_ends_the_run_as_failed_with_its_rows(small_disk):
    one = replace(COUNTING, cells=COUNTING.cells[:1])
    cell, folder = one.cells[0], one.cells[0].folder(small_disk)
    with under_way(one, small_disk) as (process, _):
        with suppress(OSError), (small_disk / "other").open("wb", buffering=0) as other:
            while True:
                other.write(b"x" * 1024)
        process.wait()
    state, reason = status.state_of(folder)
    assert state == "failed"
    assert "No space left on device" in reason
    whole = read_rows(folder, "metrics")["update"].tolist()
    assert whole == list(range(1, len(whole) + 1))
    assert 5 <= len(whole) < 40
    (small_disk / "other").unlink()
    assert unfinished([cell], small_disk) == []
    again = unfinished([cell], small_disk, retry_failed=True)
    (outcome,) = launch(again, small_disk, jobs=1, options=Options(), command=COUNTING.command)
    assert outcome.state == "complete"
    assert read_rows(folder, "metrics")["update"].tolist() == list(range(1, 41))


def test_a_folder_that_may_not_be_written_is_one_sentence(tmp_path):
    if os.geteuid():
        tmp_path.chmod(0o500)
        command = []
    else:  # root may write anywhere but where the file system is read-only
        subprocess.run(["mount", "--bind", str(tmp_path), str(tmp_path)], capture_output=True)
        done = subprocess.run(["mount", "-o", "remount,ro,bind", str(tmp_path)], capture_output=True)
        if done.returncode:
            pytest.skip("nothing may be mounted here")
        command = ["umount", str(tmp_path)]
    run = [sys.executable, "-m", "runners.cli", "run", "experiments/quickstart.yaml", "--results", str(tmp_path)]
    done = subprocess.run([*run, "--allow-mismatch"], cwd=ROOT, capture_output=True, text=True)
    if command:
        subprocess.run(command, check=True)
    assert done.returncode == 3
    assert "cannot be read or written" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_clock_set_back_changes_nothing(tmp_path):
    """The clock of the day is read for people only: a status of tomorrow is neither young nor old to a launcher."""
    (cell, _), folder = COUNTING.cells, COUNTING.cells[0].folder(tmp_path)
    prepare(folder, cell)
    tomorrow = "2999-01-01T00:00:00+00:00"
    write_status(folder, replace(read_status(folder), state="running", started_at=tomorrow, updated_at=tomorrow))
    assert status.state_of(folder)[0] == "interrupted"
    (told,) = status.cells(tmp_path, None)
    assert told.age_seconds == 0
    (outcome,) = launch([cell], tmp_path, jobs=1, options=Options(), command=COUNTING.command)
    assert outcome.state == "complete"


# A worker that does what the launcher looks at and nothing else, so that what is measured is the launcher.
MINIMAL = 'cd "$1" && sed "s/pending/complete/" status.json > .new && mv .new status.json'


def thousand_cells() -> list[RunSpec]:
    return [make_spec(seed=i % 513, algorithm=f"impala{i // 513}", experiment=f"trial{i // 513}") for i in range(1026)]


def test_a_thousand_runs_cost_the_launcher_little_and_are_told_quickly(tmp_path):
    cells = thousand_cells()
    began, own = monotonic(), process_time()
    with redirect_stdout(StringIO()):  # two lines a cell
        outcomes = launch(
            unfinished(cells, tmp_path), tmp_path, jobs=1, options=Options(), command=("sh", "-c", MINIMAL, "sh")
        )
    a_cell, own_a_cell = (monotonic() - began) / len(cells), (process_time() - own) / len(cells)
    assert Counter(outcome.state for outcome in outcomes) == {"complete": 1026}
    for cell in cells[::2]:  # the slower half of the work of `status`: who has a record that is not complete
        write_status(cell.folder(tmp_path), replace(read_status(cell.folder(tmp_path)), state="running"))
    command = [sys.executable, "-m", "runners.cli", "status", "--json", "--results", str(tmp_path)]
    before = os.times()
    began = monotonic()
    told = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    seconds, after = monotonic() - began, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    print(
        f"\n1,026 cells, one at a time: {1000 * a_cell:.1f} ms a cell with its worker (a shell), of it "
        f"{1000 * own_a_cell:.1f} ms CPU time of the launcher; `cleanba status --json` {seconds:.2f} s, "
        f"of it {used:.2f} s CPU time"
    )
    assert len(told) == 1026
    assert own_a_cell < 0.05
    assert used < 2
