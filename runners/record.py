"""The record of a run: what a worker writes while it trains, and how everybody else reads it.

A folder holds `spec.json`, `status.json`, `machine.<segment>.json` and four tables: metrics (JSON lines), episodes,
fingerprints and timing (CSV). Tables grow by whole lines; a segment is one start of the run. pandas is imported where
rows are read: a launcher looks at the statuses of a thousand runs without it.
"""

import csv
import errno
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from runners.files import create, write_atomically
from runners.record_claim import Claim
from runners.spec import SCHEMA, RunSpec

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]

_SEGMENT = {"schema": "int64", "segment": "int64"}
_PLACE = {"update": "int64", "env_steps": "int64", "wall_seconds": "float64"}
_SECONDS = ("rollout", "params_wait", "env", "inference", "rollout_wait", "learn")
# The columns of the CSV tables in order, with their types; those of cleanba.recorder after schema and segment.
COLUMNS: dict[str, dict[str, str]] = {
    "episodes": _SEGMENT | _PLACE | {
        "group": "int64", "env": "int64", "episode_return": "float64", "clipped_return": "float64",
        "episode_length": "int64", "truncated": "int64",
    },
    "fingerprints": _SEGMENT | {
        "update": "int64", "stage": "str", "shard": "int64", "digest": "str",
        "step_digests": "str",  # of a rollout's stage, 4 hex digits an env step
    },
    "timing": _SEGMENT | _PLACE | {f"{what}_seconds": "float64" for what in _SECONDS},
}  # fmt: skip
# Metrics have these columns and whatever else the trainer measures.
METRICS = {**_SEGMENT, "update": "int64", "env_steps": "int64", "frames": "int64", "wall_seconds": "float64"}
FILES = {"metrics": "metrics.jsonl", **{table: f"{table}.csv" for table in COLUMNS}}
HEARTBEAT_SECONDS = 1.0  # status.json is rewritten at most this often


@dataclass(frozen=True, kw_only=True)
class Status:
    """`state` is one of

    pending      no worker has begun
    running
    interrupted  ended from outside (a signal, a preemption, a machine that went away); the next run goes on with it
    complete
    failed       ended by itself, and would again
    invalid      trained on another machine
    """

    state: str
    reason: str = ""
    segment: int = 0
    started_at: str  # ISO 8601, UTC; of the segment
    updated_at: str
    env_steps: int = 0
    sps: float | None = None  # env steps a second, as the trainer last measured them
    pid: int = 0
    inexact_resume: bool = False  # it went on, without segments, from where it was saved: its bits are its own
    warnings: list[str] = field(default_factory=list)  # what went wrong beside the run, such as its W&B mirror
    schema: int = SCHEMA


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_status(folder: Path, status: Status) -> None:
    """Where no second file fits, on a full disk or at the end of a quota, the one that is there is written over: a
    failed run can say so."""
    path = folder / "status.json"
    try:
        write_atomically(path, asdict(status))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        with path.open("r+") as file:
            file.write(json.dumps(asdict(status)) + "\n")
            file.truncate()


def read_status(folder: Path) -> Status | None:
    """None where no run has started. Raises ValueError for a file that is not a status."""
    path = folder / "status.json"
    try:
        return Status(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read as a status ({error})") from error


def read_spec(folder: Path) -> RunSpec:
    """Raises ValueError for a file that is not a run spec, or one changed after it was written."""
    path = folder / "spec.json"
    try:
        return RunSpec.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: cannot be read as a run spec ({error})") from error


def check_meaning(folder: Path, spec: RunSpec) -> None:
    """Raise ValueError when the folder holds a record of another run, or of this one under another label."""
    if not (folder / "spec.json").exists():
        return
    found = read_spec(folder)
    for key in ("run_id", "experiment", "algorithm"):
        if (there := getattr(found, key)) != (declared := getattr(spec, key)):
            raise ValueError(f"{folder}: holds a record with {key} {there}, not {declared}; move it away first")


def prepare(folder: Path, spec: RunSpec) -> None:
    """Make the run's folder unless it is there. The spec is written last: a folder with one has a status too.

    Another launcher may do the same, and its worker may be through with the run already: nothing is written over.
    """
    check_meaning(folder, spec)
    if not (folder / "spec.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        status = Status(state="pending", started_at=now(), updated_at=now())
        with suppress(FileExistsError):
            create(folder / "status.json", json.dumps(asdict(status)) + "\n")
        with suppress(FileExistsError):
            create(folder / "spec.json", json.dumps(spec.to_json(), indent=1) + "\n")


def next_segment(folder: Path) -> int:
    """0 for a run's first start, then one more than the last."""
    return 1 + max((int(path.name.split(".")[1]) for path in folder.glob("machine.*.json")), default=-1)


def write_machine(folder: Path, segment: int, facts: Row) -> None:
    write_atomically(folder / f"machine.{segment}.json", {"schema": SCHEMA, "segment": segment, **facts})


class RecordWriter:
    """The trainer's Recorder (see cleanba.recorder): appends each row to its table before it returns.

    `on_metrics`, once set, is called with each row of metrics after it is written; the mirror follows the record so.
    """

    on_metrics: Callable[[Row], None] | None = None

    def __init__(self, folder: Path, *, segment: int, claim: Claim | None = None):
        """`claim`, held by a worker, is checked before every write: a record that is another's takes no more rows."""
        found = read_status(folder)
        if found and found.state == "complete":
            raise ValueError(f"{folder}: the record is complete; nothing may be added to it")
        self.folder = folder
        self._claim = claim
        self.status = Status(
            state="running", segment=segment, started_at=now(), updated_at=now(), pid=os.getpid(),
            env_steps=_reached(folder),
        )  # fmt: skip
        self._beat_at = monotonic()
        self._files = {table: _open_whole_lines(folder / name) for table, name in FILES.items()}
        for table, columns in COLUMNS.items():
            self._begin_table(table, ",".join(columns) + "\n")
        self._write_status()

    def metrics(self, row: Row) -> None:
        """A number that is not finite is stored as missing; whether the run goes on is the trainer's to say."""
        row = self._complete({key: _plain(value) for key, value in row.items()})
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }
        self._write("metrics", json.dumps(finite) + "\n")
        self._heartbeat(row["env_steps"], finite.get("charts/SPS"))
        if self.on_metrics:
            self.on_metrics(finite)

    def episodes(self, rows: Sequence[Row]) -> None:
        self._append("episodes", rows)

    def fingerprints(self, rows: Sequence[Row]) -> None:
        self._append("fingerprints", rows)

    def timing(self, row: Row) -> None:
        self._append("timing", [row])

    def close(self, state: str, reason: str = "") -> None:
        """The run's last word. A complete record is compacted before it is called complete; where that fails, the
        record may still be closed as failed."""
        self.check_claim()
        while self._files:
            os.close(self._files.popitem()[1])
        if state == "complete":
            compact(self.folder)
        self.status = replace(self.status, state=state, reason=reason, updated_at=now())
        self._write_status()

    def resumed(self, update: int, *, exact: bool) -> None:
        """The run goes on after `update`; its later rows supersede what an earlier segment wrote past that."""
        print(f"resumed after update {update}", file=sys.stderr)
        self.status = replace(self.status, inexact_resume=not exact)
        self._write_status()

    def warn(self, sentence: str) -> None:
        """Keep what a person should know of a run that goes on, or is over, all the same."""
        print(f"warning: {sentence}", file=sys.stderr)
        self.status = replace(self.status, warnings=[*self.status.warnings, sentence])
        with suppress(OSError):  # a warning that cannot be kept must not end the run
            self._write_status()

    def check_claim(self) -> None:
        """Raises ClaimLostError when another worker has taken the record over; for whoever writes beside the tables."""
        if self._claim:
            self._claim.check()

    def _begin_table(self, table: str, header: str) -> None:
        if os.fstat(self._files[table]).st_size == 0:
            self._write(table, header)
        elif (found := os.pread(self._files[table], len(header), 0).decode()) != header:
            raise ValueError(
                f"{self.folder / FILES[table]}: begins with {found.splitlines()[0]}; needed: {header.strip()}. "
                "Another version wrote it; go on with that one, or move the record away"
            )

    def _complete(self, row: Row) -> dict[str, Any]:
        return {"schema": SCHEMA, "segment": self.status.segment, **row}

    def _append(self, table: str, rows: Sequence[Row]) -> None:
        lines = io.StringIO()
        writer = csv.DictWriter(lines, list(COLUMNS[table]), extrasaction="raise", lineterminator="\n")
        for row in rows:
            whole = self._complete({key: _plain(value) for key, value in row.items()})
            if missing := [column for column in COLUMNS[table] if column not in whole]:
                raise ValueError(f"{table}: a row lacks {missing[0]}; needed: {', '.join(COLUMNS[table])}")
            writer.writerow({key: int(value) if isinstance(value, bool) else value for key, value in whole.items()})
        self._write(table, lines.getvalue())

    def _write(self, table: str, text: str) -> None:
        self.check_claim()
        _write_all(self._files[table], text)

    def _write_status(self) -> None:
        self.check_claim()
        write_status(self.folder, self.status)

    def _heartbeat(self, env_steps: int, sps: float | None) -> None:
        self.status = replace(self.status, env_steps=env_steps, sps=sps)
        if monotonic() - self._beat_at >= HEARTBEAT_SECONDS:
            self._beat_at = monotonic()
            self.status = replace(self.status, updated_at=now())
            self._write_status()


def _plain(value: Any) -> Any:
    """A number of numpy or JAX as Python's own."""
    return value.item() if hasattr(value, "item") else value


def _open_whole_lines(path: Path) -> int:
    """Open for appending. A line torn by the end of the last segment is cut, or it would spoil this segment's first."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    if path.is_file():
        whole, torn = _whole_lines(path)
        if torn:
            warnings.warn(f"{path}: a torn last line of {torn} bytes is cut", stacklevel=3)
            os.ftruncate(file, len(whole))
    return file


def _write_all(file: int, text: str) -> None:
    """Write past Python's buffers: what is written is the system's to keep when this process is killed."""
    left = text.encode()
    while left:
        left = left[os.write(file, left) :]


def _whole_lines(path: Path) -> tuple[bytes, int]:
    """(the whole lines, how many bytes stand after them)."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    return content[:end], len(content) - end


def last_metrics(folder: Path) -> dict[str, Any] | None:
    """The newest row of a run in progress, from the file's end. None before the first, or when it is compacted."""
    try:
        with (folder / FILES["metrics"]).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))  # a row has some 500 bytes
            whole = file.read().rpartition(b"\n")[0]
            return json.loads(whole.rpartition(b"\n")[2]) if whole else None
    except FileNotFoundError:
        return None


def _reached(folder: Path) -> int:
    """The env steps of the last row of metrics. A worker may have been killed after all of them, while it compacted."""
    if row := last_metrics(folder):
        return row["env_steps"]
    if (folder / "metrics.parquet").exists():
        return int(read_rows(folder, "metrics", ["env_steps"])["env_steps"].max())
    return 0


def read_rows(folder: Path, table: str, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """A table's rows: `metrics`, `episodes`, `fingerprints` or `timing`; all columns, or those named in their order.

    Where a later segment starts at update k, what earlier segments wrote from k on is superseded. A torn last line is
    dropped and said. A table without rows, or a metric never measured, is empty or missing (NaN), not an error.
    """
    rows = _compacted_single_segment(folder, table, columns)
    if rows is None:
        rows = _last_segment_wins(_stored_rows(folder, table), _stored_rows(folder, "metrics"))
    return rows if columns is None else rows.reindex(columns=list(columns))


def _compacted_single_segment(folder: Path, table: str, columns: Sequence[str] | None) -> "pd.DataFrame | None":
    """The wanted columns alone, ten times faster, where there is one file and nothing that a later segment supersedes;
    a report reads a thousand such runs. None for any other record."""
    parquet = folder / f"{table}.parquet"
    if not parquet.exists() or (folder / FILES[table]).exists() or next_segment(folder) > 1:
        return None
    return _read_parquet(parquet, columns)


def _read_parquet(path: Path, columns: Sequence[str] | None = None) -> "pd.DataFrame":
    """All columns, or those of `columns` that there are. Raises ValueError that names a damaged file, as pyarrow's own
    errors do not."""
    import pandas as pd
    import pyarrow.parquet

    try:
        stored = pyarrow.parquet.read_schema(path).names
        return pd.read_parquet(path, columns=[name for name in stored if columns is None or name in columns])
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: cannot be read, it is damaged or no Parquet file ({error})") from error


def compact(folder: Path) -> None:
    """Move each text table's rows into a Parquet file beside it, all segments kept. Safe to interrupt and repeat."""
    for table, name in FILES.items():
        text = folder / name
        if text.exists():
            temporary = folder / f".{table}.parquet"
            try:
                _stored_rows(folder, table).to_parquet(temporary, index=False)
                os.replace(temporary, folder / f"{table}.parquet")
            finally:
                temporary.unlink(missing_ok=True)
            text.unlink()


def _stored_rows(folder: Path, table: str) -> "pd.DataFrame":
    """The rows of all segments as they were written. A compaction that was cut short leaves some in both files."""
    import pandas as pd

    parquet = folder / f"{table}.parquet"
    text = _text_rows(folder, table)
    if not parquet.exists():
        return text
    compacted = _read_parquet(parquet)
    added = text.loc[~text["segment"].isin(compacted["segment"].tolist())]
    return pd.concat([compacted, added], ignore_index=True) if len(added) else compacted


def _text_rows(folder: Path, table: str) -> "pd.DataFrame":
    import pandas as pd

    text = folder / FILES[table]
    if not text.exists():
        return _empty(table)
    whole, torn = _whole_lines(text)
    if torn:
        warnings.warn(f"{text}: a torn last line of {torn} bytes is dropped", stacklevel=4)
    if not whole:
        return _empty(table)
    if table == "metrics":
        return pd.DataFrame([json.loads(line) for line in whole.splitlines()]).astype(METRICS)
    return pd.read_csv(io.BytesIO(whole), dtype=COLUMNS[table], float_precision="round_trip")  # type: ignore[call-overload]


def _empty(table: str) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in (COLUMNS | {"metrics": METRICS})[table].items()})


def _last_segment_wins(rows: "pd.DataFrame", metrics: "pd.DataFrame") -> "pd.DataFrame":
    """Drop what an earlier segment wrote from the first update of a later one on."""
    import pandas as pd

    places = pd.concat([rows[["segment", "update"]], metrics[["segment", "update"]]])
    for segment, first_update in places.groupby("segment")["update"].min().items():
        rows = rows.loc[(rows["segment"] >= segment) | (rows["update"] < first_update)]
    return rows.reset_index(drop=True)
