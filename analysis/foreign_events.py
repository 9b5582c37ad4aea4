"""Parser of TensorBoard event files, with TensorBoard's own reader (package tensorboard; TensorFlow is not needed)."""

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.foreign import (
    Declared,
    ForeignRun,
    count_restarts,
    find_files,
    latest_rows,
    named_game,
    resolve_unit,
    run_folder_names,
)

# Tags of the return: one value an episode (CleanRL), and Cleanba's mean over envs.
TAGS = ("charts/episodic_return", "charts/avg_episodic_return")
PER_EPISODE = TAGS[:1]
FLAGS = "hyperparameters/text_summary"  # where CleanRL and Cleanba write theirs, as a table of Markdown
CLEANBA_ZEROS = "envs that have not finished an episode count as 0 in Cleanba's charts/avg_episodic_return"


@dataclass
class Series:
    """One tag's scalars in the order in which they were logged."""

    steps: array = field(default_factory=lambda: array("d"))
    returns: array = field(default_factory=lambda: array("d"))
    clock: array = field(default_factory=lambda: array("d"))  # seconds since 1970


def tensorboard(path: Path, declared: Declared) -> list[ForeignRun]:
    """Event files, those of one folder being one run in the order of their names.

    The tag is declared as --columns episode_return=TAG, or the first of TAGS that there is.
    """
    unit = resolve_unit("tensorboard", None, declared.unit)
    runs = groupby(find_files(path, "*tfevents*"), key=lambda file: file.parent)
    return [_run(folder, tuple(files), unit, declared) for folder, files in runs]


def _run(folder: Path, files: tuple[Path, ...], unit: str, declared: Declared) -> ForeignRun:
    wanted = (declared.columns["episode_return"],) if "episode_return" in declared.columns else TAGS
    found, flags, tags = _read(files, wanted)
    tag = next((tag for tag in wanted if tag in found), None)
    if tag is None:
        raise ValueError(f"{folder}: no scalar {' or '.join(wanted)}; allowed: {', '.join(sorted(tags)) or 'none'}")
    frame = _frame(found[tag])
    notes = [f"episode_return is the tag {tag}"]
    if tag == "charts/avg_episodic_return":
        notes.append(CLEANBA_ZEROS)
    if restarts := count_restarts(frame["steps"].to_numpy()):
        notes.append(f"{folder}: {restarts} restarts; later rows count, and wall_seconds has the pauses in between")
    frame = frame.loc[latest_rows(frame["steps"].to_numpy())].reset_index(drop=True)
    named, seed = run_folder_names(folder, declared)
    logged = int(flags["seed"]) if flags.get("seed", "").isdigit() else None
    return ForeignRun(
        algorithm=declared.algorithm or flags.get("exp_name") or "tensorboard",
        env_id=named_game(named or flags.get("env_id"), folder, f"the text {FLAGS} with env_id"),
        seed=logged if seed is None else seed,
        unit=unit,
        curve=frame.assign(num_episodes=1.0 if tag in PER_EPISODE else math.nan),
        files=files,
        producer={"name": "tensorboard", "flags": flags},
        notes=tuple(notes),
    )


def _read(files: tuple[Path, ...], wanted: tuple[str, ...]) -> tuple[dict[str, Series], dict[str, str], set[str]]:
    """(series of the wanted tags, the run's flags, all tags). Raises ValueError for what is no finite return."""
    found: dict[str, Series] = {}
    flags: dict[str, str] = {}
    tags: set[str] = set()
    for file, event, value in _values(files):
        tags.add(value.tag)
        if value.tag == FLAGS:
            flags |= _flags(_scalar(value.tensor))
        elif value.tag in wanted:
            number = float(_scalar(value.tensor))
            if math.isinf(number) or event.step < 0:
                where = f"{file}: {value.tag} is {number} at step {event.step}"
                raise ValueError(f"{where}; allowed: a finite number or NaN, steps from 0")
            series = found.setdefault(value.tag, Series())
            for column, item in zip(
                (series.steps, series.returns, series.clock), (event.step, number, event.wall_time)
            ):
                column.append(item)
    return found, flags, tags


def _values(files: tuple[Path, ...]) -> Iterator[tuple]:
    """(file, event, value), file by file. A torn last event is dropped, as TensorBoard does."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import (  # pyright: ignore[reportMissingImports]
            EventFileLoader,
        )
    except ImportError:
        raise ValueError("source tensorboard needs the package tensorboard; allowed: pip install tensorboard") from None
    for file in files:
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                yield file, event, value


def _scalar(tensor):
    """The one number or text of a tensor."""
    from tensorboard.util.tensor_util import make_ndarray  # pyright: ignore[reportMissingImports]

    return make_ndarray(tensor).reshape(-1)[0]


def _flags(text: bytes) -> dict[str, str]:
    """{name: value} of the rows |name|value| of a table of Markdown."""
    rows = [line.strip("|").split("|", 1) for line in text.decode(errors="replace").splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[0] not in ("param", "-")}


def _frame(series: Series) -> pd.DataFrame:
    columns: Mapping[str, array] = {
        "steps": series.steps,
        "episode_return": series.returns,
        "wall_seconds": series.clock,
    }
    frame = pd.DataFrame({name: np.frombuffer(values) for name, values in columns.items()})
    return frame.assign(wall_seconds=frame["wall_seconds"] - frame["wall_seconds"].min())
