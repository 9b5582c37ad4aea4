"""Run specs and records for the tests of the runners."""

import sys
from pathlib import Path

from runners.profiles import Profile
from runners.spec import RunSpec, resolve

ROOT = Path(__file__).resolve().parents[1]
FAKE_WORKER = (sys.executable, str(ROOT / "tests" / "fake_worker.py"))
PROFILE = Profile(name="one", platform="cpu", layout="a0-l0-d1", cpus=1, memory_gib=0.1)
# 4 envs x 5 env steps: 20 env steps an update, 10 updates
SETTINGS = {
    "total_env_steps": 200, "protocol": "classic_control", "network": "mlp", "num_envs": 4, "num_actor_groups": 2,
    "rollout_length": 5,
}  # fmt: skip


def make_spec(*, seed: int = 1, profile: Profile = PROFILE, **changes) -> RunSpec:
    stated = {"experiment": "trial", "algorithm": "impala", "algo": "impala", "env_id": "CartPole-v1"} | changes
    return resolve(**{"settings": SETTINGS, **stated}, seed=seed, profile=profile)


def metrics_row(update: int, **more) -> dict:
    env_steps = 20 * update
    return {"update": update, "env_steps": env_steps, "frames": 4 * env_steps, "wall_seconds": 0.1 * update, **more}


def episode_row(update: int, **changes) -> dict:
    return {
        "update": update, "env_steps": 20 * update, "wall_seconds": 0.1 * update, "group": 0, "env": 1,
        "episode_return": 10.0 * update, "clipped_return": float(update), "episode_length": 7, "truncated": 0,
    } | changes  # fmt: skip
