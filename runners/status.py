"""`cleanba status`: what ran, what failed and why, what is left. Reads specs and statuses, no rows."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import psutil
from rich.console import Console

from runners.record import Status, is_claimed, read_spec, read_status
from runners.spec import RunSpec, load_experiment

SHOWN = ("failed", "running", "invalid", "pending", "complete")  # what needs a person comes first


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the status; the fields of `status --json`, which stay as they are."""

    run_id: str
    experiment: str
    algorithm: str
    env_id: str
    seed: int
    profile: str
    state: str  # of the record; `pending` without one
    reason: str


def cells(results: Path, experiment: str | None) -> list[Cell]:
    """Every recorded run of an experiment (of all when None) and, where an experiment's file is given, what it lacks.

    `experiment` is the name of a folder of records or the path of an experiment's file. Raises ValueError otherwise.
    """
    if experiment is None:
        return [_cell(folder) for name in _experiments(results) for folder in _folders(results, name)]
    if experiment.endswith((".yaml", ".yml")):
        declared = load_experiment(Path(experiment))
        found = {cell.run_id: cell for cell in map(_cell, _folders(results, declared.name))}
        pending = [_pending(spec) for spec in declared.cells if spec.run_id not in found]
        return [*found.values(), *pending]
    if experiment not in (known := _experiments(results)):
        raise ValueError(f"{results / 'runs'}: no experiment {experiment!r}; allowed: {', '.join(known) or 'none yet'}")
    return [_cell(folder) for folder in _folders(results, experiment)]


def show(found: list[Cell], console: Console) -> None:
    """A count per state, and a line per run that is not complete."""
    counts = Counter(cell.state for cell in found)
    console.print(", ".join(f"{counts[state]} {state}" for state in SHOWN if counts[state]) or "no runs yet")
    left = [cell for state in SHOWN if state != "complete" for cell in found if cell.state == state]
    for cell in left:
        where = f"{cell.experiment} {cell.algorithm} {cell.env_id} {cell.profile} s{cell.seed}"
        reason = f": {cell.reason}" if cell.reason else ""
        console.print(f"{cell.state:8} {cell.run_id} {where}{reason}", markup=False, highlight=False, soft_wrap=True)


def as_json(found: list[Cell]) -> str:
    return json.dumps([asdict(cell) for cell in found], indent=1)


def _experiments(results: Path) -> list[str]:
    return sorted(path.name for path in (results / "runs").glob("*") if any(_folders(results, path.name)))


def _folders(results: Path, experiment: str) -> Iterator[Path]:
    """Runs of our own: a record that `cleanba ingest` made has a curve, and nothing to run."""
    found = (path.parent for path in sorted((results / "runs" / experiment).glob("*/spec.json")))
    yield from (folder for folder in found if not (folder / "curve.parquet").exists())


def state_of(folder: Path) -> tuple[str, str]:
    """State and reason of a run. One whose process is gone is not running, whatever its last word was."""
    if not (folder / "spec.json").exists():
        return "pending", ""
    status = read_status(folder)
    if status is None:
        return "failed", "the record has no status.json"
    if status.state == "running" and not (is_claimed(folder) or _is_about_to_start(status)):
        return "failed", f"its process is gone; last heard of at {status.updated_at}, {status.env_steps:,} env steps"
    return status.state, status.reason


def _is_about_to_start(status: Status) -> bool:
    """Whether the process that wrote the status, a launcher, is there: a younger one has only been given its pid."""
    try:
        began = psutil.Process(status.pid).create_time()
    except psutil.NoSuchProcess:
        return False
    return began <= datetime.fromisoformat(status.started_at).timestamp() + 1  # the status is in whole seconds


def _cell(folder: Path) -> Cell:
    return _line(read_spec(folder), *state_of(folder))


def _pending(spec: RunSpec) -> Cell:
    return _line(spec, "pending", "")


def _line(spec: RunSpec, state: str, reason: str) -> Cell:
    return Cell(
        run_id=spec.run_id,
        experiment=spec.experiment,
        algorithm=spec.algorithm,
        env_id=spec.env_id,
        seed=spec.seed,
        profile=spec.profile.name,
        state=state,
        reason=reason,
    )
