"""Who may import what (the rooms of the design), each guard with a proof that it can fail."""

import ast
import subprocess
import sys

import pytest
from cells import ROOT

ANALYSIS = ("jax", "jaxlib", "flax", "optax", "rlax", "envpool", "cleanba", "wandb", "torch")
LAUNCHER = ("jax", "jaxlib", "flax", "optax", "rlax", "envpool", "wandb", "pandas", "matplotlib", "torch")
TRAINERS = ("runners", "analysis", "wandb", "pandas", "yaml", "tyro", "rich")
# The trainers' modules that a launcher may read, which import the standard library only.
LIGHT = ("cleanba.config", "cleanba.layout", "cleanba.recorder", "cleanba.numerics")


def loaded_by(code: str) -> set[str]:
    """The top-level packages in sys.modules after `code` ran in a fresh interpreter."""
    report = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def modules(room: str) -> list[str]:
    return [f"{room}.{path.stem}" for path in sorted((ROOT / room).glob("*.py")) if path.stem != "__init__"]


def imports(module: str) -> set[str]:
    """The top-level packages that a module's source imports anywhere, also inside functions."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def forbidden(found: set[str], names: tuple[str, ...]) -> set[str]:
    return found & set(names)


def test_analysis_loads_no_trainer_and_no_mirror():
    code = "\n".join(f"import {module}" for module in modules("analysis"))
    assert not forbidden(loaded_by(code), ANALYSIS)


def test_analysis_reads_a_record_without_the_trainers(tmp_path):
    write = f"""
from pathlib import Path
from cells import make_spec, metrics_row
from runners.record import RecordWriter, prepare
prepare(Path({str(tmp_path)!r}) / "run", make_spec())
RecordWriter(Path({str(tmp_path)!r}) / "run", segment=0).metrics(metrics_row(1))
"""
    loaded_by("import sys; sys.path.insert(0, 'tests')" + write)
    read = f"""
from pathlib import Path
from runners.record import read_rows, read_spec, read_status
folder = Path({str(tmp_path)!r}) / "run"
assert len(read_rows(folder, "metrics")) == 1 and read_status(folder).state == "running"
assert read_spec(folder).planned_env_steps == 200
"""
    assert not forbidden(loaded_by(read), ANALYSIS)


@pytest.mark.parametrize("module", modules("analysis"))
def test_analysis_names_no_trainer_inside_functions_either(module):
    assert not forbidden(imports(module), ANALYSIS)


def test_the_analysis_guards_can_fail():
    assert forbidden(loaded_by("import analysis.scores, cleanba.config"), ANALYSIS) == {"cleanba"}
    assert forbidden(loaded_by("import analysis.scores, jax"), ANALYSIS) >= {"jax"}
    assert forbidden(imports("runners.worker"), ANALYSIS) == {"cleanba"}  # which imports it inside a function


@pytest.mark.parametrize("module", modules("cleanba"))
def test_the_trainers_know_no_experiment_and_no_mirror(module):
    assert not forbidden(imports(module), TRAINERS)


def test_the_trainers_guard_can_fail():
    assert forbidden(imports("runners.worker"), TRAINERS) == {"runners"}


def test_the_help_is_fast_and_light():
    code = """
import sys
sys.argv = ["cleanba", "--help"]
from runners.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
"""
    assert not forbidden(loaded_by(code), LAUNCHER)


def test_the_launcher_expands_and_checks_experiments_without_jax_and_pandas():
    code = """
from runners import launcher, progress, status, worker
from runners.cli import main
assert main(["run", "experiments/paper_10cpu.yaml", "--dry-run"]) == 0
"""
    assert not forbidden(loaded_by(code), LAUNCHER)


def test_the_launcher_guard_can_fail():
    assert forbidden(loaded_by("import runners.launcher, pandas"), LAUNCHER) == {"pandas"}
    assert forbidden(loaded_by("from runners import machine; machine.measure()"), LAUNCHER) >= {"jax", "jaxlib"}


def test_what_the_launcher_reads_of_the_trainers_is_standard_library_only():
    ours = loaded_by("pass") | {"cleanba"}
    added = loaded_by("\n".join(f"import {module}" for module in LIGHT)) - ours
    assert added <= set(sys.stdlib_module_names)


def test_that_guard_can_fail():
    added = loaded_by("import cleanba.layout, numpy") - loaded_by("pass") - {"cleanba"}
    assert not added <= set(sys.stdlib_module_names)
