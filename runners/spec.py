"""Experiments and run specs: what is declared, checked and expanded into cells, one per training run.

`analysis` reads run specs back from records; nothing at the top of this module imports `cleanba` or `analysis`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from runners.declarations import check_keys, check_list, check_type, describe, load_mapping
from runners.profiles import Profile, load_profile

SCHEMA = 1  # of the record; part of a run's identity
_REQUIRED = ("name", "env_ids", "seeds", "profiles", "algorithms")
_OPTIONAL = ("question", "description", "total_env_steps", "margin")
_ADDRESSES = ("env_id", "seed")  # settings of a Config that the matrix states, not the algorithm


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run: one cell of an experiment, fully resolved."""

    experiment: str
    algorithm: str  # the label that the experiment gives these settings
    algo: str  # impala or ppo
    env_id: str
    seed: int
    profile: Profile
    settings: Mapping[str, Any]  # every field of the trainer's Config but env_id and seed
    derived: Mapping[str, int]  # Config.derived(): what follows from the settings
    question: str = ""

    @cached_property
    def run_id(self) -> str:
        """The first 12 hex digits of the SHA-256 of what the run means; experiment and label have no part in it."""
        meaning = {
            "schema": SCHEMA,
            "algo": self.algo,
            "settings": dict(self.settings),
            "env_id": self.env_id,
            "seed": self.seed,
            "profile": self.profile.to_json(),
        }
        canonical = json.dumps(meaning, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """For people: `impala-Breakout-v5-a0-l0-d1-cpu-1dev-s1`. Nothing parses it."""
        return f"{self.algorithm}-{self.env_id}-{self.profile.layout}-{self.profile.name}-s{self.seed}"

    @property
    def planned_env_steps(self) -> int:
        """What the run trains: whole updates within its budget."""
        return self.derived["planned_env_steps"]

    def folder(self, results: Path) -> Path:
        return results / "runs" / self.experiment / self.run_id

    def config(self):
        """The trainer's Config."""
        from cleanba.config import CONFIGS

        return CONFIGS[self.algo](env_id=self.env_id, seed=self.seed, **self.settings)

    def layout(self):
        """The trainer's Layout."""
        return self.profile.parsed_layout()

    def to_json(self) -> dict[str, Any]:
        stored = {field.name: getattr(self, field.name) for field in fields(self)}
        stored |= {"settings": dict(self.settings), "derived": dict(self.derived), "profile": self.profile.to_json()}
        return {"schema": SCHEMA, "run_id": self.run_id, "name": self.name, **stored}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "RunSpec":
        """Raises ValueError for another schema, and for a spec that no longer has the meaning of its run_id."""
        if stored.get("schema") != SCHEMA:
            raise ValueError(f"schema is {stored.get('schema')!r}; allowed: {SCHEMA}")
        if stored.get("kind") == "foreign":
            raise ValueError("it is a curve of others, which `cleanba ingest` read; allowed: a run of our own")
        named = [field.name for field in fields(cls)]
        check_keys(stored, where="run spec", required=(*named, "schema", "run_id", "name"))
        values: dict[str, Any] = {name: stored[name] for name in named}
        values["profile"] = Profile(**stored["profile"])
        spec = cls(**values)
        if spec.run_id != stored["run_id"]:
            raise ValueError(f"run_id is {stored['run_id']}, but what it states has the id {spec.run_id}")
        return spec


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A declared matrix of runs. `cells` are in the order algorithm, game, profile, seed."""

    name: str
    question: str
    description: str
    margin: float | None  # within which two learning curves count as equivalent, in HNS; in points if no game has HNS
    cells: tuple[RunSpec, ...]


def load_experiment(path: Path) -> Experiment:
    """Read and expand an experiment file; its profiles are in `profiles/` beside it.

    Raises ValueError naming file, key, what was found and what is allowed.
    """
    declared = load_mapping(path)
    where = str(path)
    check_keys(declared, where=where, required=_REQUIRED, optional=_OPTIONAL)
    _check_types(declared, where)
    _check_games(declared["env_ids"], where)
    loaded = {name: _find_profile(path.parent / "profiles", name, where) for name in declared["profiles"]}
    cells = tuple(
        _cell(declared, label, env_id, loaded[profile], seed, where)
        for label, env_id, profile, seed in product(
            declared["algorithms"], declared["env_ids"], declared["profiles"], declared["seeds"]
        )
    )
    _check_distinct(cells, where)
    return Experiment(
        name=declared["name"],
        question=declared.get("question", ""),
        description=declared.get("description", ""),
        margin=declared.get("margin"),
        cells=cells,
    )


def resolve(
    *, experiment: str, algorithm: str, algo: str, env_id: str, seed: int, profile: Profile,
    settings: Mapping[str, Any], question: str = "",
) -> RunSpec:  # fmt: skip
    """A run spec with every setting stated. Raises ValueError for a setting or layout that cannot be."""
    from cleanba.config import CONFIGS, as_laid_out

    if algo not in CONFIGS:
        raise ValueError(f"algo is {algo!r}; allowed: {', '.join(CONFIGS)}")
    names = [field.name for field in fields(CONFIGS[algo]) if field.name not in _ADDRESSES]
    check_keys(settings, where="settings", required=(), optional=names)
    config = CONFIGS[algo](env_id=env_id, seed=seed, **settings)
    spec = RunSpec(
        experiment=experiment,
        algorithm=algorithm,
        algo=algo,
        env_id=env_id,
        seed=seed,
        profile=profile,
        settings={name: getattr(config, name) for name in names},
        derived=config.derived(),
        question=question,
    )
    try:
        as_laid_out(config, spec.layout())
    except ValueError as error:
        raise ValueError(f"profile {profile.name}: {error}") from error
    return spec


def check_game(env_id: str, *, where: str) -> None:
    """Raises ValueError with the nearest names. Known are the games of the HNS table: the launcher has no EnvPool."""
    from analysis.scores import ATARI57, check_games

    check_games([env_id], where=where, known=(*ATARI57, "CartPole-v1"))


def check_name(name: Any, *, where: str) -> None:
    """Names of experiments and labels of algorithms become names of folders and of W&B runs."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ValueError(f"{where} is {describe(name)}; allowed: letters, digits, `_`, `.` and `-`")


def _check_types(declared: Mapping[str, Any], where: str) -> None:
    for key in ("name", "question", "description"):
        if key in declared:
            check_type(declared[key], str, where=f"{where}: {key}")
    if "margin" in declared:
        check_type(declared["margin"], float, where=f"{where}: margin")
        if declared["margin"] <= 0:
            raise ValueError(f"{where}: margin is {declared['margin']}; allowed: a number above 0")
    check_name(declared["name"], where=f"{where}: name")
    for key, kind in (("env_ids", str), ("profiles", str), ("seeds", int)):
        check_list(declared[key], kind, where=f"{where}: {key}")
    if not isinstance(declared["algorithms"], dict) or not declared["algorithms"]:
        raise ValueError(
            f"{where}: algorithms is {describe(declared['algorithms'])}; allowed: labels with their settings"
        )
    for label in declared["algorithms"]:
        check_name(label, where=f"{where}: algorithms: a label")


def _check_games(env_ids: list[str], where: str) -> None:
    for env_id in env_ids:
        check_game(env_id, where=f"{where}: env_ids")


def _find_profile(folder: Path, name: str, where: str) -> Profile:
    path = folder / f"{name}.yaml"
    if not path.is_file():
        allowed = sorted(found.stem for found in folder.glob("*.yaml"))
        raise ValueError(f"{where}: profiles: no profile {name!r} in {folder}; allowed: {', '.join(allowed)}")
    return load_profile(path)


def _cell(declared: Mapping[str, Any], label: str, env_id: str, profile: Profile, seed: int, where: str) -> RunSpec:
    settings = declared["algorithms"][label]
    where = f"{where}: algorithms: {label}"
    check_type(settings, dict, where=where)
    settings = dict(settings)
    if "algo" not in settings:
        raise ValueError(f"{where}: key 'algo' is missing; allowed: impala, ppo")
    algo = settings.pop("algo")
    if "total_env_steps" in declared:
        if "total_env_steps" in settings:
            raise ValueError(f"{where}: total_env_steps stands here and for all algorithms; state it in one place")
        settings["total_env_steps"] = declared["total_env_steps"]
    try:
        return resolve(
            experiment=declared["name"],
            algorithm=label,
            algo=algo,
            env_id=env_id,
            seed=seed,
            profile=profile,
            settings=settings,
            question=declared.get("question", ""),
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _check_distinct(cells: tuple[RunSpec, ...], where: str) -> None:
    """Two cells of one meaning would share one record."""
    names: dict[str, str] = {}
    for cell in cells:
        if cell.run_id in names:
            raise ValueError(f"{where}: {cell.name} and {names[cell.run_id]} are the same run; state it once")
        names[cell.run_id] = cell.name
