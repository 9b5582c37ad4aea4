"""Settings that must stand in the environment before NumPy and JAX are imported. Standard library only."""


def environment(platform: str, num_devices: int, cpus: int) -> dict[str, str]:
    """Environment variables for a process that trains on `num_devices` devices of `platform` (cpu or gpu)."""
    everywhere = {
        # The settings of JAX that change a run's meaning and that a user's shell could hold.
        "JAX_ENABLE_X64": "0",
        "JAX_DEFAULT_MATMUL_PRECISION": "default",
        "JAX_THREEFRY_PARTITIONABLE": "1",
        # The orthogonal initialiser's QR decomposition in OpenBLAS rounds by its number of threads.
        "OPENBLAS_NUM_THREADS": "1",
    }
    if platform == "cpu":
        return everywhere | {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}",
            # With one thread XLA sums in another order than with several (docs/performance.md).
            "NPROC": str(max(2, cpus)),
        }
    if platform == "gpu":
        # The original sets its flags where JAX does not read them (FINDINGS C1); this name JAX accepts.
        return everywhere | {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
    raise ValueError(f"platform is {platform!r}; allowed: cpu, gpu")
