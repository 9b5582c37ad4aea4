"""Settings that must stand in the environment before JAX is imported. Imports nothing outside the standard library."""


def environment(platform: str, num_devices: int) -> dict[str, str]:
    """Environment variables for a process that trains on `num_devices` devices of `platform` (cpu or gpu)."""
    if platform == "cpu":
        return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}"}
    if platform == "gpu":
        # The original sets its flags where JAX does not read them (FINDINGS C1); this one takes effect.
        return {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}
    raise ValueError(f"platform is {platform!r}; allowed: cpu, gpu")
