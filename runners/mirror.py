"""The W&B mirror of a run's record: written from its rows, offline unless asked, never a reason for a run to fail or to
wait. `start_mirror` follows a run while it trains; `mirror_record` writes what a record has, at any time after.

A row's W&B step is its update, so that a row is never there twice. A run of several segments is one W&B run: the mirror
of a later segment begins with the rows before it.
"""

import os
import queue
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep, thread_time
from typing import Any

from runners.options import Options
from runners.record import Row, read_rows, read_spec, read_status
from runners.spec import RunSpec
from runners.status import cells
from runners.wandb_file import count_rows

INIT_TIMEOUT_SECONDS = 30.0  # wandb's own 90 would hold up the end of a short run that has no network
FINISH_TIMEOUT_SECONDS = 120.0  # for the last rows; what does not arrive stays in the run's folder for `cleanba mirror`
REQUEST_SECONDS = 20.0  # for one answer of the server
RETRIES = 5  # of a request, with pauses that double up to MAX_PAUSE_SECONDS, or as long as Retry-After asks for
MAX_PAUSE_SECONDS = 20.0
MAX_FAILURES = 3
WAITING_ROWS = 10_000  # that are kept in memory, some 5 MB; further ones are read from the record at the end
SETTLE_SECONDS = 5.0  # for an offline file to be written out
SHARE = 0.01  # of a CPU, at most, for handing rows over while the run trains: wandb takes about 1 ms a row

Warn = Callable[[str], None]


class Mirror:
    """Hands the first row, every `log_frequency`-th and the last to a W&B run, in a thread of its own, until the first
    failure, which is told once. `open_run` begins the W&B run, or returns None where there is to be none;
    `recorded_rows` are all of the record so far. A thread that is behind catches up when the run is over."""

    def __init__(
        self,
        open_run: Callable[[Warn], Any],
        log_frequency: int,
        warn: Warn,
        *,
        recorded_rows: Callable[[], Iterable[Row]] = list,
        finished: Callable[[Any], None] = lambda run: None,
    ):
        self._open_run, self._recorded_rows, self._finished = open_run, recorded_rows, finished
        self._log_frequency, self._warn = log_frequency, warn
        self._unlogged: Row | None = None
        self._rows: queue.Queue[Row | int] = queue.Queue(WAITING_ROWS)  # a number is the exit code, and the end
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()  # of the thread, for the owner of the record to keep
        self._is_off, self._is_behind, self._is_over = False, False, Event()
        self._thread = Thread(target=self._follow, name="mirror", daemon=True)
        self._thread.start()

    def metrics(self, row: Row) -> None:
        """One row of the record's metrics. Takes microseconds, whatever W&B does."""
        self._unlogged = row
        if self._is_wanted(row):
            self._hand_over()
        self._pass_on()

    def finish(self, exit_code: int) -> None:
        """Wait for the last rows, not for ever."""
        self._hand_over()
        self._is_over.set()
        if not self._is_off:
            with suppress(queue.Full):
                self._rows.put(exit_code, timeout=FINISH_TIMEOUT_SECONDS)
            self._thread.join(INIT_TIMEOUT_SECONDS + FINISH_TIMEOUT_SECONDS)
            if self._thread.is_alive():
                self._tell_off("it does not end; `cleanba mirror` sends what is missing")
        self._pass_on()

    def _is_wanted(self, row: Row) -> bool:
        return row["update"] == 1 or row["update"] % self._log_frequency == 0

    def _hand_over(self) -> None:
        if self._unlogged and not self._is_off and not self._is_behind:
            try:
                self._rows.put_nowait(self._unlogged)
            except queue.Full:
                self._is_behind = True
        self._unlogged = None

    def _pass_on(self) -> None:
        while not self._told.empty():
            self._warn(self._told.get())

    def _tell_off(self, why: str) -> None:
        self._is_off = True
        self._told.put(f"W&B mirror off, the run goes on: {why}")

    def _follow(self) -> None:
        try:
            run = self._open_run(self._told.put)
            if run is None:
                self._is_off = True
                return
            logged = 0
            while not isinstance(row := self._rows.get(), int):
                began = thread_time()
                if not logged and row.get("segment"):  # the run goes on from an earlier segment's rows
                    self._log_recorded(run, 0, row["update"])
                log(run, row)
                logged = row["update"]
                self._is_over.wait((thread_time() - began) / SHARE)
            if self._is_behind:
                self._log_recorded(run, logged + 1, sys.maxsize)
            run.finish(exit_code=row)
            self._finished(run)
        except Exception as error:  # whatever W&B raises, the record has the rows
            self._tell_off(_words(error))

    def _log_recorded(self, run: Any, first: int, end: int) -> None:
        """The rows of updates from `first` to before `end`, as the record has them."""
        wanted = [row for row in self._recorded_rows() if first <= row["update"] < end]
        for row in wanted:
            if self._is_wanted(row) or (row is wanted[-1] and end == sys.maxsize):
                log(run, row)


def log(run: Any, row: Row) -> None:
    """With the original's `global_step` beside `env_steps`. Rows that the server has already are left out."""
    if row["update"] >= run.starting_step:
        measured = {key: value for key, value in row.items() if value is not None}
        run.log(measured | {"global_step": row["env_steps"]}, step=row["update"])


def mode(track: bool) -> str:
    """WANDB_MODE wins; else online when asked, offline otherwise."""
    return os.environ.get("WANDB_MODE") or ("online" if track else "offline")


def start_mirror(spec: RunSpec, folder: Path, options: Options, *, describe: str | None, warn: Warn) -> Mirror:
    """Begin the W&B run of a record; a mirror that does nothing when W&B is disabled or cannot start."""

    def open_run(warn: Warn) -> Any:
        if not options.mirror or mode(options.track) == "disabled":
            return None
        for attempt in dict.fromkeys((mode(options.track), "offline")):  # without a server there is still a file
            try:
                return init(spec, folder, options.wandb_project, options.wandb_entity, describe, attempt)
            except Exception as error:  # no network, no login, no disk: the run goes on without
                warn(f"W&B {attempt} mirror failed, the run goes on: {_words(error)}")
                _forget_service(warn)
        return None

    return Mirror(
        open_run, options.log_frequency, warn,
        recorded_rows=lambda: rows_of(folder), finished=lambda run: _remove_older_files(folder, run),
    )  # fmt: skip


def mirror_record(
    spec: RunSpec, folder: Path, *, online: bool, project: str, entity: str | None, describe: str | None = None
) -> str:
    """Bring the W&B run of a record up to date, offline or on the server, and count its rows. Returns what was done.
    Raises RuntimeError when W&B fails or lacks a row that it can take: on the server, none before its last one."""
    rows, status = rows_of(folder), read_status(folder)
    if not online and len(rows) == max(map(count_rows, _files(folder)), default=-1):
        return f"has all {len(rows):,} rows"
    try:
        run = init(spec, folder, project, entity, describe, "online" if online else "offline")
        for row in rows:
            log(run, row)
        run.finish(exit_code=0 if status and status.state == "complete" else 1)
        there, closed = _on_the_server(run, rows) if online else (_rows_in_file(run, len(rows)), 0)
    except Exception as error:
        _forget_service(print)
        raise RuntimeError(f"W&B: {_words(error)}") from error
    if there + closed != len(rows):
        raise RuntimeError(f"W&B has {there:,} rows, the record {len(rows):,}")
    if closed:
        return (
            f"has {there:,} of {len(rows):,} rows; the live mirror left the others out, and W&B takes none of them now"
        )
    if not online:
        _remove_older_files(folder, run)
    return f"{'sent' if online else 'wrote'} {len(rows):,} rows"


def mirror_experiment(
    results: Path, experiment: str, *, online: bool, project: str, entity: str | None
) -> Iterator[tuple[bool, str]]:
    """Bring the W&B runs of an experiment up to date: per record whether its rows are there, and a sentence. Ends
    after MAX_FAILURES in a row: a server that is away would be asked a thousand times."""
    failures = 0
    for cell in cells(results, experiment):
        folder = results / "runs" / cell.experiment / cell.run_id
        spec, name = read_spec(folder), f"{cell.run_id} {cell.algorithm} {cell.env_id} {cell.profile} s{cell.seed}"
        if cell.state in ("pending", "running"):
            yield True, f"{name}: is {cell.state}, left alone"
            continue
        try:
            yield True, f"{name}: {mirror_record(spec, folder, online=online, project=project, entity=entity)}"
            failures = 0
        except RuntimeError as error:
            yield False, f"{name}: {error}"
            failures += 1
        if failures == MAX_FAILURES:
            return


def rows_of(folder: Path) -> list[Row]:
    """The metrics of a record as its trainer made them: what was not measured is absent."""
    rows = read_rows(folder, "metrics").astype(object)
    return [{key: value for key, value in row.items() if value == value} for row in rows.to_dict("records")]  # no NaN


def config(spec: RunSpec) -> dict[str, Any]:
    """The resolved spec, flat where openrlbenchmark's filters look: `env_id`, `exp_name`, `seed`; profiles are tags."""
    stored = spec.to_json()
    return {
        **stored.pop("settings"),
        **{key: value for key, value in stored.items() if key not in ("schema", "question")},
        "exp_name": spec.algorithm,
    }


def init(spec: RunSpec, folder: Path, project: str, entity: str | None, describe: str | None, attempt: str) -> Any:
    """Begin or, on the server, go on with the W&B run of a record. Raises what wandb raises."""
    import wandb

    retries: dict[str, Any] = {
        f"x_{what}_{setting}": value
        for what in ("graphql", "file_stream", "file_transfer")
        for setting, value in (
            ("retry_max", RETRIES), ("retry_wait_min_seconds", 1.0), ("retry_wait_max_seconds", MAX_PAUSE_SECONDS),
            ("timeout_seconds", REQUEST_SECONDS),
        )
    }  # fmt: skip
    run = wandb.init(
        project=project,
        entity=entity,
        group=spec.experiment,
        job_type="train",
        id=spec.run_id,
        resume="allow" if attempt == "online" else None,  # offline, wandb ignores it and says so
        name=spec.name,
        tags=[tag for tag in (describe, spec.profile.name) if tag],
        config=config(spec),
        dir=folder,
        mode=attempt,  # type: ignore[arg-type]
        # The record has the machine's facts; W&B's own would add host and user names.
        settings=wandb.Settings(
            console="off",
            silent=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_TIMEOUT_SECONDS)),
            finish_timeout=FINISH_TIMEOUT_SECONDS,
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            host="undisclosed",
            **retries,
        ),
    )
    run.define_metric("env_steps")
    run.define_metric("*", step_metric="env_steps")
    return run


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def _remove_older_files(folder: Path, run: Any) -> None:
    """Offline runs of earlier segments, whose rows are all in this one: `wandb sync` would send them as well."""
    current = Path(run.settings.sync_file)
    if current in _files(folder):
        for path in _files(folder):
            if path != current:
                shutil.rmtree(path.parent)


def _rows_in_file(run: Any, expected: int) -> int:
    """W&B's service may still be writing the file when it calls the run finished."""
    path, deadline = Path(run.settings.sync_file), monotonic() + SETTLE_SECONDS
    while (found := count_rows(path)) != expected and monotonic() < deadline:
        sleep(0.1)
    return found


def _on_the_server(run: Any, rows: list[Row]) -> tuple[int, int]:
    """(rows of the record that are there, rows that are not and, being before the last that was, cannot be added)"""
    import wandb

    stored = wandb.Api(timeout=int(REQUEST_SECONDS)).run(f"{run.entity}/{run.project}/{run.id}")
    there = {row["update"] for row in stored.scan_history(keys=["update"])}
    missing = [row["update"] for row in rows if row["update"] not in there]
    return len(rows) - len(missing), sum(update < run.starting_step for update in missing)


def _forget_service(warn: Warn) -> None:
    """W&B's service process keeps the id of a run that could not start; a second attempt needs a new process."""
    try:
        import wandb

        wandb.teardown()
    except Exception as error:
        warn(f"W&B service could not be ended, the run goes on: {_words(error)}")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
