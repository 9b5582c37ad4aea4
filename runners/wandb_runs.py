"""Fetches the histories of runs from W&B into a snapshot: whole, and once.

Metrics are scanned one by one and joined by W&B's step, since a scan of several gives the rows only that have them all.
`scan_history` is the full history; `history()`, which is not used, is a sample of 500 rows. Requests are repeated by
W&B's own client, which waits as long as a Retry-After asks; downloads, which it does not repeat, are repeated here.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runners import snapshot

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

# W&B's own settings for a request; its default is to try for some twenty minutes.
REQUESTS = {
    "x_graphql_retry_max": 8,
    "x_graphql_retry_wait_min_seconds": 1.0,
    "x_graphql_retry_wait_max_seconds": 60.0,
    "x_graphql_timeout_seconds": 30.0,
}
LONGEST_REQUEST_SECONDS = 900  # of one request with all its repetitions
SCANS = 3  # tries of a metric's scan
WAIT_SECONDS = 2.0  # before the second try; twice that before the third
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has no numbers for these


@dataclass(frozen=True, kw_only=True)
class Query:
    """Runs of one project, by a filter in MongoDB's language, and which of their metrics are fetched.

    `columns` names the metrics steps, episode_return and wall_seconds, and the config's env_id, seed and algorithm.
    """

    entity: str
    project: str
    where: Mapping[str, Any]
    columns: Mapping[str, str]
    label: str | None = None  # the runs' algorithm, where it is not their config's
    env_ids: Sequence[str] = ()  # games that should have runs; those without are told


def parse_project(path: Path | None) -> tuple[str, str]:
    """(entity, project) of ENTITY/PROJECT."""
    parts = path.parts if path else ()
    if len(parts) != 2 or parts[0] == "/":
        raise ValueError(f"wandb is asked for {path}; allowed: ENTITY/PROJECT, or the folder of a snapshot")
    return parts[0], parts[1]


def parse_filter(where: str, tags: Sequence[str]) -> dict[str, Any]:
    """The filter, given as JSON, of runs that also have all of the tags."""
    try:
        stated = json.loads(where)
    except ValueError as error:
        raise ValueError(f"--where is {where!r} ({error}); allowed: a JSON object") from None
    if not isinstance(stated, dict):
        raise ValueError(f"--where is {where!r}; allowed: a JSON object")
    return {"$and": [stated, *({"tags": {"$in": [tag]}} for tag in tags)]}


def fetch(queries: Sequence[Query], folder: Path) -> list[str]:
    """Add to the snapshot what it does not have, run by run, so that a second call goes on where the first stopped.

    Returns the sentences to print. Raises ValueError when W&B does not answer, for a query without runs, for a history
    that is not whole, and for a run that has changed since it was fetched.
    """
    entries = list(snapshot.read_manifest(folder)) if (folder / snapshot.MANIFEST).is_file() else []
    there = {_path(entry["entity"], entry["project"], entry["run"]): entry for entry in entries}
    api, fetched, sentences = _api(), 0, []
    for query in queries:
        found = _runs(api, query)
        games = {snapshot.setting(run.config, query.columns["env_id"]) for run in found}
        if without := [env_id for env_id in query.env_ids if env_id not in games]:
            sentences.append(f"{query.label or query.where}: no run on {', '.join(without)}")
        for run in found:
            path = _path(query.entity, query.project, run.id)
            if run.state == "running":
                sentences.append(f"{path} is still running: skipped")
            elif path in there:
                _check_unchanged(path, there[path], run, query)
            else:
                there[path] = snapshot.write_run(folder, entries, *_history(path, run, query))
                entries.append(there[path])
                fetched += 1
    return [f"{folder}: {fetched} runs fetched, {len(entries)} in the snapshot", *sentences]


def _path(entity: str, project: str, run: str) -> str:
    return f"{entity}/{project}/{run}"


def _api() -> Any:
    """Raises ValueError without a login, and where the server does not answer."""
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True, **REQUESTS))
    try:
        return wandb.Api(timeout=LONGEST_REQUEST_SECONDS)
    except _failures() as error:
        raise ValueError(f"W&B: {_words(error)}; needed: `wandb login`, or WANDB_API_KEY, and a network") from None


def _runs(api: Any, query: Query) -> list[Any]:
    """All runs of a query, with their config and summary."""
    where = f"W&B project {query.entity}/{query.project}"
    try:
        found = list(api.runs(f"{query.entity}/{query.project}", filters=dict(query.where), lazy=False))
    except ValueError as error:  # no such project, or one that this login may not read
        raise ValueError(f"{where}: {error}; allowed: a project that your login can read") from None
    except _failures() as error:
        raise ValueError(f"{where}: {_words(error)}; allowed: the same command later") from None
    if not found:
        raise ValueError(f"{where}: no run matches {dict(query.where)}; allowed: a filter that some runs match")
    return found


def _check_unchanged(path: str, entry: snapshot.Entry, run: Any, query: Query) -> None:
    for key, now in (
        ("heartbeat_at", run.heartbeat_at),
        ("columns", dict(query.columns)),
        ("label", query.label),
    ):
        if entry[key] != now:
            raise ValueError(f"{path}: was fetched with {key} {entry[key]}, now it is {now}; allowed: another --as")


def _history(path: str, run: Any, query: Query) -> tuple[dict[str, Any], "pd.DataFrame"]:
    """(entry, history) of a run; a metric that the run does not have is a column without values."""
    import pandas as pd

    names = {ours: query.columns[ours] for ours in snapshot.HISTORY[1:]}
    metrics = {ours: _scan(path, run, name) for ours, name in names.items()}
    for ours in ("steps", "episode_return"):
        if not metrics[ours]:
            known = ", ".join(sorted(key for key in dict(run.summary) if not key.startswith("_")))
            raise ValueError(f"{path}: has no metric {names[ours]!r}; allowed: {known or 'none, it logged nothing'}")
    joined = pd.DataFrame({ours: pd.Series(values, dtype=float) for ours, values in metrics.items()}).sort_index()
    last, said = float(joined["steps"].dropna().iloc[-1]), dict(run.summary).get(names["steps"])
    said = float(said) if isinstance(said, int | float) else None
    if said is not None and said != last:
        raise ValueError(
            f"{path}: its history ends at {names['steps']} {last:,.0f}, its summary says {said:,.0f}; "
            "allowed: a whole history (the same command later, or a filter without this run)"
        )
    entry = {
        "entity": query.entity, "project": query.project, "run": run.id, "run_name": run.name, "state": run.state,
        "tags": list(run.tags), "config": dict(run.config), "label": query.label, "columns": dict(query.columns),
        "created_at": run.created_at, "heartbeat_at": run.heartbeat_at, "rows": len(joined),
        "metrics": [{"name": name, "rows": len(metrics[ours])} for ours, name in names.items()],
        "last_steps": last, "summary_last_steps": said,
        "fetched_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    return entry, joined.rename_axis("wandb_step").reset_index()


def _scan(path: str, run: Any, metric: str) -> dict[int, float]:
    """{W&B step: value} of the rows that have the metric; of two rows of one step the later counts.

    The cache is off: W&B names its file by the run alone and does not see that the run has gone on.
    """
    rows = _repeated(f"{path}: {metric}", lambda: list(run.scan_history(keys=["_step", metric], use_cache=False)))
    return {int(row["_step"]): _number(path, row, metric) for row in rows if row.get(metric) is not None}


def _number(path: str, row: Mapping[str, Any], metric: str) -> float:
    value = row[metric]
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path}, W&B step {row['_step']}: {metric} is {value!r}; allowed: a metric of numbers")
    return float(value)


def _repeated(what: str, call: Callable[[], T]) -> T:
    for tried in range(SCANS):
        try:
            return call()
        except _failures() as error:
            if tried + 1 == SCANS:
                raise ValueError(
                    f"{what}: {_words(error)}, {SCANS} times; allowed: the same command later, which goes on here"
                ) from None
        time.sleep(WAIT_SECONDS * 2**tried)
    raise AssertionError("SCANS is above 0")


def _failures() -> tuple[type[Exception], ...]:
    from wandb.errors import Error
    from wandb.sdk.lib.service.service_connection import WandbApiFailedError

    return Error, WandbApiFailedError, TimeoutError


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
