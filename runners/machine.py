"""The machine as it is measured: what the record says beside what the profile declares. No host or user names."""

import ctypes
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

PACKAGES = ("cleanba-bench", "jax", "jaxlib", "flax", "optax", "rlax", "envpool", "numpy", "wandb")
# The wheels that bring CUDA, cuDNN and NCCL to JAX's GPU build; recorded where present.
GPU_PACKAGES = ("jax-cuda13-pjrt", "nvidia-cuda-runtime", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")
# Variables that change what the compiler or the device does; everything else of the environment stays private.
VARIABLES = (
    "XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "TF_CUDNN_DETERMINISTIC",
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC", "JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE",
)  # fmt: skip
CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
# Of malloc.h. An arena other than the first has at most 64 MiB, so that there is but one.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
SOURCE = Path(__file__).resolve().parents[1]


def measure() -> dict[str, Any]:
    """Everything that is recorded of a machine, with the devices as JAX sees them. Starts JAX."""
    return host_facts() | {"devices": devices()}


def host_facts() -> dict[str, Any]:
    """What can be measured without starting JAX."""
    return {
        "cpu_model": cpu_model(),
        "usable_cpus": usable_cpus(),
        "cpu_ids": sorted(os.sched_getaffinity(0)),
        "memory_gib": round(memory_gib(), 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": package_versions(),
        "gpu_driver": next(iter(_nvidia_smi("driver_version")), None),
        "container": container(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "git": git_state(),
    }


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The name that the CPU reports, or the architecture where the system does not tell."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def usable_cpus(cgroup: Path = CGROUP, own: Path = OWN_CGROUP) -> int:
    """CPUs that this process may use: its affinity, or fewer where the quota of its cgroup, or of one above, is
    smaller."""
    quotas = [quota for folder in _cgroups(cgroup, own, "cpu") if (quota := _cpu_quota(folder)) is not None]
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def memory_gib(cgroup: Path = CGROUP, own: Path = OWN_CGROUP) -> float:
    """Memory that this process may use: the machine's, or the limit of its cgroup, or of one above, where that is
    smaller."""
    names = ("memory.max", "memory.limit_in_bytes")  # versions 2 and 1
    limits = [_read(folder / name) for folder in _cgroups(cgroup, own, "memory") for name in names]
    stated = [int(text) for text in limits if text.isdigit()]
    return min([psutil.virtual_memory().total, *stated]) / 2**30


def confine(cpus: int, cpu_ids: Iterable[int] | None = None) -> None:
    """Keep this process and its threads to `cpu_ids`, or to the first `cpus` usable ones, so that no run has more
    than its profile declares."""
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cpu_ids) if cpu_ids else usable[:cpus])


def keep_memory() -> None:
    """Have malloc keep what is freed, where it is glibc's. Call it before there are threads.

    XLA on the CPU frees a program's buffers, hundreds of MiB for a ResNet's gradient, each time it has run. By default
    glibc returns them to the kernel, which clears every page anew for the next run; that took a fifth of its time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        for option, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1)):
            libc.mallopt(option, value)


def package_versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    for package in GPU_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def container(root: Path = Path("/")) -> dict[str, str | None] | None:
    """What kind of container this process is in, and the digest of its image where the container can read that; None
    outside of one. Podman tells a privileged container its image; Apptainer names the image's file, whose header
    has the image's own id; Docker tells nothing."""
    image_file = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    if image_file:
        return {"kind": "apptainer", "image": _sif_id(Path(image_file))}
    if (podman := root / "run/.containerenv").exists():
        stated = [line.partition("=") for line in _read(podman).splitlines()]
        return {"kind": "podman", "image": {key: value.strip('"') for key, _, value in stated}.get("imageid")}
    return {"kind": "docker", "image": None} if (root / ".dockerenv").exists() else None


def _sif_id(path: Path) -> str | None:
    """The UUID of a SIF image. Its header, https://github.com/apptainer/sif: 32 bytes of launch script, 10 of magic
    word, 3 of version, 3 of architecture, 16 of id."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
    except OSError:
        return None
    return str(UUID(bytes=header[48:64])) if header[32:41] == b"SIF_MAGIC" else None


def git_state(folder: Path = SOURCE) -> dict[str, Any]:
    """Commit of the source, its `git describe`, and whether files differ from it; None where there is no repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    return {
        "commit": commit,
        "describe": _git(folder, "describe", "--tags", "--always", "--dirty"),
        "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")) if commit else None,
    }


def default_platform() -> str:
    """`gpu` where NVIDIA's driver answers, else `cpu`."""
    return "gpu" if _nvidia_smi("index") else "cpu"


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES names of the GPUs that this process may use; by their numbers where it is not set."""
    if (stated := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in stated.split(",") if name.strip()]
    return [str(index) for index in range(len(_nvidia_smi("index")))]


def platform_mismatches(declared: str) -> list[str]:
    """GPUs are counted when a run starts, with JAX; here it is told only whether there is a driver."""
    if declared == "gpu" and default_platform() != "gpu":
        return ["platform gpu declared, no NVIDIA driver found"]
    return []


def devices() -> dict[str, Any]:
    """The devices as JAX sees them. Raises RuntimeError where it cannot start."""
    import jax

    try:
        local = jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # without a GPU, JAX 0.10 fails an assertion that says nothing
        platforms = os.environ.get("JAX_PLATFORMS", "any platform")
        raise RuntimeError(f"JAX cannot start on {platforms}{f' ({error})' if str(error) else ''}") from error
    found = {"platform": local[0].platform, "kind": local[0].device_kind, "count": len(local)}
    if found["platform"] == "gpu":  # "cuda 13000" and the like, of the build
        found["version"] = " ".join(local[0].client.platform_version.split())
    return found


def _cgroups(cgroup: Path, own: Path, controller: str) -> list[Path]:
    """The folders of this process' cgroup and of all above it, of version 2 and of the controller's of version 1."""
    folders = [cgroup, cgroup / controller]  # the process' own in a container
    for line in _read(own).splitlines():  # "0::/a/b", or "4:cpu,cpuacct:/a/b" in version 1
        _, controllers, path = line.split(":", 2)
        root = cgroup / controller if controller in controllers.split(",") else cgroup
        if root != cgroup or not controllers:
            names = path.strip("/").split("/")
            folders += [root.joinpath(*names[:depth]) for depth in range(1, len(names) + 1)]
    return folders


def _cpu_quota(folder: Path) -> float | None:
    """CPUs of a cgroup's quota, None without one."""
    quota, _, period = _read(folder / "cpu.max").partition(" ")  # version 2: "200000 100000" or "max 100000"
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")  # version 1
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _nvidia_smi(field: str) -> list[str]:
    """A field of each GPU, as the driver reports it; empty where there is no driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
