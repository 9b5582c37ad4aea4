"""`cleanba accept` and `cleanba regress`: what is stored, what is matched, and each verdict with its exit code."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from synthetic import Cell, declare, episodes, fingerprints, write_run

from analysis import accepted, regress, run_sets
from runners.cli import main

OLD, NEW = Path("old"), Path("new")
SEEDS = (1, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(results, *, change=None, seeds=SEEDS, **cell):
    """CartPole by five seeds; `change` turns a run's episodes into others, and its fingerprints too."""
    for seed in seeds:
        one = Cell(env_id="CartPole-v1", seed=seed, num_episodes=200, **cell)
        tables = {}
        if change:
            digests = fingerprints(one)
            digests.loc[digests["update"] >= 2, "digest"] = "changed"
            tables = {"episodes": change(episodes(one)), "fingerprints": digests}
        write_run(results, one, **tables)


def declared(*, seeds=SEEDS, **cell):
    return [Cell(env_id="CartPole-v1", seed=seed, **cell) for seed in seeds]


def accept(**options):
    return main(["accept", "synthetic", "--why", "measured", "--results", "old", *options.get("more", ())])


def judge(*more):
    return main(["regress", "synthetic", "--margin", "50", "--results", "new", *more])


def verdict():
    return json.loads((NEW / "verdicts" / "regress-synthetic" / "verdict.json").read_text())


def scaled(factor):
    return lambda rows: rows.assign(episode_return=rows["episode_return"] * factor)


def test_a_reference_is_the_runs_as_they_were():
    write(OLD)
    assert accept() == 0
    reference = accepted.load("synthetic")
    assert (reference.history[-1]["why"], len(reference.specs), reference.margin) == ("measured", 5, None)
    own = run_sets.find("synthetic", OLD)
    (stored,) = reference.sets.values()
    for name in ("env_id", "seed", "run_id", "budget", "final_score", "rows"):
        assert stored.runs[name].tolist() == own.runs[name].tolist()
    for num_bins in (100, 20):
        pd.testing.assert_frame_equal(  # exact: sums of whole numbers
            stored.curves("CartPole-v1", 40_000, num_bins),
            own.curves("CartPole-v1", 40_000, num_bins),
            check_exact=True,
        )
    size = sum(path.stat().st_size for path in (accepted.FOLDER / "synthetic").iterdir())
    assert size < 100_000


def test_a_reference_is_not_overwritten_and_its_reasons_are_kept(capsys):
    write(OLD)
    assert main(["accept", "synthetic", "--why", " ", "--results", "old"]) == 3
    assert accept() == 0
    before = {path.name: path.read_bytes() for path in (accepted.FOLDER / "synthetic").iterdir()}
    assert accept() == 3
    assert "there is a reference already; allowed: --replace" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (accepted.FOLDER / "synthetic").iterdir()} == before
    assert main(["accept", "synthetic", "--why", "again", "--replace", "--results", "old"]) == 0
    assert [entry["why"] for entry in accepted.load("synthetic").history] == ["measured", "again"]
    assert [path.name for path in accepted.FOLDER.iterdir()] == ["synthetic"]


def test_what_is_not_complete_is_not_accepted(capsys):
    declare(Path("experiments"), declared(seeds=(1, 2)))
    write(OLD, seeds=(1,))
    assert accept() == 3
    assert "1 runs are missing or not complete, the first is impala on CartPole-v1" in capsys.readouterr().err


def test_runs_of_other_settings_than_the_file_declares_are_not_accepted(capsys):
    """Not even where every declared cell has a record: it is of a budget that the file had before."""
    file = declare(Path("experiments"), declared(total_env_steps=50_000_000))
    write(OLD)
    assert accept() == 3
    assert f"not declared by {file}: other settings or another cell" in capsys.readouterr().err
    write(OLD, seeds=(1, 2), total_env_steps=20_480)
    declare(Path("experiments"), declared(total_env_steps=20_480))
    assert accept() == 3
    assert "3 runs are missing or not complete, the first is impala on CartPole-v1, cpu-1dev, seed 3" in (
        capsys.readouterr().err
    )


def test_an_accepted_file_that_declares_no_experiment_is_named(capsys):
    Path("x.yaml").write_text("name: synthetic\nenv_ids: [CartPole-v1]\nseeds: [1]\nprofiles: [cpu-1dev]\n")
    for command in (["accept", "x.yaml", "--why", "measured"], ["regress", "x.yaml"], ["report", "x.yaml"]):
        assert main(command) == 3
        assert "x.yaml: key 'algorithms' is missing; needed: " in capsys.readouterr().err


def test_the_sources_of_all_runs_are_kept_and_told(capsys):
    write(OLD)
    write(NEW)
    files = sorted(OLD.glob("runs/synthetic/*/machine.0.json"))
    for file, git in zip(files, [{"commit": 40 * "b"}, {"commit": 40 * "a", "dirty": True}, {"commit": 40 * "a"}]):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"git": git}))
    assert accept() == 0
    assert accepted.load("synthetic").history[-1]["commits"] == [40 * "a", 40 * "a" + "-dirty", 40 * "b", "unknown"]
    assert judge() == 0
    assert f"commit {12 * 'a'}, {12 * 'a'}-dirty, {12 * 'b'}, unknown)" in capsys.readouterr().out


def test_a_reference_that_names_one_commit_is_still_told(capsys):
    write(OLD)
    write(NEW)
    accept()
    file = accepted.FOLDER / "synthetic" / "reference.json"
    content = json.loads(file.read_text())
    del content["history"][-1]["commits"]
    content["history"][-1]["commit"] = 40 * "c"
    file.write_text(json.dumps(content))
    assert judge() == 0
    assert f"commit {12 * 'c'})" in capsys.readouterr().out


def test_the_same_bits_are_the_same(capsys):
    write(OLD)
    write(NEW)
    assert accept() == 0
    assert judge("--exact") == 0
    out = capsys.readouterr().out
    assert "fingerprints: identical, 5 of 5 runs" in out
    assert "curves: impala@cpu-1dev, CartPole-v1: same; difference 0.0" in out
    assert "throughput: impala@cpu-1dev: 1.00 times the reference's" in out
    assert out.index("fingerprints:") < out.index("curves:") < out.index("throughput:")
    assert verdict()["exit_code"] == 0


def test_other_bits_of_the_same_curves_pass_unless_they_must_be_exact(capsys):
    write(OLD)
    write(NEW, change=scaled(1.001))
    accept()
    assert judge() == 0
    assert "0 of 5 runs identical; first difference at update 10, rollout" in capsys.readouterr().out
    assert judge("--exact") == 1


def test_worse_curves_are_worse_and_every_product_says_so():
    write(OLD)
    write(NEW, change=scaled(0.5))
    accept()
    assert judge() == 1
    folder = NEW / "verdicts" / "regress-synthetic"
    suite = ElementTree.parse(folder / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    (failed,) = suite.findall("*/failure/..")
    assert failed.get("name") == "curves of impala@cpu-1dev"
    summary = (folder / "summary.md").read_text()
    assert summary.startswith("## synthetic: worse\n")
    assert "judged: curves of impala@cpu-1dev: worse" in summary
    assert (folder / "impala@cpu-1dev" / "curves_CartPole-v1.png").is_file()
    assert verdict()["curves"]["impala@cpu-1dev"]["games"][0]["word"] == "worse"


def test_better_curves_pass():
    write(OLD)
    write(NEW, change=scaled(2.0))
    accept()
    assert judge() == 0
    assert verdict()["curves"]["impala@cpu-1dev"]["games"][0]["word"] == "better"


def test_two_seeds_of_other_bits_cannot_tell():
    write(OLD, seeds=(1, 2))
    write(NEW, seeds=(1, 2), change=scaled(1.001))
    accept()
    assert judge() == 2


def test_settings_that_differ_are_listed_and_do_not_stop_the_matching(capsys):
    write(OLD)
    write(NEW, change=scaled(1.001), settings={"entropy_coefficient": 0.1})
    accept()
    path = accepted.FOLDER / "synthetic" / "reference.json"
    content = json.loads(path.read_text())
    for spec in content["specs"]:
        del spec["settings"]["delay_kind"]  # as if the schema had gained it since
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert judge() == 0
    out = capsys.readouterr().out
    assert "setting: impala@cpu-1dev: entropy_coefficient was 0.01, is 0.1" in out
    assert "setting: impala@cpu-1dev: delay_kind was not stated, is fixed" in out


def test_speed_is_compared_on_the_same_kind_of_machine_only(capsys):
    write(OLD)
    write(NEW)
    accept()
    assert judge("--min-speed", "0.9") == 0
    assert judge("--min-speed", "1.1") == 1
    for path in NEW.glob("runs/*/*/machine.0.json"):
        path.write_text(path.read_text().replace("3000", "9000"))
    capsys.readouterr()
    assert judge("--min-speed", "0.9") == 2
    out = capsys.readouterr().out
    assert "throughput: impala@cpu-1dev: not compared (cpu_model was Made-up CPU 3000, is Made-up CPU 9000)" in out
    assert "5 runs on another kind of machine than the reference" in out
    assert judge() == 0
    assert judge("--min-speed", "-1") == 3


def test_other_bits_on_another_kind_of_machine_cannot_be_told_to_be_exact():
    write(OLD)
    write(NEW, change=scaled(1.001))
    for path in NEW.glob("runs/*/*/machine.0.json"):
        path.write_text(path.read_text().replace("3000", "9000"))
    accept()
    assert judge() == 0
    assert judge("--exact") == 2


def test_what_cannot_be_judged_is_invalid(capsys):
    write(OLD)
    write(NEW, seeds=(1, 2, 3, 4))
    assert judge() == 3
    assert "no reference of synthetic; allowed: none yet, or accept one" in capsys.readouterr().err
    accept()
    assert judge() == 3
    assert "1 runs are missing or not complete, the first is impala on CartPole-v1, cpu-1dev, seed 5" in (
        capsys.readouterr().err
    )
    for seed in SEEDS:
        write_run(Path("short"), Cell(env_id="CartPole-v1", seed=seed, num_episodes=200, total_env_steps=20_480))
    assert main(["regress", "synthetic", "--margin", "20", "--results", "short"]) == 3
    assert "budgets of CartPole-v1 differ" in capsys.readouterr().err
    assert judge("--fresh") == 3
    assert "--fresh needs the experiment's file" in capsys.readouterr().err


def test_what_has_no_reference_is_said(capsys):
    write(OLD)
    write(NEW, seeds=(*SEEDS, 6))
    write(NEW, algorithm="ppo", algo="ppo")
    accept()
    capsys.readouterr()
    assert judge() == 0
    out = capsys.readouterr().out
    assert "note: ppo@cpu-1dev has no reference and is not judged" in out
    assert "note: impala@cpu-1dev: 1 runs have no reference and are not judged" in out


def test_a_change_does_not_widen_its_own_margin(capsys):
    declare(Path("experiments"), declared(), margin=50.0)
    write(OLD)
    write(NEW, change=scaled(0.5))
    accept()
    declare(Path("experiments"), declared(), margin=500.0)
    found = regress.regress("synthetic", NEW)
    assert found.exit_code == 1
    assert found.notes == ["the experiment's file has the margin 500, its reference 50"]
    assert regress.regress("synthetic", NEW, margin=500.0).exit_code == 0


def test_the_verdict_is_the_worst_one():
    write(OLD)
    write(NEW, change=scaled(0.5))
    accept()
    found = regress.regress("synthetic", NEW, margin=50.0)
    assert found.exit_code == 1
    assert replace(found, demands=regress.Demands(min_speed=2.0)).verdicts == {
        "curves of impala@cpu-1dev": 1, "throughput of impala@cpu-1dev": 1,
    }  # fmt: skip
