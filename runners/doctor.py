"""`cleanba doctor`: the machine as it is measured, the packages, the numerics of a run, and which profiles fit."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console

from runners import machine
from runners.profiles import load_profiles, mismatches

PROFILES = Path("experiments/profiles")


def numerics_words(environment: Mapping[str, str]) -> Iterator[str]:
    """What a worker on one device of this platform sets before it imports JAX, and what of the shell's it replaces."""
    from cleanba import numerics

    for name, value in numerics.environment(machine.default_platform(), 1, machine.usable_cpus()).items():
        found = environment.get(name, value)
        yield f"{name}={value}" + ("" if found == value else f" (in place of {found!r} in this shell)")


def show(console: Console, profiles: Path = PROFILES) -> None:
    facts = machine.host_facts()
    lines = [
        ("CPU", f"{facts['cpu_model']}, {facts['usable_cpus']} usable"),
        ("memory", f"{facts['memory_gib']:.1f} GiB"),
        ("platform", machine.default_platform()),
        ("system", f"{facts['system']}, Python {facts['python']}"),
        ("source", f"{facts['git']['describe'] or 'not in a git repository'}"),
        *(("package", f"{name} {version}") for name, version in facts["packages"].items()),
        *(("numerics", words) for words in numerics_words(os.environ)),
    ]
    for name, profile in load_profiles(profiles).items():
        wrong = mismatches(profile, facts) + machine.platform_mismatches(profile.platform)
        lines.append(("profile", f"{name}: {'; '.join(wrong) if wrong else 'fits'}"))
    for what, words in lines:
        console.print(f"{what:9} {words}", markup=False, highlight=False, soft_wrap=True)
