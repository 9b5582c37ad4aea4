"""Profiles and the machine: what is declared, what is measured, and when the two are not the same."""

import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from cells import ROOT

from cleanba.numerics import environment
from runners import machine
from runners.profiles import Profile, load_profile, load_profiles, mismatches

DECLARED = {"name": "one", "platform": "cpu", "layout": "a0-l0,1-d1", "cpus": 2, "memory_gib": 4}
FACTS = {"usable_cpus": 2, "memory_gib": 4.0, "devices": {"platform": "cpu", "kind": "cpu", "count": 2}}


@pytest.fixture
def load(tmp_path):
    def write_and_load(**changes):
        (tmp_path / "one.yaml").write_text(yaml.safe_dump(DECLARED | changes))
        return load_profile(tmp_path / "one.yaml")

    return write_and_load


def test_a_profile_is_read_with_the_documented_defaults(load):
    assert load() == Profile(
        name="one", platform="cpu", layout="a0-l0,1-d1", cpus=2, memory_gib=4.0, device_kind=None,
        threads_per_actor_device=2, envpool_threads=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cpu": 2}, "unknown key 'cpu'; did you mean cpus"),
        ({"name": "two"}, "name is 'two'; allowed: 'one', the file's own"),
        ({"platform": "tpu"}, "platform is 'tpu'; allowed: cpu, gpu"),
        ({"layout": "a0l0"}, "'a0l0' is not of the form a<ids>-l<ids>-d<processes>"),
        ({"layout": "a0-l1,1-d1"}, "name a device twice"),
        ({"cpus": 0}, "cpus is 0; allowed: a number above 0"),
        ({"cpus": 1.5}, "cpus is 1.5, a number; allowed: whole number"),
        ({"memory_gib": "4G"}, "memory_gib is '4G', a text; allowed: number"),
        ({"memory_gib": float("nan")}, "memory_gib is nan; allowed: a finite number"),
        ({"memory_gib": float("inf")}, "memory_gib is inf; allowed: a finite number"),
        ({"device_kind": "A100"}, "device_kind is 'A100' on platform cpu"),
    ],
)
def test_bad_profiles_are_refused_naming_the_file(load, changes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        load(**changes)
    assert "one.yaml: " in str(refusal.value)


def test_the_machine_of_the_profile_has_no_mismatch(load):
    assert mismatches(load(), FACTS) == []
    assert mismatches(load(), FACTS | {"usable_cpus": 64, "memory_gib": 512.0}) == []


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"usable_cpus": 1}, "2 usable CPUs declared, 1 found"),
        ({"memory_gib": 3.9}, "4 GiB of memory declared, 3.9 found"),
        ({"devices": FACTS["devices"] | {"platform": "gpu"}}, "platform cpu declared, gpu found"),
        ({"devices": FACTS["devices"] | {"count": 1}}, "layout a0-l0,1-d1 needs 2 devices, 1 found"),
    ],
)
def test_each_mismatch_is_one_clause(load, facts, sentence):
    assert mismatches(load(), FACTS | facts) == [sentence]


def test_a_machine_that_all_processes_share_needs_what_each_of_them_declares(load):
    """2 CPUs and 4 GiB each. A worker's facts, with devices, are of its own process."""
    profile, machines = load(layout="a0-l0,1-d2"), {"usable_cpus": 2, "memory_gib": 4.0}
    assert mismatches(profile, machines) == [
        "4 usable CPUs declared for 2 processes, 2 found",
        "8 GiB of memory declared for 2 processes, 4.0 found",
    ]
    assert mismatches(profile, {"usable_cpus": 4, "memory_gib": 8.0}) == []
    assert mismatches(profile, FACTS) == []


def test_the_device_kind_is_a_part_of_the_name_that_the_gpu_reports(load):
    profile = load(platform="gpu", device_kind="NVIDIA A100", layout="a0-l0-d1")
    reported = {"platform": "gpu", "kind": "NVIDIA A100-SXM4-40GB", "count": 1}
    assert mismatches(profile, FACTS | {"devices": reported}) == []
    other = reported | {"kind": "NVIDIA H200"}
    assert mismatches(profile, FACTS | {"devices": other}) == ["device kind NVIDIA A100 declared, NVIDIA H200 found"]


def test_the_profiles_of_the_repository():
    profiles = load_profiles(ROOT / "experiments" / "profiles")
    layouts = {
        "cpu-1dev": "a0-l0-d1", "cpu-2dev": "a0-l0,1-d1", "cpu-4dev": "a0,1-l2,3-d1", "gpu1-cpu10": "a0-l0-d1",
        "gpu8-cpu46": "a0-l1,2,3-d2",
    }  # fmt: skip
    assert {name: profiles[name].layout for name in layouts} == layouts
    cpus = {name: profile.cpus for name, profile in profiles.items() if profile.platform == "cpu"}
    one_core = {"cpu-1core": 1, "cpu-1core-again": 1, "cpu-2proc": 1}
    assert cpus == one_core | {"cpu-1dev": 2, "cpu-2dev": 2, "cpu-4dev": 2, "cpu-4dev-l123": 2}


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_usable_cpus_are_those_of_affinity_and_cgroup(tmp_path, files, usable):
    write_all(tmp_path, files)
    assert machine.usable_cpus(tmp_path) == (usable or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        ("0::/slice/job\n", {"slice/cpu.max": "100000 100000", "slice/job/memory.max": str(2**29)}),
        (
            "9:cpu,cpuacct:/slice/job\n4:memory:/slice\n0::/\n",
            {
                "cpu/slice/job/cpu.cfs_quota_us": "100000", "cpu/slice/job/cpu.cfs_period_us": "100000",
                "memory/slice/memory.limit_in_bytes": str(2**29),
            },
        ),
        ("0::/../outside\n", {"cpu.max": "100000 100000", "memory.max": str(2**29)}),
    ],
)  # fmt: skip
def test_limits_of_a_cgroup_within_others_count(tmp_path, own, limits):
    """systemd and Slurm limit a job some levels below the root."""
    write_all(tmp_path / "cgroup", limits)
    (tmp_path / "own").write_text(own)
    assert machine.usable_cpus(tmp_path / "cgroup", tmp_path / "own") == 1
    assert machine.memory_gib(tmp_path / "cgroup", tmp_path / "own") == 0.5


def test_usable_memory_is_the_smaller_of_machine_and_cgroup(tmp_path):
    whole = machine.memory_gib(tmp_path)
    write_all(tmp_path, {"memory.max": str(2**29)})
    assert machine.memory_gib(tmp_path) == 0.5
    write_all(tmp_path, {"memory.max": "max"})
    assert machine.memory_gib(tmp_path) == whole


def write_all(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


def test_a_process_confines_itself_to_the_declared_cpus():
    code = "from runners import machine; machine.confine(1); print(machine.usable_cpus())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


PAGE_FAULTS = """
import resource, threading
from runners import machine

def count():
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        b"x" * (100 * 2**20)
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    print(faults)

thread = threading.Thread(target=count)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="elsewhere malloc is left as it is")
@pytest.mark.parametrize("kept", [True, False])
def test_freed_memory_is_kept_and_comes_without_page_faults(kept):
    """100 MiB in a thread that is not the first, freed and taken again: a page fault for each page, or none."""
    code = PAGE_FAULTS.replace("def count", "machine.keep_memory()\n\ndef count") if kept else PAGE_FAULTS
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 if kept else int(done.stdout) > 10_000


def test_facts_tell_neither_host_nor_user(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    facts = machine.host_facts()
    assert facts["environment"]["XLA_FLAGS"] == "--xla_force_host_platform_device_count=2"
    assert facts["packages"]["jax"][0].isdigit()
    assert len(facts["git"]["commit"] or "x" * 40) == 40
    words = json.dumps(facts)
    for secret in {socket.gethostname(), getpass.getuser(), os.path.expanduser("~")} - {"localhost"}:
        assert not re.search(rf"\b{re.escape(secret)}\b", words)
    assert re.search(rf"\b{re.escape(facts['system'])}\b", words)  # the search does find what is there


def test_facts_have_every_variable_that_the_worker_sets(monkeypatch):
    for kind in ("cpu", "gpu"):
        for name, value in environment(kind, 1, 2).items():
            monkeypatch.setenv(name, value)
            assert machine.host_facts()["environment"][name] == value
    assert "JAX_DEFAULT_PRNG_IMPL" in machine.VARIABLES  # which a user's shell may hold


def test_a_jax_that_cannot_start_is_one_sentence(monkeypatch):
    def local_devices():
        raise AssertionError  # as JAX 0.10 does on a machine without a GPU

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=local_devices))
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(RuntimeError, match=r"^JAX cannot start on cuda$"):
        machine.measure()


def test_git_state_outside_a_repository(tmp_path):
    assert machine.git_state(tmp_path) == {"commit": None, "describe": None, "dirty": None}


def test_git_state_tells_a_changed_file(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (tmp_path / "a").write_text("1")
    for arguments in (["init", "-q"], ["add", "a"], ["commit", "-q", "-m", "a"]):
        subprocess.run([*git, *arguments], check=True)
    assert machine.git_state(tmp_path)["dirty"] is False
    (tmp_path / "a").write_text("2")
    assert machine.git_state(tmp_path)["dirty"] is True
    assert machine.git_state(tmp_path)["describe"].endswith("-dirty")


@pytest.fixture
def outside(monkeypatch):
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        monkeypatch.delenv(name, raising=False)


def test_a_container_is_named_with_its_image_where_that_can_be_read(tmp_path, outside, monkeypatch):
    assert machine.container(tmp_path) is None
    write_all(tmp_path, {".dockerenv": ""})
    assert machine.container(tmp_path) == {"kind": "docker", "image": None}
    write_all(tmp_path, {"run/.containerenv": 'engine="podman-4"\nname="of-a-person"\nimageid="sha256:12ab"'})
    assert machine.container(tmp_path) == {"kind": "podman", "image": "sha256:12ab"}
    write_all(tmp_path, {"run/.containerenv": ""})  # of a container without privileges
    assert machine.container(tmp_path) == {"kind": "podman", "image": None}
    image = tmp_path / "image.sif"
    image.write_bytes(b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(range(16)))
    monkeypatch.setenv("APPTAINER_CONTAINER", str(image))
    assert machine.container(tmp_path) == {"kind": "apptainer", "image": "00010203-0405-0607-0809-0a0b0c0d0e0f"}
    image.write_bytes(b"no image")
    assert machine.container(tmp_path) == {"kind": "apptainer", "image": None}


def test_driver_and_gpus_are_those_that_nvidia_smi_tells(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (machine.visible_gpus(), machine.host_facts()["gpu_driver"]) == ([], None)
    assert machine.default_platform() == "cpu"
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")  # a CUDA image on a machine without a GPU
    smi.chmod(0o755)
    assert (machine.visible_gpus(), machine.default_platform()) == ([], "cpu")
    smi.write_text('#!/bin/sh\ncase "$1" in *driver_version) echo 580.1; echo 580.1;; *index) echo 0; echo 1;; esac\n')
    assert (machine.visible_gpus(), machine.host_facts()["gpu_driver"]) == (["0", "1"], "580.1")
    assert machine.default_platform() == "gpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.visible_gpus() == ["1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.visible_gpus() == []


def test_the_version_of_cuda_is_a_fact_of_gpus(monkeypatch):
    client = SimpleNamespace(platform_version="PJRT C API\ncuda 13000")
    device = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", client=client)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=lambda: [device]))
    assert machine.measure()["devices"] == {
        "platform": "gpu", "kind": "NVIDIA H200", "count": 1, "version": "PJRT C API cuda 13000",
    }  # fmt: skip
