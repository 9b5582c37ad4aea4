"""Checkpoints of a run, and what it takes to go on from one.

EnvPool cannot save its emulators. A run in segments (`segment_updates`) has fresh envs in each, interrupted or not, so
that going on from a segment's end gives the same bits as never having stopped. A run without segments is saved now and
then and when it is asked to stop; going on from there is another run than the one that was not stopped.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from cleanba.config import Config

SAVE_SECONDS = 600.0  # between checkpoints of a run without segments; a shorter one had better begin again
KEPT = 2
_DIGEST_BYTES = 32  # of SHA-256


class Checkpoint(NamedTuple):
    """What a run is after `update`; every random stream is addressed by the update, so that none has a state."""

    update: int
    params: Any
    optimizer_state: Any
    previous_params: Any  # a version older: under `cleanba` the next rollout is made with them
    last_returns: Any  # [num_envs] each env's last finished episode's return, NaN before it
    wall_seconds: float  # of training so far
    restarts: int = 0  # without segments: how often the envs were opened anew at no segment's end


class Stopped(Exception):
    """The run was asked to stop; says whether it is saved."""


class NoCheckpoints:
    """A run that is not saved."""

    def restore(self, initial: Checkpoint) -> Checkpoint:
        return initial

    def after(self, update: int, make: Callable[[], Checkpoint]) -> None:
        pass


NO_CHECKPOINTS = NoCheckpoints()


class Checkpoints:
    """A run's checkpoints under `folder`, the newest `KEPT`."""

    def __init__(
        self, folder: Path, config: Config, *,
        warn: Callable[[str], None] = print, resumed: Callable[[int], None] = lambda update: None,
    ):  # fmt: skip
        """`warn` is told of a checkpoint that cannot be used, `resumed` the update after which the run goes on."""
        self._stop = False
        self._folder = folder.absolute()
        self._config = config
        self._warn = warn
        self._resumed = resumed
        self._saved_at = time.monotonic()
        self._saved_after: int | None = None

    def stop(self) -> bool:
        """Ask the run to stop. Whether it is saved at the end of its update; if not, nobody need wait for that."""
        self._stop = True
        return self._is_old()

    def restore(self, initial: Checkpoint) -> Checkpoint:
        """The newest checkpoint that is whole, or `initial` where there is none."""
        if not self._folder.is_dir():
            return initial
        with self._open() as manager:
            for update in sorted(manager.all_steps(), reverse=True):
                try:
                    found = _read(manager, update, initial)
                except Exception as error:  # Orbax has no common class of errors, and any of them means: not this one
                    first_line = str(error).partition("\n")[0]
                    self._warn(f"{self._folder / str(update)}: the checkpoint cannot be used ({first_line})")
                    continue
                self._resumed(update)
                self._saved_after = update
                return found if self._config.segment_updates else found._replace(restarts=found.restarts + 1)
        return initial

    def after(self, update: int, make: Callable[[], Checkpoint]) -> None:
        """Save if it is time to; raise Stopped if the run was asked to stop. The first process does it for all, whose
        state is the same."""
        if update == self._config.num_updates or jax.process_index() > 0:
            return
        if self._config.segment_updates:
            due = update % self._config.segment_updates == 0
        else:
            due = time.monotonic() - self._saved_at >= SAVE_SECONDS or (self._stop and self._is_old())
        if due:
            with self._open() as manager:
                _write(manager, make())
            self._saved_at, self._saved_after = time.monotonic(), update
        if self._stop:
            raise Stopped("not saved yet" if self._saved_after is None else f"saved after update {self._saved_after}")

    def _is_old(self) -> bool:
        """Without segments: whether it had better go on inexactly than begin again."""
        if self._config.segment_updates:
            return False
        return self._saved_after is not None or time.monotonic() - self._saved_at >= SAVE_SECONDS

    def _open(self):
        # Imported here: it takes two seconds, which a run that saves nothing can do without. No process waits for the
        # others of the run: one writes, and each reads for itself.
        import orbax.checkpoint as ocp

        own = jax.process_index()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=KEPT,
            enable_async_checkpointing=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"checkpoints_{own}"
            ),
            create=False,
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        return ocp.CheckpointManager(self._folder, options=options)


def _write(manager: Any, checkpoint: Checkpoint) -> None:
    import orbax.checkpoint as ocp

    leaves = _leaves(checkpoint)
    # Orbax does not notice a byte that has changed on the disk.
    content = {"digest": np.frombuffer(_digest(leaves), np.uint8)} | leaves
    if checkpoint.update in manager.all_steps():  # one that could not be used
        manager.delete(checkpoint.update)
    manager.save(checkpoint.update, args=ocp.args.StandardSave(content))


def _read(manager: Any, update: int, like: Checkpoint) -> Checkpoint:
    """The checkpoint after `update`, in the form of `like`. Raises ValueError where it is not what was written."""
    import orbax.checkpoint as ocp

    form = {"digest": np.zeros(_DIGEST_BYTES, np.uint8)} | _leaves(like)
    found = manager.restore(update, args=ocp.args.StandardRestore(form))
    digest = found.pop("digest").tobytes()
    if digest != _digest(found):
        raise ValueError("its digest is not that of its content")
    values = [found[name] for name in _leaves(like)]
    restored = jax.tree.unflatten(jax.tree.structure(like), values)
    return restored._replace(
        update=int(restored.update), wall_seconds=float(restored.wall_seconds), restarts=int(restored.restarts)
    )


def _leaves(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Every array by the path to it."""
    paths, _ = jax.tree.flatten_with_path(checkpoint)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in paths}


def _digest(leaves: dict[str, np.ndarray]) -> bytes:
    total = hashlib.sha256()
    for name in sorted(leaves):
        total.update(f"{name} {leaves[name].dtype} {leaves[name].shape} ".encode())
        total.update(np.ascontiguousarray(leaves[name]).tobytes())
    return total.digest()
