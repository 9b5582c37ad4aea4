"""Speed and memory of the trainers beside the best that the machine allows: `python -m runners.bench`.

Each measurement runs in a process of its own and on all usable cores. Writes results/bench/trainers.json. With
CLEANBA_ORIGINAL (a checkout of github.com/vwxyzjn/cleanba) and CLEANBA_ORIGINAL_PYTHON (an interpreter with its
packages) in the environment, the original IMPALA runs on the same settings, just before and just after ours.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cleanba import numerics
from cleanba.layout import Layout
from runners import machine
from runners.record import read_rows

ENV_ID = "Breakout-v5"
CASES = [  # algorithm, network, schedule, updates: enough for 20 s or so in steady state on two cores
    ("impala", "impala_shallow", "sync", 120),
    ("impala", "impala_shallow", "cleanba", 120),
    ("ppo", "impala_shallow", "sync", 14),
    ("ppo", "impala_shallow", "cleanba", 14),
    ("ppo", "nature_cnn", "sync", 8),
    ("impala", "resnet", "cleanba", 20),
]
ORIGINAL_CASE = CASES[-1]  # the one that the original runs beside
WANTED_SHARE = 0.8  # of the attainable rate, with impala_shallow
WANTED_AGAINST_ORIGINAL = 25  # with the ResNet
WANTED_PRICE = 0.15  # of invariance, in SPS
WANTED_FINGERPRINT_SHARE = 0.02  # of an update, at the default frequency
WANTED_MIRROR_PRICE = 0.02  # of the W&B mirror, in SPS
WANTED_STORAGE_GIB = 4  # for the paper's IMPALA settings
DEFAULT_EVERY_UPDATES = 10  # fingerprint_every_updates
WARM_UP = 0.25  # of the updates, left out: compilation, the first episodes


def settings_of(algo: str, network: str, schedule: str, updates: int) -> dict[str, Any]:
    """16 envs in two groups: a size that two cores are used with."""
    rollout_length = 20 if algo == "impala" else 64
    return {
        "env_id": ENV_ID,
        "seed": 1,
        "network": network,
        "schedule": schedule,
        "num_envs": 16,
        "num_minibatches": 2 if algo == "impala" else 4,
        "rollout_length": rollout_length,
        "total_env_steps": updates * 16 * rollout_length,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench/trainers.json"))
    parser.add_argument("--measure", help="(internal) the measurement that this process makes, as JSON")
    arguments = parser.parse_args()
    if arguments.measure:
        machine.keep_memory()  # as in a run's worker
        from runners import bench_measures

        name, options = json.loads(arguments.measure)
        print(json.dumps(getattr(bench_measures, name)(**options)))
        return 0
    console = Console()
    results = {
        "speed": [_speed(case, console) for case in CASES],
        "determinism": [_determinism(algo, updates, console) for algo, updates in (("impala", 60), ("ppo", 10))],
        "mirror": _mirror(25_600, console),
        "memory": _in_own_process("memory", updates=1000),
        "kernels": _in_own_process("kernels"),
        "original": _against_original(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    _show(results, console)
    console.print(f"written: {arguments.out}")
    return 0


def _speed(case: tuple[str, str, str, int], console: Console) -> dict[str, Any]:
    """One algorithm and network: its rate, the parts' own rates, and what the parts would allow together."""
    algo, network, schedule, _ = case
    console.print(f"measuring {algo}, {network}, {schedule}", style="dim")
    settings = settings_of(*case)
    run = _in_own_process("run", algo=algo, settings=settings)
    alone = run if schedule == "sync" else _in_own_process("run", algo=algo, settings=settings | {"schedule": "sync"})
    ceiling = _in_own_process("ceiling", num_envs=settings["num_envs"])["env_steps_per_second"]
    inference = _in_own_process("inference", network=network, num_envs=settings["num_envs"])["seconds_per_env_step"]
    learning = alone["learn_seconds_per_env_step"]  # under sync, nothing else runs meanwhile
    attainable = 1 / (1 / ceiling + inference + learning)
    return {
        "algo": algo,
        "network": network,
        "schedule": schedule,
        "env_steps_per_second": run["env_steps_per_second"],
        "ceiling_env_steps_per_second": ceiling,
        "inference_seconds_per_env_step": inference,
        "learning_seconds_per_env_step": learning,
        "attainable_env_steps_per_second": attainable,
        "share": run["env_steps_per_second"] / attainable,
    }


def _determinism(algo: str, updates: int, console: Console) -> dict[str, Any]:
    """What invariance and fingerprints cost on two emulated devices, beside a gradient a device and no fingerprints.

    Four shards are summed in a fixed order, or each device has one gradient. The two take turns. Digests are made at
    every update, ten times as often as by default, so that their cost stands out.
    """
    console.print(f"measuring what determinism costs {algo}", style="dim")
    settings = settings_of(algo, "impala_shallow", "sync", updates) | {"num_shards": 4, "fingerprint_every_updates": 0}
    if algo == "impala":
        settings |= {"num_envs": 32, "total_env_steps": updates * 32 * 20}
    kinds = {"invariant": {}, "fast": {"reduction": "fast"}, "fingerprints": {"fingerprint_every_updates": 1}}
    runs = [
        {kind: _in_own_process("run", algo=algo, settings=settings | more, layout="a0-l0,1-d1", turn=turn)
         for kind, more in kinds.items()}
        for turn in range(2)
    ]  # fmt: skip
    rates = {kind: sum(turn[kind]["env_steps_per_second"] for turn in runs) / len(runs) for kind in kinds}
    seconds = {kind: 1 / rate for kind, rate in rates.items()}
    return {
        "algo": algo,
        **{f"{kind}_env_steps_per_second": rate for kind, rate in rates.items()},
        "price_of_invariance": 1 - rates["invariant"] / rates["fast"],
        "fingerprint_share": (seconds["fingerprints"] / seconds["invariant"] - 1) / DEFAULT_EVERY_UPDATES,
    }


def _mirror(env_steps: int, console: Console, turns: int = 3) -> dict[str, Any]:
    """What W&B's mirror costs a whole run of `cleanba train`, record and all, in turns with runs without it."""
    console.print("measuring what the W&B mirror costs", style="dim")
    runs = [{mode: _command_rate(mode, env_steps) for mode in ("disabled", "offline")} for _ in range(turns)]
    rates = {mode: sum(run[mode] for run in runs) / turns for mode in ("disabled", "offline")}
    return {
        "env_steps_per_second": rates["offline"],
        "without_env_steps_per_second": rates["disabled"],
        "prices": [1 - run["offline"] / run["disabled"] for run in runs],
        "price": 1 - rates["offline"] / rates["disabled"],
    }


def _command_rate(wandb_mode: str, env_steps: int) -> float:
    """Env steps per second of `cleanba train impala` after its warm-up, with a row for W&B at every update."""
    with tempfile.TemporaryDirectory() as results:
        command = [
            sys.executable, "-m", "runners.cli", "train", "impala", "--env-id", ENV_ID, "--network", "impala_shallow",
            "--local-num-envs", "8", "--num-minibatches", "2", "--total-timesteps", str(env_steps), "--no-save-model",
            "--log-frequency", "1", "--results", results,
        ]  # fmt: skip
        environment = os.environ | {"WANDB_MODE": wandb_mode}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        (folder,) = Path(results).glob("runs/*/*")
        return steady_rate(read_rows(folder, "timing").to_dict("records"))


def steady_rate(timing: Sequence[Mapping[str, Any]]) -> float:
    """Env steps per second from a run's rows of timing, without its warm-up."""
    before, last = timing[int(len(timing) * WARM_UP) - 1], timing[-1]
    return (last["env_steps"] - before["env_steps"]) / (last["wall_seconds"] - before["wall_seconds"])


def _against_original() -> dict[str, Any] | None:
    """Both with the ResNet. Updates of the size of the paper would take the original minutes each."""
    checkout, python = os.environ.get("CLEANBA_ORIGINAL"), os.environ.get("CLEANBA_ORIGINAL_PYTHON")
    if not (checkout and python):
        return None
    settings = settings_of(*ORIGINAL_CASE)
    before = _original_rate(Path(checkout), python, settings)
    ours = _in_own_process("run", algo="impala", settings=settings, turn=1)["env_steps_per_second"]
    after = _original_rate(Path(checkout), python, settings)
    return {"ours": ours, "original_before": before, "original_after": after, "ratio": 2 * ours / (before + after)}


def _original_rate(checkout: Path, python: str, settings: dict[str, Any], updates: int = 4) -> float:
    """Env steps per second of the original's IMPALA after its second update; it compiles during the first."""
    command = [
        python, str(checkout / "cleanba" / "cleanba_impala.py"), "--env-id", settings["env_id"],
        "--local-num-envs", str(settings["num_envs"] // 2), "--num-actor-threads", "2",
        "--num-steps", str(settings["rollout_length"]), "--num-minibatches", str(settings["num_minibatches"]),
        "--total-timesteps", str(updates * settings["num_envs"] * settings["rollout_length"]), "--log-frequency", "1",
    ]  # fmt: skip
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    seen = []  # (arrival, env steps) of its learner's reports
    with (
        tempfile.TemporaryDirectory() as folder,  # for what it writes
        subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if " learner_policy_version=" in line:
                seen.append((time.perf_counter(), int(line.split()[0])))
    if len(seen) < updates:
        raise RuntimeError(f"the original ended after {len(seen)} of {updates} updates: {' '.join(command)}")
    (t0, steps0), (t1, steps1) = seen[1], seen[-1]
    return (steps1 - steps0) / (t1 - t0)


def _in_own_process(name: str, **options: Any) -> Any:
    return _measured(name, json.dumps([name, options]))


@cache
def _measured(name: str, measurement: str) -> Any:
    """What several rows need is measured once."""
    command = [sys.executable, "-m", "runners.bench", "--measure", measurement]
    layout = json.loads(measurement)[1].get("layout", "a0-l0-d1")
    settings = numerics.environment("cpu", Layout.parse(layout).devices_per_process, machine.usable_cpus())
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings)
    if done.returncode:
        raise RuntimeError(f"measurement {name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _show(results: dict[str, Any], console: Console) -> None:
    table = Table(title="Trainers, env steps per second on all usable cores")
    for heading in ("algorithm", "network", "schedule", "rate", "EnvPool alone", "attainable", "share", "limited by"):
        table.add_column(heading, justify="left" if heading in ("algorithm", "network", "schedule") else "right")
    for row in results["speed"]:
        seconds = {
            "emulator": 1 / row["ceiling_env_steps_per_second"],
            "inference": row["inference_seconds_per_env_step"],
            "learning": row["learning_seconds_per_env_step"],
        }
        table.add_row(
            row["algo"],
            row["network"],
            row["schedule"],
            f"{row['env_steps_per_second']:,.0f}",
            f"{row['ceiling_env_steps_per_second']:,.0f}",
            f"{row['attainable_env_steps_per_second']:,.0f}",
            f"{row['share']:.2f}",
            max(seconds, key=seconds.__getitem__),
        )
    console.print(table)
    console.print(f"wanted: a share of at least {WANTED_SHARE} with impala_shallow")
    for row in results["determinism"]:
        console.print(
            f"{row['algo']}: invariance costs {row['price_of_invariance']:.1%} of the rate of one gradient a device "
            f"(wanted: under {WANTED_PRICE:.0%}), fingerprints {row['fingerprint_share']:.2%} of an update at the "
            f"default frequency (wanted: under {WANTED_FINGERPRINT_SHARE:.0%})"
        )
    mirror = results["mirror"]
    console.print(
        f"W&B's mirror, offline, costs {mirror['price']:.1%} of the rate "
        f"({', '.join(f'{price:.1%}' for price in mirror['prices'])} in turn; wanted: under {WANTED_MIRROR_PRICE:.0%})"
    )
    kernels = Table(title="Network kernels, float32")
    for heading in ("network", "batch", "forward GFLOP/s", "gradient GFLOP/s", "of a matrix product's"):
        kernels.add_column(heading, justify="right")
    for row in results["kernels"]:
        share = row["gradient_gflops_per_second"] / row["matrix_gflops_per_second"]
        kernels.add_row(
            row["network"],
            str(row["batch"]),
            f"{row['forward_gflops_per_second']:.1f}",
            f"{row['gradient_gflops_per_second']:.1f}",
            f"{share:.2f}",
        )
    console.print(kernels)
    memory = results["memory"]
    console.print(
        f"rollout storage of the paper's IMPALA settings: {memory['paper_storage_gib']:.2f} GiB "
        f"(wanted: under {WANTED_STORAGE_GIB}); memory grew by {memory['growth_mib']:.1f} MiB "
        f"between updates {memory['first_update']} and {memory['last_update']}"
    )
    original = results["original"]
    if original is None:
        console.print("the original: not measured (set CLEANBA_ORIGINAL and CLEANBA_ORIGINAL_PYTHON)")
    else:
        console.print(
            f"the original with the ResNet: {original['original_before']:.1f} and {original['original_after']:.1f} env "
            f"steps/s, ours {original['ours']:.1f}: ratio {original['ratio']:.1f} (wanted: {WANTED_AGAINST_ORIGINAL})"
        )


if __name__ == "__main__":
    sys.exit(main())
