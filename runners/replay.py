"""`cleanba bisect`: train a recorded run again on this machine, up to the first fingerprint that differs."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from runners.launcher import launch
from runners.options import Options
from runners.progress import open_display
from runners.record import RecordWriter, read_rows, read_spec, read_status

Row = Mapping[str, Any]
PLACE = ("update", "stage", "shard")


class DifferenceError(Exception):
    """Says where the run that is trained again parts from its record."""


class Replay:
    """A recorder that keeps a record and ends the run at the first fingerprint that another record does not have."""

    def __init__(self, writer: RecordWriter, recorded: Path):
        self._writer = writer
        rows = read_rows(recorded, "fingerprints", [*PLACE, "digest"])
        self._digests = dict(zip(zip(*(rows[name] for name in PLACE)), rows["digest"], strict=True))
        self._updates = set(rows["update"])

    def metrics(self, row: Row) -> None:
        self._writer.metrics(row)

    def episodes(self, rows: Sequence[Row]) -> None:
        self._writer.episodes(rows)

    def timing(self, row: Row) -> None:
        self._writer.timing(row)

    def fingerprints(self, rows: Sequence[Row]) -> None:
        self._writer.fingerprints(rows)
        for row in rows:
            update, stage, shard = (row[name] for name in PLACE)
            if update in self._updates and self._digests.get((update, stage, shard)) != row["digest"]:
                where = "" if shard < 0 else f", shard {shard}"
                raise DifferenceError(f"update {update}, stage {stage}{where} differs from the record")


def replay(recorded: Path, results: Path) -> Path:
    """Train the run recorded in a folder again, under the experiment name `bisect-<n>`; the new record's folder.

    The machine need not be the profile's: what differs is what is asked for. Raises ValueError where nothing can be
    compared, and where the run ends for another reason than a difference.
    """
    spec, status = read_spec(recorded), read_status(recorded)
    if status and status.inexact_resume:
        raise ValueError(f"{recorded}: the run was resumed without segments: no run from the start has its bits")
    if read_rows(recorded, "fingerprints", ["update"]).empty:
        raise ValueError(f"{recorded}: the run has no fingerprints; nothing can be compared")
    number = 1
    while (results / "runs" / f"bisect-{number}" / spec.run_id).exists():
        number += 1
    cell = dataclasses.replace(spec, experiment=f"bisect-{number}")
    options = Options(replay_of=str(recorded.resolve()), allow_mismatch=True, save_policy=False, mirror=False)
    outcomes = launch([cell], results, jobs=1, options=options, display=open_display(1, Console(stderr=True)))
    if not outcomes:
        raise ValueError("stopped before the run began")
    outcome = outcomes[0]
    if outcome.state == "failed" and not outcome.reason.startswith(DifferenceError.__name__):
        raise ValueError(f"the run trained again failed: {outcome.reason}; its log: {outcome.log}")
    if outcome.state not in ("complete", "invalid", "failed"):
        raise ValueError(f"the run trained again is {outcome.state}: {outcome.reason}")
    return outcome.folder
