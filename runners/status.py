"""`cleanba status`: what ran, what failed and why, what is left. Reads specs and statuses, no rows."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean

from rich.console import Console

from runners.record import Status, read_spec, read_status
from runners.record_claim import holder
from runners.spec import RunSpec, load_experiment

SHOWN = ("failed", "running", "interrupted", "invalid", "pending", "complete")  # what needs a person comes first
LEFT = ("running", "interrupted", "pending")  # what the next `cleanba run` goes on with


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the status; the fields of `status --json`, which stay as they are."""

    run_id: str
    experiment: str
    algorithm: str
    env_id: str
    seed: int
    profile: str
    state: str  # of the record; `pending` before its first start
    reason: str
    age_seconds: float | None  # since the record was last heard of; None without one
    env_steps: int
    planned_env_steps: int
    sps: float | None  # as last measured by the run itself
    hours_left: float | None  # at its own SPS, or the mean of its algorithm and profile; None where nobody can tell


def cells(results: Path, experiment: str | None) -> list[Cell]:
    """Every recorded run of an experiment (of all when None) and, where an experiment's file is given, what it lacks.

    `experiment` is the name of a folder of records or the path of an experiment's file. Raises ValueError otherwise.
    """
    if experiment is None:
        return _with_hours([_cell(folder) for name in _experiments(results) for folder in _folders(results, name)])
    if experiment.endswith((".yaml", ".yml")):
        declared = load_experiment(Path(experiment))
        found = {cell.run_id: cell for cell in map(_cell, _folders(results, declared.name))}
        pending = [_line(spec, "pending", "", None) for spec in declared.cells if spec.run_id not in found]
        return _with_hours([*found.values(), *pending])
    if experiment not in (known := _experiments(results)):
        raise ValueError(f"{results / 'runs'}: no experiment {experiment!r}; allowed: {', '.join(known) or 'none yet'}")
    return _with_hours([_cell(folder) for folder in _folders(results, experiment)])


def show(found: list[Cell], console: Console) -> None:
    """A count per state with the hours that are left, and a line per run that is not complete."""
    counts = Counter(cell.state for cell in found)
    summary = ", ".join(f"{counts[state]} {state}" for state in SHOWN if counts[state]) or "no runs yet"
    console.print(summary + _hours_words(found), highlight=False, soft_wrap=True)
    left = [cell for state in SHOWN if state != "complete" for cell in found if cell.state == state]
    for cell in left:
        where = f"{cell.experiment} {cell.algorithm} {cell.env_id} {cell.profile} s{cell.seed}"
        words = "; ".join(filter(None, [cell.reason, *_progress_words(cell)]))
        line = f"{cell.state:11} {cell.run_id} {where}{f': {words}' if words else ''}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def as_json(found: list[Cell]) -> str:
    return json.dumps([asdict(cell) for cell in found], indent=1)


def state_of(folder: Path) -> tuple[str, str]:
    """State and reason of a run. One whose process is gone is not running, whatever its last word was."""
    return _state(folder, read_status(folder)) if (folder / "spec.json").exists() else ("pending", "")


def _state(folder: Path, status: Status | None) -> tuple[str, str]:
    if status is None:
        return "failed", "the record has no status.json"
    if status.state not in ("pending", "running"):
        return status.state, status.reason
    if (where := holder(folder)) != "nowhere":
        return "running", "" if where == "here" else "on another machine"
    if status.state == "pending":
        return "pending", status.reason
    return "interrupted", f"its process is gone; last heard of at {status.updated_at}"


def _experiments(results: Path) -> list[str]:
    return sorted(path.name for path in (results / "runs").glob("*") if any(_folders(results, path.name)))


def _folders(results: Path, experiment: str) -> Iterator[Path]:
    """Runs of our own: a record that `cleanba ingest` made has a curve, and nothing to run."""
    found = (path.parent for path in sorted((results / "runs" / experiment).glob("*/spec.json")))
    yield from (folder for folder in found if not (folder / "curve.parquet").exists())


def _cell(folder: Path) -> Cell:
    status = read_status(folder)
    return _line(read_spec(folder), *_state(folder, status), status)


def _line(spec: RunSpec, state: str, reason: str, status: Status | None) -> Cell:
    return Cell(
        run_id=spec.run_id,
        experiment=spec.experiment,
        algorithm=spec.algorithm,
        env_id=spec.env_id,
        seed=spec.seed,
        profile=spec.profile.name,
        state=state,
        reason=reason,
        age_seconds=_age_seconds(status) if status else None,
        env_steps=status.env_steps if status else 0,
        planned_env_steps=spec.planned_env_steps,
        sps=status.sps if status else None,
        hours_left=None,
    )


def _age_seconds(status: Status) -> float:
    """By the clock of the day, for people only; 0 where that clock was set back, or another machine's is ahead."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(status.updated_at)).total_seconds())


def _with_hours(found: Sequence[Cell]) -> list[Cell]:
    measured = defaultdict(list)
    for cell in found:
        if cell.sps:
            measured[cell.experiment, cell.algorithm, cell.profile].append(cell.sps)
    typical = {key: mean(values) for key, values in measured.items()}

    def hours_left(cell: Cell) -> float | None:
        sps = cell.sps or typical.get((cell.experiment, cell.algorithm, cell.profile))
        return (cell.planned_env_steps - cell.env_steps) / sps / 3600 if sps and cell.state in LEFT else None

    return [replace(cell, hours_left=hours_left(cell)) for cell in found]


def _hours_words(found: Sequence[Cell]) -> str:
    known = [cell.hours_left for cell in found if cell.hours_left is not None]
    unknown = sum(cell.state in LEFT for cell in found) - len(known)
    words = [f"{sum(known):,.1f} hours of runs left"] if known else []
    words += [f"{unknown} of unknown speed"] if known and unknown else []
    return f"; {', '.join(words)}" if words else ""


def _progress_words(cell: Cell) -> Iterator[str]:
    if cell.env_steps:
        yield f"{cell.env_steps:,} of {cell.planned_env_steps:,} env steps"
    if cell.state == "running" and cell.sps:
        yield f"{cell.sps:,.0f} SPS"
    if cell.hours_left is not None and cell.env_steps:
        yield f"{cell.hours_left:,.1f} h left"
    if cell.age_seconds is not None and cell.state != "pending":
        yield f"{timedelta(seconds=round(cell.age_seconds))} ago"
