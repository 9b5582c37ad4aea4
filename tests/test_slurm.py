"""The Slurm launcher: what it would submit, and, where root may install Slurm, what a real one makes of it."""

import dataclasses
import re
import subprocess
import time

import fake_worker
import pytest
import slurm_cluster
from cells import FAKE_WORKER, PROFILE, ROOT, SETTINGS, make_spec

from runners import slurm
from runners.options import Options
from runners.record import last_metrics, read_rows, read_status
from runners.status import state_of

GPU = dataclasses.replace(PROFILE, name="gpus", platform="gpu", layout="a0-l1,2-d2", cpus=3, memory_gib=10.0)
SHARDS = SETTINGS | {"num_shards": 4, "num_actor_groups": 4, "num_minibatches": 1}


def lines(text):
    return set(text.splitlines())


def test_a_profile_in_the_words_of_sbatch(tmp_path):
    cells = [make_spec(seed=seed) for seed in (1, 2, 3)] + [make_spec(profile=GPU, settings=SHARDS)]
    two_processes, three_cells = slurm.scripts(cells, tmp_path, Options(), {"partition": "a", "time": "5:00"}, jobs=2)
    assert lines(three_cells) >= {
        "#SBATCH --array=0-2%2", "#SBATCH --ntasks=1", "#SBATCH --cpus-per-task=1", "#SBATCH --mem-per-cpu=103M",
        "#SBATCH --job-name=trial", "#SBATCH --requeue", "#SBATCH --signal=USR2@120", "#SBATCH --partition=a",
        "#SBATCH --time=5:00",
    }  # fmt: skip
    assert "gpus" not in three_cells
    assert lines(two_processes) >= {
        "#SBATCH --ntasks=2", "#SBATCH --cpus-per-task=3", "#SBATCH --gpus-per-task=3", "#SBATCH --mem-per-cpu=3414M",
    }  # fmt: skip
    assert "array" not in two_processes  # one cell alone
    assert re.search(r"^srun .* -m submitit\.core\._submit ", two_processes, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_no_time_limit_but_the_partitions_is_made_up(tmp_path):
    (script,) = slurm.scripts([make_spec()], tmp_path, Options(), {}, jobs=None)
    assert "--time" not in script


def test_more_cells_than_an_array_may_have_are_several_arrays(tmp_path):
    cells = [make_spec(seed=i % 513, algorithm=f"impala{i // 513}") for i in range(1026)]
    arrays = list(slurm.scripts(cells, tmp_path, Options(), {}, jobs=None))
    found = [re.search("--array=(.*)", text)[1] for text in arrays]
    assert found == ["0-999%1000", "0-25%26"]


def test_options_of_sbatch():
    assert slurm.parse_options(["time=1:00", "exclusive"]) == {"time": "1:00", "exclusive": True}
    with pytest.raises(ValueError, match="--sbatch cpus-per-task=3: the profile or the launcher decides it"):
        slurm.parse_options(["cpus-per-task=3"])
    with pytest.raises(ValueError, match="--sbatch is '--time', a text; allowed: letters"):
        slurm.parse_options(["--time=3"])


def test_without_slurm_the_queue_is_one_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ValueError, match="squeue: there is no Slurm that answers"):
        slurm.not_queued([], ROOT)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := slurm_cluster.why_not():
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture
def submit(cluster, tmp_path, monkeypatch):
    for name, value in (cluster | {"WANDB_MODE": "disabled", "PYTHONPATH": str(ROOT)}).items():
        monkeypatch.setenv(name, value)

    def submit_cells(cells):
        return list(slurm.submit(cells, tmp_path, Options(), {}, jobs=None, command=FAKE_WORKER))

    return submit_cells


def job(folder):
    """State, exit code and restarts of a run's job, as Slurm tells them."""
    told = subprocess.run(["scontrol", "show", "job", slurm.job_of(folder)], capture_output=True, text=True).stdout
    return tuple(re.search(rf"{key}=(\S+)", told)[1] for key in ("JobState", "ExitCode", "Restarts"))


def wait_until(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.3)


def reached_update_3(folder):
    return (last_metrics(folder) or {}).get("update") == 3


@pytest.mark.faults
def test_an_array_with_a_preempted_and_a_failing_cell(submit, tmp_path):
    good = [make_spec(seed=seed) for seed in (1, 11, 12, 13, 14, 15)]
    failing, preempted = make_spec(seed=fake_worker.RAISES), make_spec(seed=fake_worker.HANGS_ONCE)
    cells = [*good, failing, preempted]
    folders = [cell.folder(tmp_path) for cell in cells]
    (sentence,) = submit(cells)
    assert re.fullmatch(r"submitted 8 runs of profile one as job \d+", sentence)
    assert slurm.not_queued(cells, tmp_path)[1] >= 1

    def states():
        return [state_of(folder)[0] for folder in folders]

    wait_until(lambda: states() == ["complete"] * 6 + ["failed", "running"] and reached_update_3(folders[7]), states)
    wait_until(lambda: slurm.not_queued(cells, tmp_path)[1] == 1, states)
    urgent = ["sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"]
    subprocess.run(urgent, check=True, capture_output=True)
    wait_until(lambda: states()[7] == "interrupted", states)
    assert read_status(folders[7]).reason == "Ended: by SIGTERM"
    wait_until(lambda: states()[7] == "complete", states)
    wait_until(lambda: slurm.not_queued(cells, tmp_path)[1] == 0, states)
    assert [job(folder) for folder in folders[:6]] == [("COMPLETED", "0:0", "0")] * 6
    assert job(folders[6]) == ("FAILED", "1:0", "0")
    assert job(folders[7]) == ("COMPLETED", "0:0", "1")
    assert state_of(folders[6]) == ("failed", "RuntimeError: actor 1 died: no such game")
    assert (folders[7] / "machine.1.json").exists()
    assert len(read_rows(folders[7], "episodes")) == 10


@pytest.mark.faults
def test_a_job_that_runs_into_its_time_limit_goes_back_into_the_queue(submit, tmp_path):
    cell = make_spec(seed=fake_worker.HANGS_ONCE)
    folder = cell.folder(tmp_path)
    submit([cell])
    wait_until(lambda: reached_update_3(folder), lambda: state_of(folder))
    subprocess.run(["scancel", "--signal=USR2", slurm.job_of(folder)], check=True)  # as Slurm does before the limit
    wait_until(lambda: state_of(folder)[0] == "complete", lambda: state_of(folder))
    wait_until(lambda: job(folder)[0] == "COMPLETED", lambda: job(folder))
    assert job(folder) == ("COMPLETED", "0:0", "1")


@pytest.mark.faults
def test_what_is_printed_is_what_is_submitted(submit, tmp_path):
    cells = [make_spec(seed=seed) for seed in (1, 11)]
    (printed,) = slurm.scripts(cells, tmp_path, Options(), {}, jobs=None)
    submit(cells)
    (written,) = (tmp_path / "slurm" / "trial").glob("*_submission.sh")
    assert written.read_text() == printed
    wait_until(lambda: slurm.not_queued(cells, tmp_path)[1] == 0, lambda: "the jobs do not end")


@pytest.mark.faults
def test_what_slurm_refuses_is_one_sentence(submit, tmp_path):
    with pytest.raises(ValueError, match=r"^sbatch: .*invalid partition specified: none"):
        list(slurm.submit([make_spec()], tmp_path, Options(), {"partition": "none"}, jobs=None))


@pytest.mark.faults
def test_a_job_that_a_person_cancels_stays_cancelled(submit, tmp_path):
    cell = make_spec(seed=fake_worker.HANGS_ONCE)
    folder = cell.folder(tmp_path)
    submit([cell])
    wait_until(lambda: reached_update_3(folder), lambda: state_of(folder))
    subprocess.run(["scancel", slurm.job_of(folder)], check=True)
    wait_until(lambda: slurm.not_queued([cell], tmp_path)[1] == 0, lambda: state_of(folder))
    assert state_of(folder) == ("interrupted", "Ended: by SIGTERM")
    assert job(folder)[0] == "CANCELLED"
    assert job(folder)[2] == "0"
