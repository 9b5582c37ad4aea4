"""What a launch shows while it runs, read from the records: live bars on a terminal, plain lines elsewhere."""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from runners.record import last_metrics
from runners.spec import RunSpec

PLAIN_SECONDS = 30.0  # between two plain lines of a run
LIVE_SECONDS = 0.5  # between two looks at the records


class Display(Protocol):
    """Told by the launcher what happens; `look` is called often and decides itself when to read."""

    def started(self, spec: RunSpec, folder: Path) -> None: ...
    def look(self, folders: Iterable[Path]) -> None: ...
    def finished(self, spec: RunSpec, folder: Path, state: str, reason: str) -> None: ...
    def close(self) -> None: ...


def open_display(total_runs: int, console: Console | None = None) -> Display:
    console = console or Console()
    return LiveDisplay(console, total_runs) if console.is_terminal else PlainDisplay(console, total_runs)


def describe(spec: RunSpec, row: dict | None) -> str:
    """`12,800 of 40,000 env steps, 930 SPS, return 1.4, 0:00:29 left`"""
    if row is None:
        return f"0 of {spec.planned_env_steps:,} env steps"
    words = [f"{row['env_steps']:,} of {spec.planned_env_steps:,} env steps"]
    if sps := row.get("charts/SPS"):
        words.append(f"{sps:,.0f} SPS")
    if (episode_return := row.get("charts/avg_episodic_return")) is not None:
        words.append(f"return {episode_return:,.1f}")
    seconds_left = (spec.planned_env_steps - row["env_steps"]) * row["wall_seconds"] / row["env_steps"]
    words.append(f"{timedelta(seconds=round(seconds_left))} left")
    return ", ".join(words)


class PlainDisplay:
    """One line at a run's start and end, and every half minute between."""

    def __init__(self, console: Console, total_runs: int):
        self._console = console
        self._count = f"{total_runs} runs"
        self._ended = 0
        self._runs: dict[Path, RunSpec] = {}
        self._next_look: dict[Path, float] = {}

    def started(self, spec: RunSpec, folder: Path) -> None:
        self._runs[folder] = spec
        self._next_look[folder] = monotonic() + PLAIN_SECONDS
        self._line(f"started  {spec.name}")

    def look(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            if monotonic() >= self._next_look[folder]:
                self._next_look[folder] = monotonic() + PLAIN_SECONDS
                spec = self._runs[folder]
                self._line(f"running  {spec.name}: {describe(spec, last_metrics(folder))}")

    def finished(self, spec: RunSpec, folder: Path, state: str, reason: str) -> None:
        self._ended += 1
        self._line(f"{state:8} {spec.name}{f': {reason}' if reason else ''} ({self._ended} of {self._count})")

    def close(self) -> None:
        pass

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay:
    """A bar per running run, a line above for each that ended."""

    def __init__(self, console: Console, total_runs: int):
        self._progress = Progress(
            TextColumn("{task.fields[name]}", markup=False), BarColumn(20), TextColumn("{task.fields[words]}"),
            console=console, auto_refresh=False,
        )  # fmt: skip
        self._all = self._progress.add_task("", total=total_runs, name="all runs", words=f"0 of {total_runs}")
        self._total_runs = total_runs
        self._ended = 0
        self._runs: dict[Path, tuple[RunSpec, TaskID]] = {}
        self._next_look = 0.0
        self._progress.start()

    def started(self, spec: RunSpec, folder: Path) -> None:
        task = self._progress.add_task("", total=spec.planned_env_steps, name=spec.name, words="starting")
        self._runs[folder] = (spec, task)

    def look(self, folders: Iterable[Path]) -> None:
        if monotonic() < self._next_look:
            return
        self._next_look = monotonic() + LIVE_SECONDS
        for folder in folders:
            spec, task = self._runs[folder]
            if row := last_metrics(folder):
                self._progress.update(task, completed=row["env_steps"], words=describe(spec, row))
        self._progress.refresh()

    def finished(self, spec: RunSpec, folder: Path, state: str, reason: str) -> None:
        self._ended += 1
        self._progress.remove_task(self._runs.pop(folder)[1])
        self._progress.update(self._all, completed=self._ended, words=f"{self._ended} of {self._total_runs}")
        self._progress.console.print(f"{state:8} {spec.name}{f': {reason}' if reason else ''}", markup=False)

    def close(self) -> None:
        self._progress.stop()
