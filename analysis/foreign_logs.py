"""Parsers of logs that a program wrote while it trained: one folder, one run. Formats: docs/compare.md."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.foreign import (
    Declared,
    ForeignRun,
    continued,
    count_restarts,
    find_files,
    increments,
    latest_rows,
    named_game,
    resolve_unit,
    run_folder_names,
)
from analysis.foreign_text import header, read_text, whole_lines

UNEQUAL_PEERS = 0.05  # peers whose numbers of optimizer steps differ by more did not train side by side
MOOLIB = {
    "steps": "local/env_train_steps",
    "episode_return": "local/mean_episode_return",
    "episodes_done": "local/episodes_done",
    "optimizer_steps": "local/optimizer_steps",
}
# RLlib's names in the order in which they replaced each other; the newest that a log has counts.
RLLIB = {
    "steps": ("num_env_steps_sampled_lifetime", "num_env_steps_sampled", "timesteps_total"),
    "episode_return": (
        "env_runners/episode_return_mean", "env_runners/episode_reward_mean",
        "sampler_results/episode_reward_mean", "episode_reward_mean",
    ),
    "num_episodes": (
        "env_runners/num_episodes", "env_runners/episodes_this_iter", "sampler_results/episodes_this_iter",
        "episodes_this_iter",
    ),
    "wall_seconds": ("time_total_s",),
}  # fmt: skip


def moolib(path: Path, declared: Declared) -> list[ForeignRun]:
    """moolib's `logs.tsv`, one per peer: <run>/peers/<peer>/logs.tsv, or <run>/logs.tsv of a single one.

    The x axis is local/env_train_steps; a blank return means that no episode ended. All counters are those of the
    process: after a restart they start from zero, and what was counted before is added.
    """
    unit = resolve_unit("moolib", "env_steps", declared.unit)
    runs = groupby(find_files(path, "logs.tsv"), key=_moolib_folder)
    return [_moolib_run(folder, tuple(files), unit, declared) for folder, files in runs]


def monobeast(path: Path, declared: Declared) -> list[ForeignRun]:
    """monobeast's or polybeast's `logs.csv` with `fields.csv` and `meta.json` beside it; `step` is agent steps.

    The header stands behind `# ` and names the first row's columns only; fields.csv has those that came later, at the
    end. A return of nan means that no episode ended. Steps go back where training started again: later rows count.
    """
    unit = resolve_unit("monobeast", "env_steps", declared.unit)
    return [_monobeast_run(file, unit, declared) for file in find_files(path, "logs.csv")]


def stable_baselines3(path: Path, declared: Declared) -> list[ForeignRun]:
    """Stable-Baselines3's `monitor.csv`, one row an episode: r, l and t after a first line of JSON.

    The files of a folder are the parallel envs of one run: their episodes are put in the order in which they ended.
    """
    unit = resolve_unit(
        "sb3: the wrappers below the monitor decide whether it counts frames, so it", None, declared.unit
    )
    runs = groupby(find_files(path, "*monitor.csv"), key=lambda file: file.parent)
    return [_monitor_run(folder, tuple(files), unit, declared) for folder, files in runs]


def rllib(path: Path, declared: Declared) -> list[ForeignRun]:
    """RLlib's `progress.csv` with `params.json` beside it. Steps go back where a trial was restored."""
    unit = resolve_unit("rllib", "env_steps", declared.unit)
    return [_rllib_run(file, unit, declared) for file in find_files(path, "progress.csv")]


def _moolib_folder(file: Path) -> Path:
    return file.parents[2] if file.parents[1].name == "peers" else file.parent


def _moolib_run(folder: Path, files: tuple[Path, ...], unit: str, declared: Declared) -> ForeignRun:
    notes: list[str] = []
    meta = _json_beside(files[0], "meta.json")
    named, seed = run_folder_names(folder, declared)
    flags = meta.get("flags") or {}
    env_id = named or (flags.get("env") or {}).get("name")
    peers = [_moolib_peer(file, notes) for file in files]
    return ForeignRun(
        algorithm=declared.algorithm or "moolib",
        env_id=named_game(env_id, folder, "meta.json with flags.env.name"),
        seed=seed,
        unit=unit,
        curve=_as_curve(_one_axis(folder, peers, notes)),
        files=files,
        producer=_producer("moolib", flags, meta),
        notes=tuple(notes),
    )


def _moolib_peer(file: Path, notes: list[str]) -> pd.DataFrame:
    frame = _only(read_text(file, MOOLIB, separator="\t", notes=notes), MOOLIB)
    steps = frame["steps"].to_numpy()
    if restarts := count_restarts(steps):
        notes.append(f"{file}: {restarts} restarts; env steps since the last checkpoint before each count twice")
    from_zero = (np.diff(steps, prepend=0.0) < 0) & (steps == 0)
    for column in ("steps", "episodes_done", "optimizer_steps"):
        frame[column] = continued(frame[column].to_numpy(), from_zero)
    frame = frame.loc[latest_rows(frame["steps"].to_numpy())]
    return frame.assign(num_episodes=increments(frame["episodes_done"].to_numpy()))


def _one_axis(folder: Path, peers: Sequence[pd.DataFrame], notes: list[str]) -> pd.DataFrame:
    """The rows of all peers by the env steps of all peers together.

    Peers log their own env steps. Their optimizer steps are in common (every gradient step is of all), so a row stands
    at the sum over peers of the env steps at its optimizer step, interpolated between rows.
    """
    peers = [peer for peer in peers if len(peer)] or [peers[0]]
    if len(peers) == 1:
        return peers[0]
    ends = [float(peer["optimizer_steps"].max()) for peer in peers]
    if min(ends) < (1 - UNEQUAL_PEERS) * max(ends):
        raise ValueError(
            f"{folder}: a peer ends at {min(ends):,.0f} optimizer steps, another at {max(ends):,.0f}; "
            "allowed: peers that trained side by side from start to end, or the log of one"
        )
    notes.append(f"{len(peers)} peers, put on one axis by their common optimizer steps")
    placed = [
        peer.assign(steps=sum(np.interp(peer["optimizer_steps"], p["optimizer_steps"], p["steps"]) for p in peers))
        for peer in peers
    ]
    return pd.concat(placed).sort_values("steps", kind="stable", ignore_index=True)


def _monobeast_run(file: Path, unit: str, declared: Declared) -> ForeignRun:
    notes: list[str] = []
    meta = _json_beside(file, "meta.json")
    arguments = meta.get("args") or {}
    named, seed = run_folder_names(file.parent, declared)
    fields = _monobeast_fields(file)
    numbers = {"steps": "step", "episode_return": "mean_episode_return", "wall_seconds": "_time"}
    if "episode_returns" in fields:
        numbers["listed_episodes"] = "episode_returns"
    frame = _only(read_text(file, numbers, fields=fields, short_rows=True, notes=notes), numbers)
    if restarts := count_restarts(frame["steps"].to_numpy()):
        notes.append(f"{file}: {restarts} restarts; later rows count, and wall_seconds has the pauses in between")
    frame["wall_seconds"] -= frame["wall_seconds"].min()
    frame = frame.rename(columns={"listed_episodes": "num_episodes"}).loc[latest_rows(frame["steps"].to_numpy())]
    return ForeignRun(
        algorithm=declared.algorithm or "monobeast",
        env_id=named_game(named or arguments.get("env"), file.parent, "meta.json with args.env"),
        seed=arguments.get("seed") if seed is None else seed,
        unit=unit,
        curve=_as_curve(frame),
        files=(file,),
        producer=_producer("torchbeast", arguments, meta),
        notes=tuple(notes),
    )


def _monobeast_fields(file: Path) -> list[str]:
    """All columns of a logs.csv: the last line of fields.csv, whose beginning is the log's own header."""
    first = header(file)
    if not first or not first[0].startswith("# "):
        raise ValueError(f"{file}: its first line is {','.join(first)[:60]!r}; allowed: a header that begins with '# '")
    first[0] = first[0].removeprefix("# ")
    beside = file.with_name("fields.csv")
    lines = [line.strip().split(",") for line in whole_lines(beside, [])] if beside.is_file() else []
    if not lines:
        return first
    if lines[-1][: len(first)] != first:
        raise ValueError(f"{beside}: its last line does not begin with the columns of {file.name}; allowed: the pair")
    return lines[-1]


def _monitor_run(folder: Path, files: tuple[Path, ...], unit: str, declared: Declared) -> ForeignRun:
    notes: list[str] = []
    named, seed = run_folder_names(folder, declared)
    heads = [_monitor_head(file) for file in files]
    episodes = pd.concat([_monitor_episodes(file, head, notes) for file, head in zip(files, heads)])
    episodes = episodes.sort_values("clock", kind="stable", ignore_index=True)
    start = min(float(head.get("t_start") or 0) for head in heads)
    curve = pd.DataFrame(
        {
            "steps": episodes["length"].cumsum(),
            "episode_return": episodes["episode_return"],
            "num_episodes": 1.0,
            "wall_seconds": episodes["clock"] - start,
        }
    )
    return ForeignRun(
        algorithm=declared.algorithm or "sb3",
        env_id=named_game(named or heads[0].get("env_id"), folder, "a first line with env_id"),
        seed=seed,
        unit=unit,
        curve=curve,
        files=files,
        producer={"name": "stable-baselines3"},
        notes=(*notes, *([f"episodes of {len(files)} envs in the order of their clocks"] if len(files) > 1 else [])),
    )


def _monitor_head(file: Path) -> Mapping[str, Any]:
    line = next(whole_lines(file, []), "")
    try:
        return json.loads(line.removeprefix("#")) if line.startswith("#") else {}["first line"]
    except (ValueError, KeyError):
        raise ValueError(f"{file}, line 1: is {line[:60]!r}; allowed: # and JSON, as a monitor writes") from None


def _monitor_episodes(file: Path, head: Mapping[str, Any], notes: list[str]) -> pd.DataFrame:
    """Episodes with length, episode_return and clock; seconds since 1970, or since the start where that is unknown.

    A monitor that goes on with its file counts its seconds from zero again: they go on here.
    """
    numbers = {"length": "l", "episode_return": "r", "clock": "t"}
    frame = _only(read_text(file, numbers, skip_lines=1, notes=notes), numbers)
    for column, values in frame.items():
        if values.isna().any() or (column == "length" and (values <= 0).any()):
            row = int((values.isna() | ((column == "length") & (values <= 0))).argmax())
            raise ValueError(
                f"{file}, episode {row + 1}: {numbers[str(column)]} is {values[row]}; allowed: a number, l above 0"
            )
    clock = frame["clock"].to_numpy()
    if restarts := count_restarts(clock):
        notes.append(f"{file}: {restarts} restarts; the pauses in between are not in wall_seconds")
    frame["clock"] = continued(clock, np.diff(clock, prepend=0.0) < 0) + float(head.get("t_start") or 0)
    return frame


def _rllib_run(file: Path, unit: str, declared: Declared) -> ForeignRun:
    notes = ["episode_return is RLlib's mean over its last episodes (100 unless set), not over num_episodes"]
    names = header(file)
    numbers = {ours: name for ours, theirs in RLLIB.items() if (name := _first_of(theirs, names))}
    for needed in ("steps", "episode_return"):
        if needed not in numbers:
            raise ValueError(f"{file}: no column for {needed}; allowed: one of {', '.join(RLLIB[needed])}")
    frame = _only(read_text(file, numbers, notes=notes), numbers)
    if restarts := count_restarts(frame["steps"].to_numpy()):
        notes.append(f"{file}: {restarts} restarts; later rows count")
    frame = frame.loc[latest_rows(frame["steps"].to_numpy())]
    params = _json_beside(file, "params.json")
    named, seed = run_folder_names(file.parent, declared)
    return ForeignRun(
        algorithm=declared.algorithm or "rllib",
        env_id=named_game(named or params.get("env"), file.parent, "params.json with env"),
        seed=params.get("seed") if seed is None else seed,
        unit=unit,
        curve=_as_curve(frame),
        files=(file,),
        producer=_producer("rllib", params, {}),
        notes=tuple(notes),
    )


def _first_of(names: Sequence[str], there: Sequence[str]) -> str | None:
    return next((name for name in names if name in there), None)


def _only(found: Mapping[tuple[str, ...], pd.DataFrame], numbers: Mapping[str, str]) -> pd.DataFrame:
    """The one run of a file; without rows when the file has none."""
    return found[()] if found else pd.DataFrame({name: pd.Series(dtype=float) for name in numbers})


def _as_curve(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.reindex(columns=["steps", "episode_return", "num_episodes", "wall_seconds"]).reset_index(drop=True)


def _producer(name: str, flags: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """What made the log. Environment variables, which meta.json has too, are left out: they hold people's secrets."""
    git = meta.get("git") or {}
    return {"name": name, "flags": flags, "commit": git.get("commit"), "started_at": meta.get("date_start")}


def _json_beside(file: Path, name: str) -> dict[str, Any]:
    """The JSON object of that name beside the log; empty where there is none."""
    beside = file.with_name(name)
    try:
        content = json.loads(beside.read_text()) if beside.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{beside}: cannot be read as JSON ({error}); allowed: the file as it was written") from None
    return content if isinstance(content, dict) else {}
