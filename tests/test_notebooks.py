"""The notebooks: calls only, no output in git, and they run from top to bottom on small records."""

import ast
import json
import re

import numpy as np
import pandas as pd
import pytest
import synthetic
from cells import ROOT
from synthetic import cells, write_run

from analysis import notebook, notebooks, wall_clock
from analysis.summary import summarise

PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# One protocol for all games, as a file would have it.
SMALL = {"num_envs": 64, "fingerprint_every_updates": 1, "protocol": "machado2018"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two games, one of them without HNS; one run has failed, for a reason that is HTML."""
    folder = tmp_path_factory.mktemp("notebooks") / "results"
    made = cells(("Breakout-v5", "CartPole-v1"), (1, 2), 4, total_env_steps=40_000, num_episodes=200, settings=SMALL)
    for cell in made:
        write_run(folder, cell)
    failed = cells(("Pong-v5",), (1,), 1, total_env_steps=40_000, num_episodes=20, settings=SMALL)
    write_run(folder, failed[0], state="failed", reason="<script>alert(1)</script>")
    return folder


def code(path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def definitions(source: str) -> int:
    return sum(isinstance(node, DEFINES) for node in ast.walk(ast.parse(source)))


def test_there_are_three():
    names = [path.stem for path in PATHS]
    assert names == ["1_paper_tables_and_claims", "2_what_reproduces", "3_throughput_and_wall_clock"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_calls_only_and_no_output(path):
    for cell in code(path):
        assert definitions("".join(cell["source"])) == 0
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_import_the_analysis_alone(path):
    imported = re.findall(r"^(?:from|import) (\w+)", "\n".join("".join(cell["source"]) for cell in code(path)), re.M)
    assert set(imported) == {"analysis"}


def test_the_guard_can_fail():
    assert definitions("def f(): pass") == definitions("x = lambda: 1") == definitions("class A: pass") == 1


def texts(path) -> str:
    """All that an executed notebook shows."""
    content = json.loads(path.read_text())
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    shown = (part for output in outputs for part in output.get("data", {}).get("text/html", []))
    return "".join(shown)


WORDS = {
    "1_paper_tables_and_claims": ["165.8", "Cleanba IMPALA", "published data cannot decide", "data:image/png;base64,"],
    "2_what_reproduces": [
        "identical bit for bit", "Breakout-v5", "cpu-1dev → cpu-2dev", "A/A floor", "&lt;script&gt;alert(1)",
        "Made-up CPU 3000", "data:image/png;base64,",
    ],
    "3_throughput_and_wall_clock": ["env steps per second", "median milliseconds per update", "data:image/png;base64,"],
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_they_run_from_top_to_bottom(path, results, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CLEANBA_RESULTS", str(results))
    before = path.read_bytes()
    shown = texts(notebooks.execute(path, tmp_path))
    assert [word for word in WORDS[path.stem] if word not in shown] == []
    assert "<script>" not in shown
    assert path.read_bytes() == before


def test_a_cell_that_fails_is_named(tmp_path):
    path = tmp_path / "n.ipynb"
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None, "source": "1 / 0"}
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    with pytest.raises(ValueError, match=r"n.ipynb: ZeroDivisionError: division by zero; its copy has the output"):
        notebooks.execute(path, tmp_path / "out")
    assert "ZeroDivisionError" in (tmp_path / "out" / "n.ipynb").read_text()


def test_without_records_they_say_which_command_makes_some(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEANBA_RESULTS", str(tmp_path))
    report = notebook.open_report()
    asked = [
        report.answer(), report.table("divergence"), report.learning_curves(), report.curves_over_time(),
        report.wall_clock(), report.phases(), report.definitions(),
    ]  # fmt: skip
    for shown in asked:
        assert "make reproduce" in shown.html
        assert "cleanba run experiments/learn_cpu.yaml" in shown.html


def test_the_experiment_is_chosen_by_name(results, monkeypatch):
    monkeypatch.setenv("CLEANBA_RESULTS", str(results))
    write_run(results, cells(("Pong-v5",), (1,), 1, total_env_steps=40_000, num_episodes=20, experiment="another")[0])
    assert notebook.experiments(results) == ["another", "synthetic"]
    monkeypatch.setenv("CLEANBA_EXPERIMENT", "synthetic")
    report = notebook.open_report()
    assert "These records have nothing for the table none." in report.table("none").html
    assert report.summary is not None
    assert report.summary.experiments[0].name == "synthetic"


# --- each run's own clock ---


def test_a_slow_run_is_late_and_a_run_that_has_ended_is_missing(tmp_path):
    """Two systems of the same episodes, one at half the speed: its curve is the other's over twice the time."""
    fast, slow = cells(("Breakout-v5",), (1,), 4, total_env_steps=40_000, num_episodes=400, settings=SMALL)[::2]
    write_run(tmp_path, fast)
    metrics = synthetic.metrics(slow)
    write_run(tmp_path, slow, metrics=metrics.assign(wall_seconds=2 * metrics["wall_seconds"]))
    summary = summarise(tmp_path, ["synthetic"])
    drawn = wall_clock.curves_over_time(summary).set_index(["system", "wall_seconds"])["value"]
    quick, late = drawn.loc["impala on cpu-1dev"], drawn.loc["impala on cpu-2dev"]
    assert late.index.max() == pytest.approx(2 * quick.index.max(), rel=0.05)
    at = quick.index[10:-1]
    np.testing.assert_allclose(np.interp(2 * at, late.index, late), quick.loc[at], rtol=0.05)
    minutes = wall_clock.seconds_of_runs(summary).frame.set_index("profile")
    assert minutes.loc["cpu-2dev", "minutes"] == pytest.approx(2 * minutes.loc["cpu-1dev", "minutes"])
    assert minutes["times_slowest"].tolist() == [pytest.approx(2), 1]


def test_phases_are_medians_over_updates(tmp_path):
    [cell] = cells(("Breakout-v5",), (1,), 1, total_env_steps=40_000, num_episodes=400, settings=SMALL)
    timing = synthetic.timing(cell).assign(learn_seconds=0.25, env_seconds=lambda rows: np.arange(len(rows)) / 1000)
    write_run(tmp_path, cell, timing=timing)
    [row] = wall_clock.phases(summarise(tmp_path, ["synthetic"])).frame.to_dict("records")
    assert row["learn_ms"] == 250
    assert row["env_ms"] == pytest.approx(float(pd.Series(range(len(timing))).median()))
