"""The W&B mirror of a run's record: written from its rows, offline unless asked, never a reason for a run to fail."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runners.options import Options
from runners.record import Row
from runners.spec import RunSpec

INIT_TIMEOUT_SECONDS = 30.0  # wandb's own 90 would hold up a run that has no network
FINISH_TIMEOUT_SECONDS = 120.0  # for the last rows; what does not arrive stays in the run's folder for `wandb sync`


Warn = Callable[[str], None]


class Mirror:
    """Hands the first row, every `log_frequency`-th and the last to a W&B run until the first failure, told once."""

    def __init__(self, run: Any, log_frequency: int, warn: Warn):
        self._run = run
        self._log_frequency = log_frequency
        self._warn = warn
        self._unlogged: Row | None = None

    def metrics(self, row: Row) -> None:
        """One row of the record's metrics, with the original's `global_step` beside `env_steps`."""
        self._unlogged = row
        if row["update"] == 1 or row["update"] % self._log_frequency == 0:
            self._log()

    def finish(self, exit_code: int) -> None:
        self._log()
        self._attempt(lambda run: run.finish(exit_code=exit_code))

    def _log(self) -> None:
        if row := self._unlogged:
            self._attempt(lambda run: run.log({**row, "global_step": row["env_steps"]}))
        self._unlogged = None

    def _attempt(self, action: Callable[[Any], None]) -> None:
        if self._run is None:
            return
        try:
            action(self._run)
        except Exception as error:  # whatever W&B raises, the record has the rows
            self._warn(_sentence("mirror off", error))
            self._run = None


def mode(track: bool) -> str:
    """WANDB_MODE wins; else online when asked, offline otherwise."""
    return os.environ.get("WANDB_MODE") or ("online" if track else "offline")


def start_mirror(spec: RunSpec, folder: Path, options: Options, *, describe: str | None, warn: Warn) -> Mirror:
    """Begin the W&B run of a record; a mirror that does nothing when W&B is disabled or cannot start."""
    if mode(options.track) == "disabled":
        return Mirror(None, options.log_frequency, warn)
    for attempt in dict.fromkeys((mode(options.track), "offline")):  # a server out of reach still leaves a file to sync
        try:
            return Mirror(_init(spec, folder, options, describe, attempt), options.log_frequency, warn)
        except Exception as error:  # no network, no login, no disk: the run goes on without
            warn(_sentence(f"{attempt} mirror failed", error))
            _forget_service(warn)
    return Mirror(None, options.log_frequency, warn)


def config(spec: RunSpec) -> dict[str, Any]:
    """The resolved spec, flat where openrlbenchmark's filters look: `env_id`, `exp_name`, `seed`; profiles are tags."""
    stored = spec.to_json()
    return {
        **stored.pop("settings"),
        **{key: value for key, value in stored.items() if key not in ("schema", "question")},
        "exp_name": spec.algorithm,
    }


def _init(spec: RunSpec, folder: Path, options: Options, describe: str | None, attempt: str):
    import wandb

    run = wandb.init(
        project=options.wandb_project,
        entity=options.wandb_entity,
        group=spec.experiment,
        job_type="train",
        id=spec.run_id,
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
        ),
    )
    run.define_metric("env_steps")
    run.define_metric("*", step_metric="env_steps")
    return run


def _forget_service(warn: Warn) -> None:
    """W&B's service process keeps the id of a run that could not start; a second attempt needs a new process."""
    try:
        import wandb

        wandb.teardown()
    except Exception as error:
        warn(_sentence("service could not be ended", error))


def _sentence(what: str, error: Exception) -> str:
    return f"W&B {what}, the run goes on: {type(error).__name__}: {' '.join(str(error).split())}"
