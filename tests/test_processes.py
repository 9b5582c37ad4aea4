"""Layouts of two processes, through `cleanba run`: the bits of one process, and an end when a process is gone."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cells import PROFILE, ROOT, SETTINGS, make_spec

from runners.options import Options
from runners.processes import too_few_cpus
from runners.record import last_metrics, read_rows, read_status
from runners.spec import load_experiment

EXPERIMENT = """
name: processes
env_ids: [CartPole-v1]
seeds: [1]
profiles: [{profiles}]
total_env_steps: {total}
algorithms:
  impala: {{algo: impala, schedule: cleanba, {common}}}
  ppo: {{algo: ppo, schedule: sync, {common}}}
"""
COMMON = (
    "protocol: classic_control, network: mlp, num_envs: 8, num_actor_groups: 4, num_shards: 4, num_minibatches: 1, "
    "rollout_length: 10, fingerprint_every_updates: 1"
)


def declare(folder: Path, profiles: str, total: int) -> Path:
    """An experiment file with the project's profiles beside it."""
    (folder / "profiles").symlink_to(ROOT / "experiments" / "profiles")
    path = folder / "processes.yaml"
    path.write_text(EXPERIMENT.format(profiles=profiles, total=total, common=COMMON))
    return path


def start(path: Path, *arguments: str, modules: Path | None = None) -> subprocess.Popen:
    """`cleanba run`; `modules` is a folder that Python looks into first."""
    command = [sys.executable, "-m", "runners.cli", "run", str(path), *arguments]
    found = os.pathsep.join(map(str, filter(None, [modules, ROOT])))
    environment = os.environ | {"PYTHONPATH": found, "WANDB_MODE": "disabled"}
    return subprocess.Popen(command, cwd=path.parent, env=environment, stderr=subprocess.PIPE, text=True)


def test_processes_that_share_too_few_cpus_are_not_on_their_profile(monkeypatch):
    """One CPU, and two, set aside for two processes of one CPU each. A process alone is checked as it is measured."""
    two = make_spec(
        profile=replace(PROFILE, layout="a0-l0-d2", cpus=1), settings=SETTINGS | {"num_shards": 2, "num_minibatches": 1}
    )
    wrong = ["2 usable CPUs declared for 2 processes, 1 found"]
    assert too_few_cpus(two, Options(cpu_ids=(0,))) == wrong
    assert too_few_cpus(two, Options(cpu_ids=(0, 1))) == []
    assert too_few_cpus(make_spec(profile=replace(PROFILE, cpus=64)), Options(cpu_ids=(0,))) == []
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")  # each has CPUs of its own
    assert too_few_cpus(two, Options(cpu_ids=(0,))) == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes of one CPU each need two CPUs")
def test_d2_two_processes_have_the_bits_of_one(tmp_path):
    path = declare(tmp_path, "cpu-1dev, cpu-2proc", 4 * 80)
    running = start(path)
    _, errors = running.communicate(timeout=500)
    assert running.returncode == 0, errors
    one, two = (
        [c for c in load_experiment(path).cells if c.profile.name == name] for name in ("cpu-1dev", "cpu-2proc")
    )
    assert len(one) == len(two) == 2
    for a, b in zip(one, two):
        rows = [read_rows(cell.folder(tmp_path / "results"), "fingerprints") for cell in (a, b)]
        assert rows[0]["update"].nunique() == 4
        assert set(rows[0]["shard"]) == {-1, 0, 1, 2, 3}
        assert rows[0].equals(rows[1]), a.name
        episodes = [
            read_rows(cell.folder(tmp_path / "results"), "episodes").drop(columns="wall_seconds") for cell in (a, b)
        ]
        assert len(episodes[0]) > 0
        assert set(episodes[0]["group"]) == {0, 1, 2, 3}
        assert episodes[0].equals(episodes[1])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes of one CPU each need two CPUs")
@pytest.mark.parametrize("victim", [1, 0])
def test_a_process_that_dies_ends_the_other(victim, tmp_path):
    path = declare(tmp_path, "cpu-2proc", 10_000_000)
    cell = next(cell for cell in load_experiment(path).cells if cell.algo == "impala")
    folder = cell.folder(tmp_path / "results")
    running = start(path, "--only", cell.run_id)
    workers = wait_for_processes(running, folder)
    begin = time.monotonic()
    os.kill(workers[victim].pid, signal.SIGKILL)
    _, errors = running.communicate(timeout=60)
    assert time.monotonic() - begin < 60
    assert running.returncode == 1
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    status = read_status(folder)
    assert status.state in ("failed", "interrupted")
    if victim == 1:
        sentence = "process 1 of 2 was ended by SIGKILL; what it said is in the log"
        assert sentence in status.reason
        assert sentence in errors


PEER_RAISES = """
from runners import processes

be_peer = processes.be_peer

def be_a_broken_peer(spec, options):
    be_peer(spec, options)
    from cleanba.envs import Envs
    step, calls = Envs.step, []

    def broken(self, actions):
        calls.append(1)
        if len(calls) > 40:
            raise OSError("the emulator is gone")
        return step(self, actions)

    Envs.step = broken

processes.be_peer = be_a_broken_peer
"""


def test_a_process_that_fails_ends_the_run_with_a_sentence(tmp_path):
    path = declare(tmp_path, "cpu-2proc", 10_000_000)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(PEER_RAISES)  # Python imports it in every process
    cell = next(cell for cell in load_experiment(path).cells if cell.algo == "impala")
    folder = cell.folder(tmp_path / "results")
    running = start(path, "--only", cell.run_id, "--allow-mismatch", modules=tmp_path / "modules")  # one CPU will do
    log, deadline = folder / "log.txt", time.monotonic() + 300
    while not (log.exists() and "the emulator is gone" in log.read_text()):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    try:
        _, errors = running.communicate(timeout=60)
    finally:
        running.terminate()
    sentence = "process 1 of 2 ended with exit code 1; what it said is in the log"
    assert running.returncode == 1
    assert read_status(folder).state == "failed"
    assert sentence in read_status(folder).reason
    assert sentence in errors


def wait_for_processes(running: subprocess.Popen, folder: Path) -> list[psutil.Process]:
    """The worker and its peer, once they train."""
    deadline = time.monotonic() + 240
    while not (folder.is_dir() and last_metrics(folder)):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found = [p for p in psutil.Process(running.pid).children(recursive=True) if "runners.worker" in p.cmdline()]
    assert len(found) == 2
    return sorted(found, key=lambda process: process.create_time())
