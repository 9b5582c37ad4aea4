"""`cleanba doctor`: the machine as it is measured, the packages, and which profiles fit."""

from pathlib import Path

from rich.console import Console

from runners import machine
from runners.profiles import load_profiles, mismatches

PROFILES = Path("experiments/profiles")


def show(console: Console, profiles: Path = PROFILES) -> None:
    facts = machine.host_facts()
    lines = [
        ("CPU", f"{facts['cpu_model']}, {facts['usable_cpus']} usable"),
        ("memory", f"{facts['memory_gib']:.1f} GiB"),
        ("platform", machine.default_platform()),
        ("system", f"{facts['system']}, Python {facts['python']}"),
        ("source", f"{facts['git']['describe'] or 'not in a git repository'}"),
        *(("package", f"{name} {version}") for name, version in facts["packages"].items()),
        *(("variable", f"{name}={value}") for name, value in facts["environment"].items()),
    ]
    for name, profile in load_profiles(profiles).items():
        wrong = mismatches(profile, facts) + machine.platform_mismatches(profile.platform)
        lines.append(("profile", f"{name}: {'; '.join(wrong) if wrong else 'fits'}"))
    for what, words in lines:
        console.print(f"{what:9} {words}", markup=False, highlight=False, soft_wrap=True)
