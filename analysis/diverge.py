"""`cleanba diverge`: the first update, stage and shard at which two recorded runs differ, and what may explain it.

Stages are compared in the causal order in which a run writes them, those of a rollout env step by env step. A stage
that an update meets several times (once per optimiser step or part of one) has one digest of all its times.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.divergence import Agreement, compare_fingerprints
from analysis.parameters import Distance, distance
from analysis.records import machines
from runners.record import read_rows, read_spec, read_status
from runners.spec import RunSpec

WHOLE = -1  # the `shard` of what is the same on all learner devices
# Settings that say what a shard's digest is of: with another value no two digests are of the same thing.
SHAPES = ("num_envs", "num_shards", "rollout_length", "num_minibatches", "gradient_accumulation_steps")
PLACE = ["update", "stage", "shard"]
COLUMNS = [*PLACE, "digest", "step_digests"]
# What follows from what within an env step: the policy sees, acts, and is answered.
ROLLOUT = [
    f"rollout/{field}"
    for field in ("observations", "behaviour_logits", "values", "actions", "rewards", "terminated", "valid")
]
STEP_DIGITS = 4  # of a digest in `step_digests`

Facts = dict[str, Any]  # name -> value
Differences = dict[str, tuple[Any, Any]]  # name -> (value in A, value in B)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What two runs share and where they part. Stages are those of the first update that differs."""

    agreement: Agreement
    equal_stages: tuple[str, ...]  # in every shard
    different_stages: tuple[str, ...]
    equal_updates: int  # fingerprinted updates before
    chained: bool  # an update has several optimiser steps, whose digests of a stage are one
    last_updates: tuple[int, int]
    settings: Differences
    machine: Differences
    distance: Distance | None  # between the final parameters, where both runs saved them


def find_run(run: str, results: Path) -> Path:
    """A run's folder, given as such or by its run_id. Raises ValueError where there is none, or more than one."""
    if (Path(run) / "spec.json").is_file():
        return Path(run)
    found = sorted(path.parent for path in (results / "runs").glob("*/*/spec.json") if path.parent.name == run)
    if not found:
        raise ValueError(f"{run}: no such run; allowed: a run's folder, or the run_id of one under {results / 'runs'}")
    if len(found) > 1:
        raise ValueError(f"{run}: {len(found)} runs have this id; allowed: one of {', '.join(map(str, found))}")
    return found[0]


def compare(a: Path, b: Path) -> Comparison:
    """Compare the records in two folders. Raises ValueError with one sentence where they cannot tell."""
    specs = read_spec(a), read_spec(b)
    _refuse_incomparable(*specs)
    for folder in (a, b):
        if (status := read_status(folder)) and status.inexact_resume:
            raise ValueError(f"{folder}: the run was resumed without segments: its bits are its own")
    rows = read_rows(a, "fingerprints", COLUMNS), read_rows(b, "fingerprints", COLUMNS)
    for folder, own in zip((a, b), rows, strict=True):
        if own.empty:
            raise ValueError(f"{folder}: the run has no fingerprints; nothing can be compared")
    common = sorted(set(rows[0]["update"]) & set(rows[1]["update"]))
    if not common:
        raise ValueError(f"{a} and {b}: no update has fingerprints in both; nothing can be compared")
    in_a, in_b = (own.loc[own["update"].isin(common)] for own in rows)
    _refuse_other_stages(in_a, in_b)
    agreement = _within_rollout(compare_fingerprints(in_a, in_b), in_a, in_b)
    equal, different = _stages(in_a, in_b, agreement.update)
    return Comparison(
        agreement=agreement,
        equal_stages=equal,
        different_stages=different,
        equal_updates=sum(update < (agreement.update or common[-1] + 1) for update in common),
        chained=_steps_per_update(specs[0]) > 1,
        last_updates=(int(rows[0]["update"].max()), int(rows[1]["update"].max())),
        settings=_differences(_settings(specs[0]), _settings(specs[1])),
        machine=_differences(_machine(a), _machine(b)),
        distance=distance(a, b),
    )


def as_json(agreement: Agreement) -> str:
    names = ("identical", "update", "stage", "shard", "step", "updates_compared")
    return json.dumps({name: getattr(agreement, name) for name in names}, indent=1)


def sentences(found: Comparison) -> Iterator[str]:
    """What `cleanba diverge` prints, line by line."""
    agreement = found.agreement
    if agreement.identical:
        yield f"identical: every stage of the {agreement.updates_compared} updates fingerprinted in both"
    else:
        step = "" if agreement.step is None else f", env step {agreement.step} of the rollout"
        shard = "" if agreement.shard == WHOLE else f", shard {agreement.shard}"
        yield f"different: first at update {agreement.update}, stage {agreement.stage}{step}{shard}"
        yield f"equal before it: {found.equal_updates} fingerprinted updates"
        yield f"of update {agreement.update}, equal: {', '.join(found.equal_stages) or 'none'}"
        yield f"of update {agreement.update}, different: {', '.join(found.different_stages)}"
        yield from _limits(found)
    if found.last_updates[0] != found.last_updates[1]:
        yield "fingerprints end at update {} in A, at update {} in B".format(*found.last_updates)
    if found.distance:
        yield f"final parameters: {found.distance}"
    yield from _lines("setting", found.settings)
    yield from _lines("machine", found.machine)


def _limits(found: Comparison) -> Iterator[str]:
    """What the name of the stage leaves open."""
    if found.agreement.stage in ROLLOUT and found.agreement.step is None:
        yield "a rollout's fields follow from each other at every env step: any of those that differ may be first"
    elif found.chained and found.agreement.stage not in ROLLOUT:
        yield "a stage has one digest for all optimiser steps: a later stage of an earlier step may be first"


def _lines(what: str, differences: Differences) -> Iterator[str]:
    if not differences:
        yield f"{what}: no difference"
    for name, (in_a, in_b) in differences.items():
        yield f"{what}: {name} is {in_a} in A, {in_b} in B"


def _refuse_incomparable(a: RunSpec, b: RunSpec) -> None:
    if a.algo != b.algo:
        raise ValueError(f"the algorithms differ, {a.algo} and {b.algo}: no digest is of the same thing")
    for name in SHAPES:
        if a.settings[name] != b.settings[name]:
            raise ValueError(
                f"{name} differs, {a.settings[name]} and {b.settings[name]}: no digest is of the same thing"
            )


def _refuse_other_stages(a: pd.DataFrame, b: pd.DataFrame) -> None:
    """Every common update must have the same stages and shards in both runs."""
    keys_a, keys_b = (set(map(tuple, own[PLACE].to_numpy())) for own in (a, b))
    if lacking := sorted(keys_a ^ keys_b):
        update, stage, shard = lacking[0]
        raise ValueError(f"update {update}: stage {stage}, shard {shard} has fingerprints in one run only")


def _stages(a: pd.DataFrame, b: pd.DataFrame, update: int | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(stages of `update` equal in all shards, stages different in some), each in causal order."""
    both = a.loc[a["update"] == update].merge(b, on=PLACE, suffixes=("", "_b"), sort=False)
    differs = (both["digest"] != both["digest_b"]).groupby(both["stage"], sort=False).any()
    return tuple(differs.index[~differs]), tuple(differs.index[differs])


def _within_rollout(agreement: Agreement, a: pd.DataFrame, b: pd.DataFrame) -> Agreement:
    """Where the first difference is in a rollout, the field, env step and shard at which it begins, if both runs have
    digests of steps: records of earlier versions do not."""
    if agreement.stage not in ROLLOUT:
        return agreement
    both = a.loc[a["update"] == agreement.update].merge(b, on=PLACE, suffixes=("", "_b"), sort=False)
    both = both.loc[both["stage"].isin(ROLLOUT)].dropna(subset=["step_digests", "step_digests_b"])
    begins = [
        (step, ROLLOUT.index(row["stage"]), row["shard"])
        for row in both.to_dict("records")
        if (step := _first_step(row["step_digests"], row["step_digests_b"])) is not None
    ]
    if not begins:
        return agreement
    step, field, shard = min(begins)
    return replace(agreement, stage=ROLLOUT[field], shard=shard, step=step)


def _first_step(a: str, b: str) -> int | None:
    return next((i // STEP_DIGITS for i, (one, other) in enumerate(zip(a, b, strict=True)) if one != other), None)


def _steps_per_update(spec: RunSpec) -> int:
    settings = spec.settings
    return settings["num_minibatches"] * settings["gradient_accumulation_steps"] * settings.get("num_epochs", 1)


def _settings(spec: RunSpec) -> Facts:
    """Everything that a run's result or speed may depend on."""
    stated = spec.to_json()
    kept = {"env_id": stated["env_id"], "seed": stated["seed"], **stated["settings"]}
    return kept | {f"profile.{name}": value for name, value in stated["profile"].items()}


def _machine(folder: Path) -> Facts:
    """Every measured fact; of a run of several segments, its values one after the other."""
    facts: dict[str, list[Any]] = {}
    for segment in machines({"folder": folder}):
        for name, value in _flat(segment):
            facts.setdefault(name, []).append(value)
    return {name: values[0] if len(set(map(str, values))) == 1 else values for name, values in facts.items()}


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif name not in ("schema", "segment"):
            yield prefix + name, value


def _differences(a: Facts, b: Facts) -> Differences:
    names = list(dict.fromkeys([*a, *b]))
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}
