"""The measurements of `runners.bench`, each made in a process of its own. Imports the trainers."""

import importlib
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import psutil

from cleanba import envs, streams, training
from cleanba.config import CONFIGS, Config, ImpalaConfig
from cleanba.layout import Layout
from cleanba.recorder import ListRecorder
from cleanba.rollout import Batch
from runners.bench import ENV_ID, WARM_UP, steady_rate

SECONDS_A_MEASUREMENT = 5.0


def run(algo: str, settings: dict[str, Any], layout: str = "a0-l0-d1", turn: int = 0) -> dict[str, float]:
    """A training run's rate after its warm-up, and the learner's time. `turn` tells repetitions apart."""
    config, recorder = CONFIGS[algo](**settings), ListRecorder()
    _train(config, recorder, layout)
    rows = recorder.rows["timing"]
    learning = float(np.mean([row["learn_seconds"] for row in rows[int(len(rows) * WARM_UP) :]]))
    return {
        "env_steps_per_second": steady_rate(rows),
        "learn_seconds_per_env_step": learning / config.env_steps_per_update,
    }


def ceiling(num_envs: int) -> dict[str, float]:
    """EnvPool alone: the same groups, threads and protocol, random actions."""
    config = ImpalaConfig(env_id=ENV_ID, seed=1, num_envs=num_envs)
    groups = [_envs_of_group(config, group) for group in range(config.num_actor_groups)]
    counts = [0] * len(groups)
    stop = threading.Event()

    def step(number: int) -> None:
        rng = np.random.default_rng(number)
        group = groups[number]
        while not stop.is_set():
            group.step(rng.integers(group.spec.num_actions, size=config.envs_per_group, dtype=np.int32))
            counts[number] += config.envs_per_group

    threads = [threading.Thread(target=step, args=(number,)) for number in range(len(groups))]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(SECONDS_A_MEASUREMENT)
    stop.set()
    for thread in threads:
        thread.join()
    return {"env_steps_per_second": sum(counts) / (time.perf_counter() - begin)}


def inference(network: Any, num_envs: int) -> dict[str, float]:
    """The policy alone, at a group's batch size, with nothing beside it."""
    config = ImpalaConfig(env_id=ENV_ID, seed=1, network=network, num_envs=num_envs)
    module, params = training.make_network(config)
    policy = training.make_policy(module)
    observations = _envs_of_group(config, 0).reset()
    key = streams.key(config.seed, streams.Role.ACTIONS, 0, 1)
    seconds = _seconds_a_call(lambda: [np.asarray(x) for x in policy(params, observations, key, 0)])
    return {"seconds_per_env_step": seconds / config.envs_per_group}


def memory(updates: int) -> dict[str, float]:
    """Growth of this process between a tenth of the updates and the last, and the paper's rollout storage."""
    config = ImpalaConfig(
        env_id="Breakout-v5",
        seed=1,
        network="impala_shallow",
        num_envs=8,
        rollout_length=5,
        num_minibatches=1,
        total_env_steps=updates * 40,
    )
    first_update, resident = max(1, updates // 10), {}
    process = psutil.Process()

    class Watch(ListRecorder):
        def timing(self, row):
            if row["update"] in (first_update, updates):
                resident[row["update"]] = process.memory_info().rss
            for rows in self.rows.values():
                rows.clear()  # what is measured is the trainer, not this list

    _train(config, Watch())
    return {
        "first_update": first_update,
        "last_update": updates,
        "growth_mib": (resident[updates] - resident[first_update]) / 2**20,
        "paper_storage_gib": _storage_bytes(ImpalaConfig(env_id="Breakout-v5", seed=1)) / 2**30,
    }


def kernels() -> list[dict[str, Any]]:
    """Achieved FLOP/s of each network beside a float32 matrix product, in one loop."""
    return [_kernels_of(network, batch=160) for network in ("impala_shallow", "nature_cnn", "resnet")]


def _kernels_of(network: Any, batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    matrix = jax.numpy.asarray(rng.random((2048, 2048), np.float32))
    product = jax.jit(lambda a: a @ a)
    module, params = training.make_network(ImpalaConfig(env_id=ENV_ID, seed=1, network=network))
    frames = rng.integers(0, 255, (batch, 4, 84, 84), np.uint8)
    forward = jax.jit(module.forward)
    gradient = jax.jit(jax.grad(lambda params, frames: _total(module.forward(params, frames))))
    flops = _flops(forward, params, frames)
    return {
        "network": network,
        "batch": batch,
        "forward_gflops_per_second": flops / _seconds_a_call(lambda: forward(params, frames)) / 1e9,
        # A gradient is counted as three forward passes: the pass itself, and one for each factor of its products.
        "gradient_gflops_per_second": 3 * flops / _seconds_a_call(lambda: gradient(params, frames)) / 1e9,
        "matrix_gflops_per_second": 2 * 2048**3 / _seconds_a_call(lambda: product(matrix)) / 1e9,
    }


def _train(config: Config, recorder: ListRecorder, layout: str = "a0-l0-d1") -> None:
    placed = Layout.parse(layout, threads_per_actor_device=2)
    importlib.import_module(f"cleanba.{config.algo}").train(config, placed, recorder)


def _envs_of_group(config: Config, group: int) -> envs.Envs:
    first = group * config.envs_per_group
    seeds = streams.env_seeds(config.seed, range(first, first + config.envs_per_group))
    made = envs.Envs(config.env_id, config.protocol, seeds, num_threads=1)
    made.reset()
    return made


def _storage_bytes(config: Config) -> int:
    """Two updates' rollouts: the one that is learned from and the one that is being made."""
    spec = envs.spec(config.env_id, config.protocol)
    batch = Batch.empty(config.num_shards, config.envs_per_shard, config.rollout_length, spec)
    return 2 * sum(x.nbytes for x in batch)


def _total(outputs: tuple[jax.Array, jax.Array]) -> jax.Array:
    return sum((x.sum() for x in outputs), start=jax.numpy.float32(0))


def _flops(function: Any, *arguments: Any) -> float:
    """As XLA counts them in the compiled program."""
    return function.lower(*arguments).compile().cost_analysis()["flops"]


def _seconds_a_call(call: Callable[[], Any]) -> float:
    """The median over some seconds of calls, after the first."""
    jax.block_until_ready(call())
    seconds = []
    end = time.perf_counter() + SECONDS_A_MEASUREMENT
    while time.perf_counter() < end or len(seconds) < 3:
        begin = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))
