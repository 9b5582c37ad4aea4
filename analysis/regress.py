"""`cleanba regress`: runs of an experiment against its accepted reference, as a gate for changes.

Three verdicts, in this order. Fingerprints: are the runs the same bit for bit, or where do they first differ? Curves:
are they the same, better or worse (`analysis.compare`)? Throughput: the ratio to the reference, on the same profile and
kind of machine only. A run is matched with its reference by algorithm, game, profile and seed; settings that differ are
listed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import accepted, compare, records
from analysis.accepted import CELL, Reference, System
from analysis.compare import CANNOT_TELL, SAME, WORSE, Comparison
from analysis.divergence import compare_fingerprints
from analysis.run_sets import RunSet
from runners.record import read_spec

IDENTICAL, DIFFERENT, NOT_COMPARED = "identical", "different", "not compared"


@dataclass(frozen=True, kw_only=True)
class Demands:
    """What a gate asks for beyond curves that are not worse.

    exact       fingerprints must be identical, which on another kind of machine cannot be told
    min_speed   the least ratio of throughput to the reference's; None: throughput is printed and decides nothing
    """

    exact: bool = False
    min_speed: float | None = None

    def __post_init__(self):
        if self.min_speed is not None and not self.min_speed > 0:
            raise ValueError(f"--min-speed is {self.min_speed}; allowed: a ratio above 0, such as 0.8")


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression:
    """cells        CELL, fingerprints, updates_compared, update, stage, shard (of the first difference), machine
                    (`same` kind as the reference's, or `other`)
    throughput      algorithm, profile, reference, now (median env steps per second), ratio (NaN: not compared), reason
    settings        algorithm, profile, setting, reference, now; of every one that differs
    commits         of the sources that made the runs, with `-dirty` where files differed
    """

    reference: Reference
    demands: Demands
    cells: pd.DataFrame
    comparisons: Mapping[System, Comparison]
    throughput: pd.DataFrame
    settings: pd.DataFrame
    commits: list[str]
    notes: list[str]

    @property
    def verdicts(self) -> dict[str, int]:
        """What was judged -> exit code: fingerprints where they must be identical, curves, throughput where asked."""
        codes = {f"curves of {'@'.join(system)}": found.exit_code for system, found in self.comparisons.items()}
        if self.demands.exact:
            wrong = self.cells.loc[self.cells["fingerprints"] != IDENTICAL]
            unsure = (wrong["machine"] == "other") | (wrong["fingerprints"] == NOT_COMPARED)
            codes["fingerprints"] = WORSE if (~unsure).any() else CANNOT_TELL if len(wrong) else SAME
        if self.demands.min_speed is not None:
            for row in self.throughput.to_dict("records"):
                slow, unknown = row["ratio"] < self.demands.min_speed, pd.isna(row["ratio"])
                name = f"throughput of {row['algorithm']}@{row['profile']}"
                codes[name] = CANNOT_TELL if unknown else WORSE if slow else SAME
        return codes

    @property
    def exit_code(self) -> int:
        codes = self.verdicts.values()
        return WORSE if WORSE in codes else CANNOT_TELL if CANNOT_TELL in codes else SAME

    @property
    def verdict(self) -> str:
        return {SAME: "same or better", WORSE: "worse", CANNOT_TELL: "cannot tell"}[self.exit_code]


def regress(
    experiment: str,
    results: Path,
    folder: Path = accepted.FOLDER,
    *,
    demands: Demands = Demands(),
    margin: float | None = None,
) -> Regression:
    """Judge the complete runs of `experiment` (its name) under `results`.

    Raises ValueError without a reference, where a run of the reference is missing or not complete, and where protocol
    or budget differ.
    """
    reference = accepted.load(experiment, folder)
    sets = accepted.own_sets(results, experiment)
    _refuse_missing(reference, sets)
    matched = {system: _matched(sets[system], one) for system, one in reference.sets.items()}
    comparisons = {
        system: compare.compare(one, matched[system], margin=_margin(margin, one, matched[system]))
        for system, one in reference.sets.items()
    }
    starts = {system: _starts(one) for system, one in matched.items()}
    cells = [row for system in matched for row in _cells(reference, system, matched[system], starts[system])]
    facts = [start[-1] for by_run in starts.values() for start in by_run.values()]
    return Regression(
        reference=reference,
        demands=demands,
        cells=pd.DataFrame(cells),
        comparisons=comparisons,
        throughput=pd.DataFrame([_throughput(reference, s, matched[s], starts[s]) for s in matched]),
        settings=_settings(reference, matched),
        commits=sorted({accepted.commit(fact) for fact in facts}),
        notes=_notes(reference, sets),
    )


def as_json(found: Regression) -> dict[str, Any]:
    """Every number of the report."""
    return compare.plain(
        {
            "experiment": found.reference.experiment,
            "verdict": found.verdict,
            "exit_code": found.exit_code,
            "verdicts": found.verdicts,
            "exact": found.demands.exact,
            "min_speed": found.demands.min_speed,
            "reference": found.reference.history[-1],
            "commits": found.commits,
            "fingerprints": found.cells.to_dict("records"),
            "curves": {"@".join(system): compare.as_json(one) for system, one in found.comparisons.items()},
            "throughput": found.throughput.to_dict("records"),
            "settings": found.settings.to_dict("records"),
            "notes": found.notes,
        }
    )


def _margin(stated: float | None, reference: RunSet, own: RunSet) -> float | None:
    """The reference's before the experiment's: a change must not widen the margin that it is judged by."""
    return next((margin for margin in (stated, reference.margin, own.margin) if margin is not None), None)


def _matched(own: RunSet, reference: RunSet) -> RunSet:
    """Our own runs that have a reference."""
    keys = set(map(tuple, reference.runs[["env_id", "seed"]].to_numpy()))
    there = [key in keys for key in map(tuple, own.runs[["env_id", "seed"]].to_numpy())]
    return replace(own, runs=own.runs.loc[there].reset_index(drop=True))


def _refuse_missing(reference: Reference, sets: Mapping[System, RunSet]) -> None:
    there = {
        (algorithm, env_id, profile, seed)
        for (algorithm, profile), one in sets.items()
        for env_id, seed in one.runs[["env_id", "seed"]].to_numpy()
    }
    if lacking := [cell for cell in map(tuple, reference.runs[CELL].to_numpy()) if cell not in there]:
        raise ValueError(f"{reference.experiment}: {accepted.missing(lacking)}; `cleanba status` says why")


def _starts(own: RunSet) -> dict[tuple[str, int], list[dict]]:
    """What the machine measured at each start of each run."""
    return {(run["env_id"], run["seed"]): records.machines(run) for run in own.runs.to_dict("records")}


def _cells(reference: Reference, system: System, own: RunSet, starts: Mapping) -> list[dict[str, Any]]:
    """The fingerprint verdict of each run."""
    before, rows = reference.sets[system], []
    machines = _machines_by_run(reference, system)
    for env_id, seed in own.runs[["env_id", "seed"]].to_numpy():
        key = (env_id, seed)
        kinds = [accepted.machine_kind(facts) for facts in starts[key]]
        row = {"algorithm": system[0], "env_id": env_id, "profile": system[1], "seed": seed}
        row["machine"] = "same" if all(kind == machines[key] for kind in kinds) else "other"
        row |= {"fingerprints": NOT_COMPARED, "updates_compared": 0, "update": None, "stage": None, "shard": None}
        if before.identity == own.identity and key in before.fingerprints and key in own.fingerprints:
            found = compare_fingerprints(before.fingerprints[key], own.fingerprints[key])
            if found.updates_compared:
                row["fingerprints"] = IDENTICAL if found.identical else DIFFERENT
                row |= {name: getattr(found, name) for name in ("updates_compared", "update", "stage", "shard")}
        rows.append(row)
    return rows


def _machines_by_run(reference: Reference, system: System) -> dict[tuple[str, int], dict]:
    runs = reference.sets[system].runs.to_dict("records")
    return {(run["env_id"], run["seed"]): accepted.machine_kind(reference.machines[run["machine"]]) for run in runs}


def _throughput(reference: Reference, system: System, own: RunSet, starts: Mapping) -> dict[str, Any]:
    """Median over runs now against then; compared only where every machine is of the kind of its reference's."""
    before = reference.sets[system].runs["env_steps_per_second"].median()
    now = pd.Series([records.throughput(run) for run in own.runs.to_dict("records")]).median()
    kinds = _machines_by_run(reference, system)
    other = {
        name: (kinds[key][name], accepted.machine_kind(facts)[name])
        for key, all_starts in starts.items()
        for facts in all_starts
        for name in accepted.MACHINE_KIND
        if accepted.machine_kind(facts)[name] != kinds[key][name]
    }
    profiles = _profiles(reference, system, own)
    reasons = [f"{name} was {a}, is {b}" for name, (a, b) in {**other, **profiles}.items()]
    row = {"algorithm": system[0], "profile": system[1], "reference": before, "now": now}
    ratio = now / before if not reasons and before > 0 else float("nan")
    return row | {"ratio": ratio, "reason": "; ".join(reasons) or ("" if ratio == ratio else "no speed was measured")}


def _profiles(reference: Reference, system: System, own: RunSet) -> dict[str, tuple]:
    """What the profile of this name declares otherwise than when the reference was made."""
    (row, *_) = _spec_pairs(reference, system, own)
    return _different(row[0]["profile"], row[1]["profile"], "profile.")


def _settings(reference: Reference, matched: Mapping[System, RunSet]) -> pd.DataFrame:
    rows = []
    for (algorithm, profile), own in matched.items():
        for before, now in _spec_pairs(reference, (algorithm, profile), own):
            found = _different(before["settings"], now["settings"])
            found |= _different(before["profile"], now["profile"], "profile.")
            rows += [(algorithm, profile, name, *pair) for name, pair in found.items()]
    names = ("algorithm", "profile", "setting", "reference", "now")
    distinct = list(dict.fromkeys(rows))
    return pd.DataFrame({name: [row[i] for row in distinct] for i, name in enumerate(names)})


def _spec_pairs(reference: Reference, system: System, own: RunSet) -> list[tuple[Mapping, Mapping]]:
    return [
        (reference.specs[system[0], run["env_id"], system[1], run["seed"]], read_spec(run["folder"]).to_json())
        for run in own.runs.to_dict("records")
    ]


def _different(before: Mapping, now: Mapping, prefix: str = "") -> dict[str, tuple]:
    """A setting that one side does not know, because it came later, is `not stated` there."""
    names = list(dict.fromkeys([*before, *now]))
    pairs = {name: (before.get(name, "not stated"), now.get(name, "not stated")) for name in names}
    return {prefix + name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _notes(reference: Reference, sets: Mapping[System, RunSet]) -> list[str]:
    known: Sequence[System] = list(reference.sets)
    said = [f"{'@'.join(system)} has no reference and is not judged" for system in sets if system not in known]
    margins = {one.margin for one in sets.values()} - {None, reference.margin}
    if reference.margin is not None and margins:
        said.append(f"the experiment's file has the margin {margins.pop():g}, its reference {reference.margin:g}")
    for system, one in reference.sets.items():
        extra = len(sets[system].runs) - len(one.runs)
        said += [f"{'@'.join(system)}: {extra} runs have no reference and are not judged"] if extra else []
    return said
