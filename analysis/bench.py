"""Speed and memory of the statistics beside rliable's, on the same matrices in one process: `python -m analysis.bench`.

Writes results/bench/statistics.json. Ours is run in full, four times; the first time, which includes compilation or its
cache, and the best are given. rliable is run for fewer repetitions and scaled linearly, which the table says. On a busy
machine, the CPU seconds and their ratio are the figures to trust.
"""

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.bootstrap import Resampling, aggregates, profiles
from analysis.comparison import improvement
from analysis.efficiency import Curves, efficiency
from analysis.matrix import ScoreMatrix

REPETITIONS = 50_000
NUM_SYSTEMS, NUM_SEEDS, NUM_GAMES = 4, 3, 57
THRESHOLDS = np.linspace(0.0, 8.0, 81)  # of a performance profile, in HNS
NUM_POINTS = 100  # of a sample efficiency curve


@dataclass(frozen=True, kw_only=True)
class Task:
    """One figure made by both. `theirs(n)` makes it with n repetitions; `wanted` is the least ratio of times."""

    name: str
    wanted: float
    ours: Callable[[], object]
    theirs: Callable[[int], object]
    their_repetitions: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds at `REPETITIONS`; rliable's are scaled from `their_repetitions`. CPU seconds are over all threads."""

    name: str
    our_first_seconds: float
    our_seconds: float
    our_cpu_seconds: float
    their_seconds: float
    their_cpu_seconds: float
    their_repetitions: int
    ratio: float
    cpu_ratio: float
    wanted: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench/statistics.json"))
    out = parser.parse_args().out
    tasks = _tasks()
    first = [_seconds(task.ours)[0] for task in tasks]
    ours = [min(_seconds(task.ours) for _ in range(3)) for task in tasks]
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB; before rliable has run
    theirs = [_scaled_seconds(task) for task in tasks]
    rows = [_measured(*row) for row in zip(tasks, first, ours, theirs, strict=True)]
    report = {"schema": 1, "machine": _machine(), "peak_gib": peak_gib, "tasks": [asdict(row) for row in rows]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    print(pd.DataFrame(report["tasks"]).to_string(index=False, float_format="{:.3g}".format))
    print(f"rliable's times are scaled linearly from their_repetitions to {REPETITIONS:,}.")
    print(f"Peak memory of ours: {peak_gib:.2f} GiB. Written to {out}.")


def _tasks() -> list[Task]:
    """The four figures on log-normal scores, 4 systems x 3 seeds x 57 games."""
    from rliable import library, metrics  # a development dependency, for this comparison only

    arrays = {f"system{i}": np.random.default_rng(i).lognormal(size=(NUM_SEEDS, NUM_GAMES)) for i in range(NUM_SYSTEMS)}
    curves = {name: scores[..., None] * np.linspace(0.01, 1.0, NUM_POINTS) for name, scores in arrays.items()}
    matrices = [ScoreMatrix(name, dict(zip(_games(), scores.T, strict=True))) for name, scores in arrays.items()]
    resampling = Resampling(repetitions=REPETITIONS)
    pair = {"pair": [arrays["system0"], arrays["system1"]]}

    def four_aggregates(scores: np.ndarray) -> np.ndarray:
        functions = "aggregate_median", "aggregate_iqm", "aggregate_mean", "aggregate_optimality_gap"
        return np.array([getattr(metrics, function)(scores) for function in functions])

    def iqm_of_points(scores: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(scores[..., point]) for point in range(NUM_POINTS)])

    def better(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.array([metrics.probability_of_improvement(x, y)])

    return [
        Task(
            name="four aggregates, 4 systems",
            wanted=100,
            ours=lambda: aggregates(matrices, resampling=resampling),
            theirs=lambda n: library.get_interval_estimates(arrays, four_aggregates, reps=n),
            their_repetitions=2000,
        ),
        Task(
            name="performance profiles, 81 thresholds, 4 systems",
            wanted=300,
            ours=lambda: profiles(matrices, THRESHOLDS, resampling=resampling),
            theirs=lambda n: library.create_performance_profile(arrays, THRESHOLDS, reps=n),
            their_repetitions=1000,
        ),
        Task(
            name="IQM sample efficiency, 100 points, 4 systems",
            wanted=200,
            ours=lambda: efficiency(_curves(curves), names=["iqm"], resampling=resampling),
            theirs=lambda n: library.get_interval_estimates(curves, iqm_of_points, reps=n),
            their_repetitions=100,
        ),
        Task(
            name="probability of improvement, 1 pair",
            wanted=300,
            ours=lambda: improvement([(matrices[0], matrices[1])], resampling=resampling),
            theirs=lambda n: library.get_interval_estimates(pair, better, reps=n),
            their_repetitions=200,
        ),
    ]


def _games() -> list[str]:
    return [f"game{i:02}" for i in range(NUM_GAMES)]


def _curves(arrays: dict[str, np.ndarray]) -> list[Curves]:
    grid = np.arange(1.0, NUM_POINTS + 1)
    return [
        Curves(name, "env_steps", grid, "hns", dict(zip(_games(), np.moveaxis(scores, 1, 0), strict=True)))
        for name, scores in arrays.items()
    ]


def _seconds(function: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def _scaled_seconds(task: Task) -> tuple[float, float]:
    wall, cpu = _seconds(lambda: task.theirs(task.their_repetitions))
    factor = REPETITIONS / task.their_repetitions
    return wall * factor, cpu * factor


def _measured(task: Task, first: float, ours: tuple[float, float], theirs: tuple[float, float]) -> Measured:
    return Measured(
        name=task.name,
        our_first_seconds=first,
        our_seconds=ours[0],
        our_cpu_seconds=ours[1],
        their_seconds=theirs[0],
        their_cpu_seconds=theirs[1],
        their_repetitions=task.their_repetitions,
        ratio=theirs[0] / ours[0],
        cpu_ratio=theirs[1] / ours[1],
        wanted=task.wanted,
    )


def _machine() -> dict[str, object]:
    return {"platform": platform.platform(), "usable_cpus": len(os.sched_getaffinity(0)), "numpy": np.__version__}


if __name__ == "__main__":
    main()
