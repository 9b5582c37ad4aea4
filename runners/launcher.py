"""The local launcher: every cell in a process of its own, some at a time, and no failure unread.

Imports neither JAX nor the trainers: it knows a run by its spec and its record.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from runners import machine
from runners.options import BUSY, Options
from runners.processes import started_by_slurm
from runners.profiles import Profile, mismatches
from runners.progress import Display, open_display
from runners.record import (
    Status,
    check_meaning,
    last_metrics,
    now,
    prepare,
    read_status,
    write_status,
)
from runners.record_claim import holder, is_claimed
from runners.spec import RunSpec

WORKER = (sys.executable, "-m", "runners.worker")
POLL_SECONDS = 0.02
GRACE_SECONDS = 15.0  # for a worker to write its last row after SIGTERM
HELD_SECONDS = 15.0  # for a worker whose launcher was killed to end, in a compilation perhaps
HELD_POLL_SECONDS = 0.5
GPU_MEMORY = 0.9  # of a GPU that several jobs share between them; a job alone has JAX's own default
# A worker that one of these ended was ended from outside: by a person, a scheduler, a machine without memory. Any other
# signal, such as SIGSEGV, is its own doing.
OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


BUSY_REASON = "another worker has this record"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one cell ended: a state of its record, or `busy` when another worker has it."""

    spec: RunSpec
    folder: Path
    state: str
    reason: str

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"


@dataclass(frozen=True, kw_only=True)
class _Child:
    spec: RunSpec
    folder: Path
    slot: int
    before: Status | None  # that the worker found
    process: subprocess.Popen


def unfinished(
    cells: Sequence[RunSpec], results: Path, *, retry_failed: bool = False, allow_mismatch: bool = False
) -> list[RunSpec]:
    """The cells to run: not those with a complete record, nor with a failed one unless it is to be tried again, nor,
    where mismatches are allowed, with an invalid one.

    Raises ValueError when the folder of one holds the record of another."""
    for cell in cells:
        check_meaning(cell.folder(results), cell)
    done = {"complete"} | (set() if retry_failed else {"failed"}) | ({"invalid"} if allow_mismatch else set())
    states = [(cell, read_status(cell.folder(results))) for cell in cells]
    return [cell for cell, status in states if status is None or status.state not in done]


def select(cells: Sequence[RunSpec], pattern: str | None) -> list[RunSpec]:
    """The cells whose name or run id has `pattern` in it, or matches it where it has a wildcard. Raises ValueError
    when there is none."""
    if pattern is None:
        return list(cells)
    glob = pattern if any(wildcard in pattern for wildcard in "*?[") else f"*{pattern}*"
    found = [cell for cell in cells if fnmatchcase(cell.name, glob) or fnmatchcase(cell.run_id, glob)]
    if not found:
        raise ValueError(f"--only {pattern}: no run has such a name; allowed: a part of {cells[0].name}, or of another")
    return found


def check_machine(cells: Sequence[RunSpec]) -> list[str]:
    """One sentence per profile that this machine lacks the CPUs, the memory or the platform for."""
    facts = machine.host_facts()
    found = [
        (profile, mismatches(profile, facts) + machine.platform_mismatches(profile.platform))
        for profile in _profiles(cells)
    ]
    return [f"the machine is not profile {profile.name}: {'; '.join(wrong)}" for profile, wrong in found if wrong]


def slot_sets(usable: Sequence[Any], jobs: int, size: int) -> list[tuple[Any, ...]]:
    """The CPUs or GPUs of each job slot: apart from one another while there are enough, shared in turn when not."""
    size = min(size, len(usable))
    return [tuple(usable[(slot * size + i) % len(usable)] for i in range(size)) for slot in range(jobs)]


def launch(
    cells: Sequence[RunSpec], results: Path, *, jobs: int, options: Options,
    command: Sequence[str] = WORKER, display: Display | None = None,
) -> list[Outcome]:  # fmt: skip
    """Run cells, `jobs` at a time, and return how each ended, in the order of ending.

    A cell that another launcher has completed in the meantime is not started, nor one whose worker lives on this
    machine for some seconds more: it may be the last of a launcher that was killed.
    SIGINT (Ctrl-C), SIGTERM or SIGHUP stops the children, marks their records and returns the outcomes so far. Raises
    OSError when a record cannot be begun, once the children are stopped.
    """
    display = display or open_display(len(cells))
    jobs = min(jobs, len(cells))
    cpu_sets = slot_sets(sorted(os.sched_getaffinity(0)), jobs, max(map(_cpus, cells)))
    gpus = max(_gpus(cell.profile) for cell in cells)
    gpu_sets = slot_sets(machine.visible_gpus() if gpus else [], jobs, gpus)
    options = replace(options, cpus_shared=share_cpus(cells, jobs), launcher_pid=os.getpid())
    waiting, children, outcomes = list(reversed(cells)), [], []
    held, look_at = [], 0.0  # (cell of another worker, until when it is waited for)
    with _noted_signals() as noted:
        try:
            while (waiting or children or held) and not noted:
                for child in [child for child in children if child.process.poll() is not None]:
                    children.remove(child)
                    outcomes.append(_settle(child, display))
                while waiting and len(children) < jobs and not noted:
                    spec = waiting.pop()
                    prepare(spec.folder(results), spec)
                    if taken := _taken(spec, results):
                        if taken.state == "busy":
                            held.append((spec, monotonic() + HELD_SECONDS))
                        else:
                            outcomes.append(taken)
                        continue
                    slot = min(set(range(jobs)) - {child.slot for child in children})
                    mine = replace(options, cpu_ids=cpu_sets[slot][: _cpus(spec)])
                    devices = gpu_environment(gpu_sets[slot][: _gpus(spec.profile)], gpu_sets)
                    children.append(_start(spec, results, slot, mine, devices, command))
                    display.started(spec, children[-1].folder)
                if held and not waiting and monotonic() >= look_at:
                    held, free, ended = _look_at(held, results)
                    waiting += free
                    outcomes += ended
                    look_at = monotonic() + HELD_POLL_SECONDS
                display.look(child.folder for child in children)
                sleep(POLL_SECONDS)
        finally:
            outcomes += _stop(children, display)
            display.close()
    return [_taken(outcome.spec, results) or outcome if outcome.state == "busy" else outcome for outcome in outcomes]


def _profiles(cells: Sequence[RunSpec]) -> list[Profile]:
    return list({cell.profile.name: cell.profile for cell in cells}.values())


def gpu_environment(mine: Sequence[str], all_sets: Sequence[Sequence[str]]) -> dict[str, str]:
    """Variables that give a worker its GPUs and, where other jobs have them too, a share of their memory."""
    if not mine:
        return {}
    sharing = max(sum(gpu in others for others in all_sets) for gpu in mine)
    share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{GPU_MEMORY / sharing:.3f}"} if sharing > 1 else {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(mine)} | share


def share_cpus(cells: Sequence[RunSpec], jobs: int) -> bool:
    """Whether `jobs` of them at a time need more CPUs than there are for this process, by affinity and by quota."""
    return jobs * max(map(_cpus, cells)) > machine.usable_cpus()


def _cpus(spec: RunSpec) -> int:
    """Of all processes of a run that start here: under Slurm the others have CPUs of their own."""
    return spec.profile.cpus * (1 if started_by_slurm(spec) else spec.layout().num_processes)


def _gpus(profile: Profile) -> int:
    layout = profile.parsed_layout()
    return layout.devices_per_process * layout.num_processes if profile.platform == "gpu" else 0


def _taken(spec: RunSpec, results: Path) -> Outcome | None:
    """The outcome of a cell that needs no worker of this launcher: another has completed it, or is at it here."""
    folder = spec.folder(results)
    if (status := read_status(folder)) and status.state == "complete":
        return Outcome(spec=spec, folder=folder, state="complete", reason="")
    if holder(folder) == "here":
        return Outcome(spec=spec, folder=folder, state="busy", reason=BUSY_REASON)
    return None


def _look_at(
    held: Sequence[tuple[RunSpec, float]], results: Path
) -> tuple[list[tuple[RunSpec, float]], list[RunSpec], list[Outcome]]:
    """Of the cells that other workers had: (those they still have, those that are free, those no longer waited for)."""
    still, free, ended = [], [], []
    for spec, until in held:
        taken = _taken(spec, results)
        if taken is None:
            free.append(spec)
        elif taken.state == "busy" and monotonic() < until:
            still.append((spec, until))
        else:
            ended.append(taken)
    return still, free, ended


def _start(
    spec: RunSpec, results: Path, slot: int, options: Options, devices: Mapping[str, str], command: Sequence[str]
) -> _Child:
    """A child in a session of its own, so that Ctrl-C reaches the launcher alone; its output goes to the run's log."""
    folder = spec.folder(results)
    before = read_status(folder)
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [*command, str(folder), options.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1", **devices},
        )
    return _Child(spec=spec, folder=folder, slot=slot, before=before, process=process)


def _settle(child: _Child, display: Display) -> Outcome:
    """Read how a child ended. One that died without a word, killed or out of memory, is marked here; a record that it
    has closed, or that another worker has or has completed, is left as it is."""
    code = child.process.wait()
    status = read_status(child.folder)
    if status and (status.state == "complete" or (status.state != "running" and status != child.before)):
        state, reason = status.state, status.reason
    elif code == BUSY or is_claimed(child.folder):
        state, reason = "busy", BUSY_REASON
    else:
        state, reason = "interrupted" if -code in OUTSIDE else "failed", _last_word(code, child.folder)
        _mark(child.folder, status, state, reason)
    warnings = [f"warning: {sentence}" for sentence in status.warnings] if status else []
    display.finished(child.spec, child.folder, state, "; ".join(filter(None, [reason, *warnings])))
    return Outcome(spec=child.spec, folder=child.folder, state=state, reason=reason)


def _last_word(code: int, folder: Path) -> str:
    """Of a worker that could not write its own: the signal, or the last line of its traceback."""
    if code < 0:
        return f"the worker was ended by {signal.Signals(-code).name}"
    lines = (folder / "log.txt").read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"the worker ended with exit code {code}{f' ({last})' if last else ''}"


def _mark(folder: Path, status: Status | None, state: str, reason: str) -> None:
    try:
        before = status or Status(state=state, started_at=now(), updated_at=now())
        env_steps = (last_metrics(folder) or {}).get("env_steps", before.env_steps)
        write_status(folder, replace(before, state=state, reason=reason, updated_at=now(), env_steps=env_steps))
    except OSError as error:
        print(f"{folder}: cannot be marked as {state} ({error.strerror})", file=sys.stderr)


def _stop(children: list[_Child], display: Display) -> list[Outcome]:
    """SIGTERM, some seconds to end well, then SIGKILL."""
    for child in children:
        child.process.terminate()
    deadline = monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
    return [_settle(child, display) for child in children]


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """The signals that ask the launcher to end, in a list for its loop to look at: one that raised would lose whatever
    it fell into. SIGINT and SIGHUP stay ignored where they were, as in the background or under nohup."""
    noted: list[int] = []
    asked = [name for name in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(name) != signal.SIG_IGN]
    before = {name: signal.signal(name, lambda number, _: noted.append(number)) for name in (signal.SIGTERM, *asked)}
    try:
        yield noted
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
