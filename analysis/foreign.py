"""Runs of others as their logs tell them: what every parser returns, and how games, units and restarts are read.

Nothing is guessed: a unit that the source does not define, a game that the log does not name and a seed that nobody
states are asked for, or said to be unknown.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.scores import ATARI57

FRAMES_PER_ENV_STEP = 4  # Atari's action repeat, in the sources read here and in this project
UNITS = ("env_steps", "frames")
# Atari games without a human score, which Dopamine's logs have.
UNSCORED = ("AirRaid-v5", "Carnival-v5", "ElevatorAction-v5", "JourneyEscape-v5", "Pooyan-v5")
GAMES = {env_id.removesuffix("-v5").lower(): env_id for env_id in (*ATARI57, *UNSCORED)}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the user states about the logs; None is not stated."""

    unit: str | None = None
    protocol: str | None = None
    producer: str | None = None
    algorithm: str | None = None
    env_id: str | None = None
    seed: int | None = None
    folder_pattern: str | None = None  # of a run's folder, such as {env_id}-{seed}-*
    columns: Mapping[str, str] = field(default_factory=dict)  # what it is -> the name of its column
    filters: tuple[tuple[str, ...], ...] = ()  # groups of openrlbenchmark's filter strings
    env_ids: tuple[tuple[str, ...], ...] = ()  # games of all groups, or of each


@dataclass(frozen=True, kw_only=True)
class ForeignRun:
    """One run. `curve` has steps (in `unit`), episode_return, num_episodes, wall_seconds; NaN is unknown or none."""

    algorithm: str
    env_id: str  # as the log names it
    seed: int | None
    unit: str
    curve: pd.DataFrame
    files: tuple[Path, ...]
    producer: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def game(name: str) -> str | None:
    """EnvPool's id of an Atari game by the names in use (ALE/Pong-v5, PongNoFrameskip-v4, atari_pong); else None."""
    stem = re.sub(r"(NoFrameskip|Deterministic)?-v\d+$", "", name.removeprefix("ALE/").removeprefix("atari_"))
    return GAMES.get(re.sub(r"[^a-z0-9]", "", stem.lower()))


def resolve_unit(source: str, known: str | None, declared: str | None) -> str:
    """The unit of the x axis. Raises ValueError when it is unknown, and when the source's own is contradicted."""
    if declared not in (None, *UNITS):
        raise ValueError(f"--unit is {declared!r}; allowed: {', '.join(UNITS)}")
    if known and declared and declared != known:
        raise ValueError(f"--unit is {declared}, but {source} counts {known}; allowed: {known}")
    if not (unit := known or declared):
        raise ValueError(f"{source} does not say what its steps are; needed: --unit env_steps or --unit frames (Atari)")
    return unit


def run_folder_names(folder: Path, declared: Declared) -> tuple[str | None, int | None]:
    """(game, seed) as declared, or as the declared pattern finds them in the folder's name."""
    found: Mapping[str, str] = {}
    if declared.folder_pattern is not None:
        match = re.fullmatch(_expression(declared.folder_pattern), folder.name)
        if match is None:
            raise ValueError(f"{folder}: its name does not match --folder-pattern {declared.folder_pattern}")
        found = match.groupdict()
    seed = int(found["seed"]) if "seed" in found else None
    return declared.env_id or found.get("env_id"), seed if declared.seed is None else declared.seed


def named_game(env_id: str | None, where: Path, source: str) -> str:
    """The game's name. Raises ValueError when neither the user nor `source` names it."""
    if not env_id:
        raise ValueError(f"{where}: no game is named; needed: {source}, --env-id, or --folder-pattern '{{env_id}}-*'")
    return env_id


def latest_rows(steps: np.ndarray) -> np.ndarray:
    """Which rows count, shape (rows,): where the steps go back, what was logged from there on is superseded."""
    if not len(steps):
        return np.zeros(0, dtype=bool)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(steps) < 0) + 1])
    segment = np.searchsorted(starts, np.arange(len(steps)), side="right") - 1
    later = np.append(np.minimum.accumulate(steps[starts][::-1])[::-1], np.inf)
    return steps < later[segment + 1]


def continued(counters: np.ndarray, from_zero: np.ndarray) -> np.ndarray:
    """Counters of shape (rows,) that start from zero at the rows `from_zero`: what was counted before is added."""
    previous = np.concatenate([[0.0], counters[:-1]])
    return counters + np.cumsum(np.where(from_zero, previous, 0.0))


def increments(total: np.ndarray) -> np.ndarray:
    """What a running total of shape (rows,) grew by at each row; the first row has what was counted before it."""
    return np.diff(total, prepend=0.0)


def count_restarts(steps: np.ndarray) -> int:
    return int((np.diff(steps) < 0).sum())


def find_files(path: Path, name: str) -> Iterator[Path]:
    """The file itself, or every file of that name below a folder, in the order of paths. Links are not followed."""
    if path.is_file():
        yield path
        return
    found = sorted(file for file in path.rglob(name) if file.is_file())
    if not found:
        raise ValueError(f"{path}: no {name} there or below; allowed: such a file or a folder that has some")
    yield from found


def _expression(pattern: str) -> str:
    """A regular expression for a pattern with {env_id}, {seed} and *."""
    known = {"{env_id}": r"(?P<env_id>[A-Za-z0-9_]+?)", "{seed}": r"(?P<seed>\d+)", "*": ".*"}
    parts = re.split(r"(\{env_id\}|\{seed\}|\*)", pattern)
    if any(parts.count(part) > 1 for part in ("{env_id}", "{seed}")):
        raise ValueError(f"--folder-pattern is {pattern}; allowed: {{env_id}} and {{seed}} once each, and *")
    return "".join(known.get(part, re.escape(part)) for part in parts)
