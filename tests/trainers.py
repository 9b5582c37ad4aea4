"""Small runs for the trainers' tests."""

import importlib
from typing import Any

from cleanba.config import CONFIGS, Config
from cleanba.layout import Layout
from cleanba.recorder import ListRecorder, Recorder

CARTPOLE = {
    "env_id": "CartPole-v1",
    "protocol": "classic_control",
    "network": "mlp",
    "seed": 1,
    "fingerprint_every_updates": 1,
}
SMALL = {"num_envs": 8, "num_actor_groups": 4, "num_shards": 4, "num_minibatches": 1}
BREAKOUT = {"env_id": "Breakout-v5", "network": "impala_shallow", "seed": 1, "fingerprint_every_updates": 1}


def config(algo: str, **settings: Any) -> Config:
    return CONFIGS[algo](**settings)


def run(config: Config, layout: str = "a0-l0-d1", threads: int = 2) -> tuple[Any, dict[str, list]]:
    """Train; the final parameters and the recorded rows."""
    recorder = ListRecorder()
    return train(config, recorder, layout, threads), recorder.rows


def train(config: Config, recorder: Recorder, layout: str = "a0-l0-d1", threads: int = 2, **more: Any) -> Any:
    trainer = importlib.import_module(f"cleanba.{config.algo}")
    return trainer.train(config, Layout.parse(layout, threads_per_actor_device=threads), recorder, **more)


def first_difference(a: list, b: list) -> Any:
    """The first fingerprint row that two runs do not share, or None."""
    if len(a) != len(b):
        return f"{len(a)} rows against {len(b)}"
    return next(((x, y) for x, y in zip(a, b) if x != y), None)
