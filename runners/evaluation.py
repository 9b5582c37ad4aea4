"""The process behind `cleanba evaluate`: full games with a trained policy.

python -m runners.evaluation POLICY EPISODES SEED PLATFORM [CSV]
"""

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runners import machine


def main(policy_path: str, episodes: str, seed: str, platform: str, output: str | None = None) -> int:
    from cleanba import numerics

    # JAX reads these when it is imported, just below.
    os.environ.update(numerics.environment(platform, 1, machine.usable_cpus()))
    try:
        machine.devices()
    except RuntimeError as error:
        raise ValueError(f"--platform {platform}: {error}; allowed: a platform of this machine") from error
    from cleanba.evaluate import evaluate
    from cleanba.policy import load

    config, params = load(Path(policy_path))
    rows = evaluate(config, params, int(episodes), int(seed))
    print(summary(config.env_id, [row["episode_return"] for row in rows]))
    if output:
        write_csv(Path(output), rows)
    return 0


def summary(env_id: str, returns: Sequence[float]) -> str:
    """`Breakout-v5: mean return 31.4 over 10 episodes (lowest 12.0, highest 55.0)`"""
    mean = sum(returns) / len(returns)
    return (
        f"{env_id}: mean return {mean:,.1f} over {len(returns)} episodes "
        f"(lowest {min(returns):,.1f}, highest {max(returns):,.1f})"
    )


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("x", newline="") as file:  # existing output is never overwritten
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except (ValueError, OSError) as error:
        print(f"cleanba: {error}", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:  # `cleanba evaluate` says it
        os._exit(1)  # not waiting for the threads of EnvPool
