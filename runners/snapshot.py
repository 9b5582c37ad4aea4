"""A snapshot of runs of W&B on disk: `runners.wandb_runs` writes it, `analysis` reads it without a network.

A folder holds `manifest.json` and one Parquet file per run, <entity>/<project>/<run>.parquet, with HISTORY: a row per
W&B step at which one of the columns was logged, in the order of the steps. The manifest lists the runs: ids, state,
tags, config, which metric is which column with how many rows it has, the last step as fetched and as the run's summary
has it, when it was fetched, and the file's SHA-256.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.spec import SCHEMA

if TYPE_CHECKING:
    import pandas as pd

Entry = Mapping[str, Any]

MANIFEST = "manifest.json"
HISTORY = ["wandb_step", "steps", "episode_return", "wall_seconds"]  # the first counts log calls, not env steps


def read_manifest(folder: Path) -> list[Entry]:
    """The runs of a snapshot in the order in which they were fetched.

    Raises ValueError for a manifest that cannot be read and for a file that is not the one that was fetched.
    """
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error}); allowed: the file as it was written") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: is no manifest of schema {SCHEMA}; allowed: the file as it was written")
    for entry in content["runs"]:
        file = folder / entry["file"]
        if not file.is_file() or _digest(file) != entry["digest"]:
            raise ValueError(
                f"{file}: is not the history that was fetched; allowed: the file with the SHA-256 of {path}"
            )
    return content["runs"]


def write_run(folder: Path, entries: Iterable[Entry], entry: Entry, history: "pd.DataFrame") -> Entry:
    """Add a run after `entries`: its file first, then the manifest that names it. Returns the entry as written."""
    file = Path(entry["entity"], entry["project"], f"{entry['run']}.parquet")
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{os.getpid()}"
    history[HISTORY].to_parquet(temporary, index=False)
    os.replace(temporary, folder / file)
    written = {**entry, "file": str(file), "digest": _digest(folder / file)}
    temporary.write_text(json.dumps({"schema": SCHEMA, "runs": [*entries, written]}, indent=1) + "\n")
    os.replace(temporary, folder / MANIFEST)
    return written


def setting(config: Mapping[str, Any], key: str) -> Any:
    """A run's setting by its key; `a.value.b` is b of the setting a, as W&B nests them."""
    found: Any = config
    for part in key.split("."):
        if part != "value":
            found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
