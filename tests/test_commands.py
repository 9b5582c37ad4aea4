"""Every command that README and Makefile show is one that works: the short ones run, the long ones as far as --dry-run.

What a long command would do is tested elsewhere: see the module named beside it.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest
import tyro
import yaml
from cells import ROOT

from runners.train import ImpalaFlags, PpoFlags, to_options, to_spec

# What stands in for a command that takes long or needs what a fresh clone does not have.
STANDS_FOR = {
    "cleanba run experiments/quickstart.yaml": "cleanba run experiments/quickstart.yaml --dry-run",  # test_cli
    "cleanba run experiments/quickstart.yaml --jobs 2": "cleanba run experiments/quickstart.yaml --jobs 2 --dry-run",
    "cleanba mirror quickstart": "cleanba mirror --help",  # test_mirror
    "cleanba status quickstart": "cleanba status experiments/quickstart.yaml",  # by its file: nothing has run
    "cleanba report quickstart": "cleanba report --help",  # test_report
    "cleanba evaluate POLICY --episodes 30": "cleanba evaluate --help",  # test_cli
    'cleanba accept quickstart --why "the first runs"': "cleanba accept --help",  # test_regress
    "cleanba regress quickstart": "cleanba regress --help",  # test_regress
    "cleanba regress experiments/gate.yaml --fresh --jobs 2": "cleanba regress --help",  # test_gate
    "cleanba compare A B": "cleanba compare --help",  # test_compare
    "cleanba diverge RUN_A RUN_B": "cleanba diverge --help",  # test_diverge
    "cleanba bisect RUN": "cleanba bisect --help",  # test_bisect
    "cleanba ingest moolib PATH --as NAME": "cleanba ingest --help",  # test_ingest
    "cleanba paper": "cleanba paper --help",  # test_paper
    "python -m pytest": "python -m pytest --collect-only -q tests/test_commands.py",
    "python -m pytest -m slow --timeout 3600": "python -m pytest -m slow --collect-only -q tests/test_learning.py",
    "python -m analysis.notebooks": "python -m analysis.notebooks --help",  # test_notebooks
    "cleanba ingest wandb ENTITY/PROJECT --as NAME": "cleanba ingest --help",  # test_wandb
    "python -m pytest -m faults --timeout 3600 -s": "python -m pytest -m faults --collect-only -q tests/test_faults.py",
    "python -m runners.bench": "python -m runners.bench --help",  # test_bench
    "python -m analysis.bench": "python -m analysis.bench --help",  # test_bench_statistics
    "ruff check .": "ruff --version",  # run by .ci/run
    "ruff format --check .": "ruff --version",
    "pyright": "pyright --version",
}
TRAINS = "cleanba train "
SETS_UP = ("pip install", "uv pip compile", "-m venv", "touch", "sys.version_info")  # exercised by every fresh clone


def shown_in_readme() -> list[str]:
    lines = re.findall(r"^ {4}((?:cleanba|make) .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    return [line.partition(" #")[0].strip() for line in lines]


def run_by_workflows() -> list[str]:
    steps = [
        step
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
    ]
    return [step["run"] for step in steps if "run" in step]


def make(*arguments: str) -> list[str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # make runs the tests
    done = subprocess.run(
        ["make", "-n", "-B", *arguments], cwd=ROOT, env=outside, capture_output=True, text=True, check=True
    )
    return [line.replace(".venv/bin/", "") for line in done.stdout.splitlines() if line]


def targets() -> list[str]:
    return re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()


def commands() -> list[str]:
    shown = [line for line in shown_in_readme() if not line.startswith("make ")]
    made = [line for target in targets() for line in make(target) if not any(part in line for part in SETS_UP)]
    return sorted({*shown, *made})


def test_readme_shows_targets_that_exist():
    shown = {line.split()[1] for line in shown_in_readme() if line.startswith("make ")}
    assert {"reproduce", "test"} <= shown <= set(targets())


def test_workflows_run_targets_that_exist_and_show_the_summary_that_is_written():
    """What `make regress` writes is in test_regress."""
    *targets_run, summary = run_by_workflows()
    assert [command.split() for command in targets_run] == [["make", "setup"], ["make", "regress"]]
    assert {"setup", "regress"} <= set(targets())
    assert summary == 'cat results/verdicts/regress-gate/summary.md >> "$GITHUB_STEP_SUMMARY"'


def test_no_command_is_missed():
    assert set(STANDS_FOR) <= set(commands())


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith(TRAINS)])
def test_command_that_trains(command):
    """As far as the run spec; a run is in test_cli."""
    algo, *arguments = shlex.split(command.removeprefix(TRAINS))
    flags = tyro.cli({"impala": ImpalaFlags, "ppo": PpoFlags}[algo], args=arguments)
    spec, options = to_spec(flags), to_options(flags)
    assert (spec.algo, spec.env_id, spec.seed) == ("impala", "Breakout-v5", 1)
    assert spec.settings["total_env_steps"] == 100_000
    assert not options.track


def test_readme_shows_how_to_train():
    assert [command for command in commands() if command.startswith(TRAINS)]


@pytest.mark.parametrize("command", [command for command in commands() if not command.startswith(TRAINS)])
def test_command(command):
    program, *arguments = shlex.split(STANDS_FOR.get(command, command))
    module = {"cleanba": ["-m", "runners.cli"], "python": []}.get(program, ["-m", program])
    done = subprocess.run([sys.executable, *module, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
