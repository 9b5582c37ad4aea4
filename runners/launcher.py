"""The local launcher: every cell in a process of its own, some at a time, and no failure unread.

Imports neither JAX nor the trainers: it knows a run by its spec and its record.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from time import monotonic, sleep

from cleanba.layout import Layout
from runners import machine
from runners.options import BUSY, Options
from runners.profiles import Profile, mismatches
from runners.progress import Display, open_display
from runners.record import (
    Status,
    check_meaning,
    is_claimed,
    last_metrics,
    now,
    prepare,
    read_status,
    write_status,
)
from runners.spec import RunSpec

WORKER = (sys.executable, "-m", "runners.worker")
POLL_SECONDS = 0.02
GRACE_SECONDS = 15.0  # for a worker to write its last row after SIGTERM


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


def unfinished(cells: Sequence[RunSpec], results: Path, *, allow_mismatch: bool = False) -> list[RunSpec]:
    """The cells that still have to run: no complete record, nor, where mismatches are allowed, an invalid one.

    Raises ValueError when the folder of one holds the record of another."""
    for cell in cells:
        check_meaning(cell.folder(results), cell)
    done = ("complete", "invalid") if allow_mismatch else ("complete",)
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


def cpu_sets(usable: Sequence[int], jobs: int, cpus: int) -> list[tuple[int, ...]]:
    """The CPUs of each job slot: apart from one another while there are enough, shared in turn when there are not."""
    cpus = min(cpus, len(usable))
    return [tuple(usable[(slot * cpus + i) % len(usable)] for i in range(cpus)) for slot in range(jobs)]


def launch(
    cells: Sequence[RunSpec], results: Path, *, jobs: int, options: Options,
    command: Sequence[str] = WORKER, display: Display | None = None,
) -> list[Outcome]:  # fmt: skip
    """Run cells, `jobs` at a time, and return how each ended, in the order of ending.

    SIGINT (Ctrl-C), SIGTERM or SIGHUP stops the children, marks their records and returns the outcomes so far. Raises
    OSError when a record cannot be begun, once the children are stopped.
    """
    display = display or open_display(len(cells))
    jobs = min(jobs, len(cells))
    usable, cpus = sorted(os.sched_getaffinity(0)), max(_cpus(cell.profile) for cell in cells)
    sets = cpu_sets(usable, jobs, cpus)
    options = replace(options, cpus_shared=jobs * cpus > len(usable), launcher_pid=os.getpid())
    waiting, children, outcomes = list(reversed(cells)), [], []
    with _noted_signals() as noted:
        try:
            while (waiting or children) and not noted:
                while waiting and len(children) < jobs and not noted:
                    spec, slot = waiting.pop(), min(set(range(jobs)) - {child.slot for child in children})
                    cpu_ids = sets[slot][: _cpus(spec.profile)]
                    children.append(_start(spec, results, slot, replace(options, cpu_ids=cpu_ids), command))
                    display.started(spec, children[-1].folder)
                for child in [child for child in children if child.process.poll() is not None]:
                    children.remove(child)
                    outcomes.append(_settle(child, display))
                display.look(child.folder for child in children)
                sleep(POLL_SECONDS)
        finally:
            outcomes += _stop(children, display)
            display.close()
    return outcomes


def _profiles(cells: Sequence[RunSpec]) -> list[Profile]:
    return list({cell.profile.name: cell.profile for cell in cells}.values())


def _cpus(profile: Profile) -> int:
    """Of all processes of a run."""
    return profile.cpus * Layout.parse(profile.layout).num_processes


def _start(spec: RunSpec, results: Path, slot: int, options: Options, command: Sequence[str]) -> _Child:
    """A child in a session of its own, so that Ctrl-C reaches the launcher alone; its output goes to the run's log."""
    folder = spec.folder(results)
    prepare(folder, spec)
    before = read_status(folder)
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [*command, str(folder), options.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
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
        state, reason = "busy", "another worker has this record"
    else:
        state, reason = "failed", _last_word(code, child.folder)
        _mark_failed(child.folder, status, reason)
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


def _mark_failed(folder: Path, status: Status | None, reason: str) -> None:
    try:
        before = status or Status(state="failed", started_at=now(), updated_at=now())
        env_steps = (last_metrics(folder) or {}).get("env_steps", before.env_steps)
        write_status(folder, replace(before, state="failed", reason=reason, updated_at=now(), env_steps=env_steps))
    except OSError as error:
        print(f"{folder}: cannot be marked as failed ({error.strerror})", file=sys.stderr)


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
