"""The Slurm launcher: cells become job arrays, one array a profile, through submitit.

Each job runs the local launcher for its one cell, so that a run ends under Slurm as it ends anywhere: a worker that was
killed is marked, and its record says why. Slurm itself requeues what it preempts; a job that runs into its time limit
puts itself back into the queue.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import SlurmExecutor

from runners.files import write_atomically
from runners.launcher import WORKER, launch
from runners.options import Options
from runners.profiles import Profile
from runners.record import prepare, read_spec
from runners.spec import RunSpec, check_name

ARRAY_SIZE = 1000  # Slurm's own MaxArraySize allows the numbers 0 to 1000
NOTICE_SECONDS = 120  # before the time limit: to write a checkpoint and to end


def parse_options(stated: Sequence[str]) -> dict[str, Any]:
    """`time=2-00:00:00`, `exclusive` -> sbatch's long options. Raises ValueError for what the profile decides."""
    found: dict[str, Any] = {}
    for option in stated:
        name, is_stated, value = option.partition("=")
        check_name(name, where="--sbatch")
        if name in ("array", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-task", "signal", "job-name"):
            raise ValueError(f"--sbatch {option}: the profile or the launcher decides it; allowed: any other option")
        found[name] = value if is_stated else True
    return found


def scripts(
    cells: Sequence[RunSpec], results: Path, options: Options, flags: Mapping[str, Any], *, jobs: int | None
) -> Iterator[str]:
    """What sbatch would be given, one text per array. Submits nothing, and needs no Slurm."""
    for array in _arrays(cells):
        executor = _executor(array, results, flags, jobs)
        if len(array) > 1:
            executor.parameters["map_count"] = len(array)
        yield executor._make_submission_file_text(executor._submitit_command_str, uid="dry-run")


def submit(
    cells: Sequence[RunSpec], results: Path, options: Options, flags: Mapping[str, Any], *, jobs: int | None,
    command: Sequence[str] = WORKER,
) -> Iterator[str]:  # fmt: skip
    """Submit the cells and note each one's job beside its record; yields a sentence per array. Raises ValueError where
    there is no Slurm or it refuses."""
    results = results.resolve()
    for array in _arrays(cells):
        for cell in array:
            prepare(cell.folder(results), cell)
        executor = _executor(array, results, flags, jobs)
        folders = [str(cell.folder(results)) for cell in array]
        try:
            submitted = executor.map_array(run_job, folders, [options] * len(array), [tuple(command)] * len(array))
        except Exception as error:  # submitit's own kinds: sbatch's words are in the message
            raise ValueError(f"sbatch: {' '.join(str(error).split())}") from error
        for cell, job in zip(array, submitted):
            write_atomically(cell.folder(results) / "slurm.json", {"job_id": job.job_id})
        job_id = submitted[0].job_id.partition("_")[0]
        yield f"submitted {len(array)} runs of profile {array[0].profile.name} as job {job_id}"


def job_of(folder: Path) -> str | None:
    """The last Slurm job of a run."""
    try:
        return json.loads((folder / "slurm.json").read_text())["job_id"]
    except FileNotFoundError:
        return None


def not_queued(cells: Sequence[RunSpec], results: Path) -> tuple[list[RunSpec], int]:
    """The cells that have no job waiting or running, and how many have one."""
    try:
        asked = subprocess.run(
            ["squeue", "--me", "--noheader", "--array", "--format=%i"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"squeue: there is no Slurm that answers ({error}); allowed: on a Slurm cluster") from error
    if asked.returncode:
        raise ValueError(f"squeue: cannot say what is in the queue ({' '.join(asked.stderr.split())})")
    queued = set(asked.stdout.split())
    free = [cell for cell in cells if job_of(cell.folder(results)) not in queued]
    return free, len(cells) - len(free)


def run_job(folder: str, options: Options, command: Sequence[str] = WORKER) -> None:
    """What a task of a Slurm job does. Ends it with exit code 0 when the run is complete, else 1."""
    if int(os.environ.get("SLURM_PROCID", "0")):  # the first process keeps the record; the others only train
        sys.exit(subprocess.run([*command, folder, options.to_json()]).returncode)
    told = []
    signal.signal(signal.SIGUSR2, lambda *_: (told.append("time limit"), os.kill(os.getpid(), signal.SIGTERM)))
    spec = read_spec(Path(folder))
    outcomes = launch([spec], Path(folder).parents[2], jobs=1, options=options, command=command)
    state = outcomes[0].state if outcomes else "interrupted"
    print(f"{state}: {spec.name}", flush=True)
    if state == "interrupted" and (told or _is_preempted()):
        subprocess.run(["scontrol", "requeue", _this_job()], check=True)
    sys.exit(0 if state in ("complete", "invalid") else 1)


def _is_preempted() -> bool:
    """Whether this job is in the grace time of its preemption. Slurm requeues a job that it has to kill at the end of
    that time; one that ends within it would count as over."""
    asked = subprocess.run(["scontrol", "show", "job", _this_job()], capture_output=True, text=True)
    stated = re.search(r"\bPreemptTime=(\S+)", asked.stdout)
    return bool(stated) and stated[1] != "None"


def _this_job() -> str:
    """With its number in the array: the last job of an array has the array's own id, which means all of them."""
    names = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID") if "SLURM_ARRAY_JOB_ID" in os.environ else ("SLURM_JOB_ID",)
    return "_".join(os.environ[name] for name in names)


class _Executor(SlurmExecutor):
    """submitit's, which can also write its script where there is no Slurm."""

    @classmethod
    def affinity(cls) -> int:
        return 2


def _arrays(cells: Sequence[RunSpec]) -> Iterator[list[RunSpec]]:
    """Cells of one profile, since the jobs of an array are alike; the order of the experiment is kept within one."""
    for _, alike in groupby(sorted(cells, key=lambda cell: cell.profile.name), key=lambda cell: cell.profile.name):
        rest = list(alike)
        while rest:
            yield rest[:ARRAY_SIZE]
            rest = rest[ARRAY_SIZE:]


def _executor(array: Sequence[RunSpec], results: Path, flags: Mapping[str, Any], jobs: int | None) -> SlurmExecutor:
    executor = _Executor(results.resolve() / "slurm" / array[0].experiment)
    executor.update_parameters(
        job_name=array[0].experiment,
        time=None,  # the partition's, unless stated: submitit's own would be five minutes
        wckey=None,
        array_parallelism=jobs or len(array),
        signal_delay_s=NOTICE_SECONDS,
        stderr_to_stdout=True,
        additional_parameters={"requeue": True, **_needs(array[0].profile), **flags},
    )
    return executor


def _needs(profile: Profile) -> dict[str, Any]:
    """The profile in sbatch's words; a profile states what one of its processes needs."""
    layout = profile.parsed_layout()
    memory_mib = ceil(1024 * profile.memory_gib / profile.cpus)  # by CPU: on however many nodes the processes are
    needs = {"ntasks": layout.num_processes, "cpus-per-task": profile.cpus, "mem-per-cpu": f"{memory_mib}M"}
    return needs | ({"gpus-per-task": layout.devices_per_process} if profile.platform == "gpu" else {})
