"""Writes realistic made-up run records, for tests and for measuring the report: `python -m tests.synthetic OUT`.

Every number comes from a random stream addressed by (algorithm, game, seed) and, for systems that drift, the profile;
so two profiles without drift hold identical episodes and fingerprints, as hardware-invariant runs do.
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from analysis.scores import ATARI57, DEFAULT, TABLES
from cleanba.envs import frames_per_env_step
from runners.profiles import Profile
from runners.spec import RunSpec, resolve

STAGES = ("rollout", "gradient", "params")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run to make up. `drift`: the share by which its returns differ from other profiles'; 0: identical."""

    experiment: str = "synthetic"
    algorithm: str = "impala"
    algo: str = "impala"
    env_id: str = "Breakout-v5"
    profile: str = "cpu-1dev"
    seed: int = 1
    total_env_steps: int = 40_000
    num_episodes: int = 400
    drift: float = 0.0
    settings: dict = field(default_factory=dict)

    @property
    def spec(self) -> RunSpec:
        """The resolved spec, as a launcher would write it."""
        protocol = "classic_control" if self.env_id == "CartPole-v1" else "machado2018"
        return resolve(
            experiment=self.experiment,
            algorithm=self.algorithm,
            algo=self.algo,
            env_id=self.env_id,
            seed=self.seed,
            profile=Profile(name=self.profile, platform="cpu", layout="a0-l0-d1", cpus=2, memory_gib=4.0),
            settings={"protocol": protocol, "total_env_steps": self.total_env_steps, **self.settings},
            question="Does the learning curve depend on the device layout?",
        )

    @property
    def config(self):
        return self.spec.config()

    def stream(self, purpose: str) -> np.random.Generator:
        where = self.profile if self.drift else ""
        key = f"{purpose}/{self.algorithm}/{self.env_id}/{self.seed}/{where}"
        return np.random.default_rng(np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype=np.uint32))


def episodes(cell: Cell) -> pd.DataFrame:
    """Returns that rise from the random score to a share of the human score, with noise that grows with the score."""
    random_score, human_score = TABLES[DEFAULT].scores.get(cell.env_id, (20.0, 500.0))
    planned, rng = cell.spec.planned_env_steps, cell.stream("episodes")
    final_hns = np.random.default_rng(len(cell.env_id) * 100 + ord(cell.env_id[0])).lognormal(0.3, 0.8)
    end = np.sort(rng.integers(1, planned + 1, cell.num_episodes))
    progress = 1 - np.exp(-4 * end / planned)
    hns = final_hns * (1 + cell.drift + 0.1 * rng.standard_normal()) * progress * rng.gamma(16, 1 / 16, end.size)
    update = (end - 1) // cell.config.env_steps_per_update + 1
    return pd.DataFrame(
        {
            "schema": 1,
            "segment": 0,
            "update": update,
            "env_steps": end,
            "wall_seconds": end / 1000,
            "group": rng.integers(0, 2, end.size),
            "env": rng.integers(0, 64, end.size),
            "episode_return": np.round(random_score + (human_score - random_score) * hns),
            "clipped_return": np.round(20 * hns),
            "episode_length": rng.integers(100, 27_000, end.size),
            "truncated": 0,
        }
    )


def updates(cell: Cell) -> pd.DataFrame:
    """The columns that metrics and timing share, one row per update; 1,000 env steps/s after 5 s of compilation."""
    update = np.arange(1, cell.config.num_updates + 1)
    env_steps = update * cell.config.env_steps_per_update
    rate = 1000 * (1 + cell.drift)
    return pd.DataFrame(
        {"schema": 1, "segment": 0, "update": update, "env_steps": env_steps, "wall_seconds": 5 + env_steps / rate}
    )


def metrics(cell: Cell) -> pd.DataFrame:
    rows, rng = updates(cell), cell.stream("metrics")
    lag = (rows["update"] > 1).astype(int) if cell.config.schedule == "cleanba" else 0 * rows["update"]
    noise = {
        name: rng.standard_normal(len(rows))
        for name in ("losses/loss", "losses/policy_loss", "losses/value_loss", "losses/entropy", "stats/gradient_norm")
    }
    return rows.assign(
        frames=frames_per_env_step(cell.config.protocol) * rows["env_steps"],
        actor_policy_version=rows["update"] - 1 - lag,
        policy_lag=lag,
        learning_rate=6e-4 * (1 - (rows["update"] - 1) / len(rows)),
        **noise,
        **{"charts/SPS": rows["env_steps"] / rows["wall_seconds"], "charts/avg_episodic_return": 1.0},
    )


def timing(cell: Cell) -> pd.DataFrame:
    rows, rng = updates(cell), cell.stream("timing")
    names = ("rollout", "params_wait", "env", "inference", "rollout_wait", "learn")
    return rows.assign(**{f"{name}_seconds": rng.random(len(rows)) for name in names})


def fingerprints(cell: Cell) -> pd.DataFrame:
    every = cell.config.fingerprint_every_updates
    recorded = np.arange(every, cell.config.num_updates + 1, every) if every else np.arange(0)
    digests = cell.stream("fingerprints").bytes(8 * recorded.size * len(STAGES)).hex()
    return pd.DataFrame(
        {
            "schema": 1,
            "segment": 0,
            "update": np.repeat(recorded, len(STAGES)),
            "stage": np.tile(STAGES, recorded.size),
            "shard": -1,
            "digest": [digests[i : i + 16] for i in range(0, len(digests), 16)],
        }
    )


def machine(cell: Cell) -> dict:
    return {
        "schema": 1, "cpu_model": "Made-up CPU 3000", "cpus": 2, "memory_gib": 8.0, "devices": ["cpu:0"],
        "os": "Linux 6.1", "python": "3.11.9", "packages": {"jax": "0.10.2", "envpool": "1.2.0", "numpy": "2.3.0"},
    }  # fmt: skip


def write_run(results: Path, cell: Cell, *, state: str = "complete", reason: str = "", **tables) -> Path:
    """One run's folder under results/runs/<experiment>/. `tables` replaces made-up ones (episodes=, metrics=, ...)."""
    spec = cell.spec
    folder = spec.folder(results)
    folder.mkdir(parents=True)
    for name, make in (
        ("episodes", episodes),
        ("metrics", metrics),
        ("timing", timing),
        ("fingerprints", fingerprints),
    ):
        rows = tables[name] if name in tables else make(cell)
        _write_rows(rows, folder / name, compact=state == "complete")
    status = {
        "schema": 1, "state": state, "reason": reason, "segment": 0, "started_at": "2026-01-01T00:00:00+00:00",
        "updated_at": "2026-01-01T01:00:00+00:00", "env_steps": spec.planned_env_steps, "pid": 1,
    }  # fmt: skip
    for name, content in (("spec", spec.to_json()), ("machine.0", machine(cell)), ("status", status)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return folder


def declare(folder: Path, runs: Sequence[Cell], **changes) -> Path:
    """The experiment file that declares `runs`, which must be of a full product, and its profiles beside it."""
    specs = [cell.spec for cell in runs]
    levels = {"env_ids": "env_id", "seeds": "seed"}
    declared = {
        "name": specs[0].experiment,
        **{key: list(dict.fromkeys(getattr(spec, name) for spec in specs)) for key, name in levels.items()},
        "profiles": list(dict.fromkeys(spec.profile.name for spec in specs)),
        "algorithms": {spec.algorithm: {"algo": spec.algo, **spec.settings} for spec in specs},
    }
    (folder / "profiles").mkdir(parents=True, exist_ok=True)
    for spec in specs:
        stated = {name: value for name, value in spec.profile.to_json().items() if value is not None}
        (folder / "profiles" / f"{spec.profile.name}.yaml").write_text(yaml.safe_dump(stated))
    path = folder / f"{declared['name']}.yaml"
    path.write_text(yaml.safe_dump(declared | changes, sort_keys=False))
    return path


def _write_rows(rows: pd.DataFrame, stem: Path, *, compact: bool) -> None:
    if compact:
        rows.to_parquet(stem.with_suffix(".parquet"), index=False)
    elif stem.name == "metrics":
        rows.to_json(stem.with_suffix(".jsonl"), orient="records", lines=True)
    else:
        rows.to_csv(stem.with_suffix(".csv"), index=False)


def cells(
    games: Sequence[str], seeds: Sequence[int], systems: int, *, total_env_steps: int, num_episodes: int, **shared
) -> list[Cell]:
    """`systems` algorithm x profile pairs, IMPALA and PPO in turn; the last system drifts from its other profiles."""
    pairs = [(("impala", "ppo")[i % 2], f"cpu-{i // 2 + 1}dev") for i in range(systems)]
    return [
        Cell(
            algorithm=algo, algo=algo, env_id=env_id, profile=profile, seed=seed, total_env_steps=total_env_steps,
            num_episodes=num_episodes, drift=0.2 if i == systems - 1 else 0.0, **shared,
        )
        for i, (algo, profile) in enumerate(pairs)
        for env_id in games
        for seed in seeds
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a results folder; runs go to OUT/runs/synthetic/")
    parser.add_argument("--games", type=int, default=57)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", type=int, default=6)
    parser.add_argument("--total-env-steps", type=int, default=50_000_000, help="the paper's 200M frames")
    parser.add_argument("--episodes", type=int, default=20_000, help="per run; 50M env steps of 2,500 each")
    args = parser.parse_args()
    runs = cells(
        ATARI57[: args.games],
        range(1, args.seeds + 1),
        args.systems,
        total_env_steps=args.total_env_steps,
        num_episodes=args.episodes,
    )
    for cell in runs:
        write_run(args.out, cell)
    print(f"{len(runs)} runs under {args.out / 'runs' / 'synthetic'}")


if __name__ == "__main__":
    main()
