"""Hardware profiles: a named declaration of what a run needs, checked against the machine when the run starts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from runners.declarations import check_keys, check_type, load_mapping

PLATFORMS = ("cpu", "gpu")
_OPTIONAL = ("device_kind", "threads_per_actor_device", "envpool_threads")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one process of a run needs, and where the run's parts sit (`layout`, see cleanba.layout)."""

    name: str
    platform: str
    layout: str
    cpus: int  # usable CPUs (affinity and cgroup) of each process, which confines itself to as many
    memory_gib: float  # of each process, at least
    device_kind: str | None = None  # part of the name that the GPU reports
    threads_per_actor_device: int = 2  # as the original's --num-actor-threads
    envpool_threads: int = 1  # per actor thread

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "device_kind":
                if value is not None:
                    check_type(value, str, where="device_kind")
                continue
            check_type(value, field.type, where=field.name)  # type: ignore[arg-type]
            if field.type in (int, float) and value <= 0:
                raise ValueError(f"{field.name} is {value}; allowed: a number above 0")
        object.__setattr__(self, "memory_gib", float(self.memory_gib))  # `4` and `4.0` are one meaning, one hash
        if self.platform not in PLATFORMS:
            raise ValueError(f"platform is {self.platform!r}; allowed: {', '.join(PLATFORMS)}")
        if self.device_kind and self.platform == "cpu":
            raise ValueError(f"device_kind is {self.device_kind!r} on platform cpu; allowed: on platform gpu only")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def parsed_layout(self):
        """The trainer's Layout."""
        from cleanba.layout import Layout

        return Layout.parse(self.layout, threads_per_actor_device=self.threads_per_actor_device)


def load_profile(path: Path) -> Profile:
    """Read one profile file. Raises ValueError naming file, key and what is allowed."""
    declared = load_mapping(path)
    required = [field.name for field in fields(Profile) if field.name not in _OPTIONAL]
    check_keys(declared, where=str(path), required=required, optional=_OPTIONAL)
    try:
        profile = Profile(**declared)
        profile.parsed_layout()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if profile.name != path.stem:
        raise ValueError(f"{path}: name is {profile.name!r}; allowed: {path.stem!r}, the file's own")
    return profile


def load_profiles(folder: Path) -> dict[str, Profile]:
    """Every profile of a folder by name, sorted."""
    return {path.stem: load_profile(path) for path in sorted(folder.glob("*.yaml"))}


def mismatches(profile: Profile, facts: Mapping[str, Any]) -> list[str]:
    """What the machine's measured facts (see runners.machine) lack for the profile; empty when it fits.

    More CPUs than declared are no mismatch: the worker confines itself to the declared number, so that the measured
    equals the declared. Devices are compared when the facts have them, which is in a worker only; without them the
    facts are of a machine that all processes of the layout share.
    """
    found = []
    processes = 1 if "devices" in facts else profile.parsed_layout().num_processes
    declared = f"declared for {processes} processes" if processes > 1 else "declared"
    cpus, memory_gib = profile.cpus * processes, profile.memory_gib * processes
    if facts["usable_cpus"] < cpus:
        found.append(f"{cpus} usable CPUs {declared}, {facts['usable_cpus']} found")
    if facts["memory_gib"] < memory_gib:
        found.append(f"{memory_gib:g} GiB of memory {declared}, {facts['memory_gib']:.1f} found")
    return found + (_device_mismatches(profile, facts["devices"]) if "devices" in facts else [])


def _device_mismatches(profile: Profile, devices: Mapping[str, Any]) -> list[str]:
    found = []
    if devices["platform"] != profile.platform:
        found.append(f"platform {profile.platform} declared, {devices['platform']} found")
    needed = profile.parsed_layout().devices_per_process
    if devices["count"] < needed:
        found.append(f"layout {profile.layout} needs {needed} devices, {devices['count']} found")
    if profile.device_kind and profile.device_kind not in devices["kind"]:
        found.append(f"device kind {profile.device_kind} declared, {devices['kind']} found")
    return found
