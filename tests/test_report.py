import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from synthetic import Cell, cells, declare, write_run

from analysis import curve_figures, curves, report, report_tables, report_words
from analysis.scores import ATARI57
from analysis.summary import find_declared, frames_per_env_step, summarise

# One protocol for all games, as a file would have it.
SMALL = {"num_envs": 64, "fingerprint_every_updates": 1, "protocol": "machado2018"}


def write(results: Path, runs: list[Cell]) -> None:
    for run in runs:
        write_run(results, run)


def small(games=("Breakout-v5",), seeds=(1, 2), systems=4, **shared) -> list[Cell]:
    """IMPALA is identical on its two profiles; PPO drifts on its second."""
    return cells(games, seeds, systems, **{"total_env_steps": 40_000, "num_episodes": 200, "settings": SMALL} | shared)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report about two games of HNS and one without, with a failed run, made by `main`."""
    results = tmp_path_factory.mktemp("report") / "results"
    write(results, small(("Breakout-v5", "Pong-v5", "CartPole-v1")))
    write_run(results, small(seeds=(3,))[0], state="failed", reason="<script>alert(1)</script> & more")
    return results, report.main(["synthetic"], results)


class Links(HTMLParser):
    """What a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset", "action") and value]


def test_the_page_is_whole_in_itself(made):
    _, page = made
    html = page.read_text()
    links = Links()
    links.feed(html)
    assert len(links.found) == 3  # one figure per game
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links.found)
    assert not re.search(r"@import|url\(|<script|<link", html)


def test_texts_of_the_record_are_escaped(made):
    html = made[1].read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in html


def test_the_page_begins_with_question_and_answer(made):
    html = made[1].read_text()
    question, answer, ran = (
        html.index(text) for text in ("Does the learning curve depend on", "identical bit for bit", "What ran</h2>")
    )
    assert question < answer < ran


def test_every_table_and_figure_is_written(made):
    results, page = made
    assert page == results / "reports" / "synthetic.html"
    tables = {path.name for path in (results / "tables" / "synthetic").iterdir()}
    for name in ("aggregates", "divergence", "final_scores", "left_out", "machines", "runs", "systems", "throughput"):
        assert {f"{name}.csv", f"{name}.md"} <= tables
    figures = {path.name for path in (results / "figures" / "synthetic").iterdir()}
    stems = ("curves_Breakout-v5", "curves_CartPole-v1", "curves_Pong-v5", "aggregates")
    assert figures == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}


def test_figures_are_the_same_bytes_every_time(made, tmp_path):
    results, _ = made
    again = report.write_figures(summarise(results, ["synthetic"]), tmp_path)
    for svg in again.values():
        assert svg.read_bytes() == (results / "figures" / "synthetic" / svg.name).read_bytes()


def test_a_game_without_hns_is_left_out_of_aggregates_by_name(made):
    summary = summarise(made[0], ["synthetic"])
    table = report_tables.aggregates(summary)
    assert table is not None
    assert table.frame["num_games"].unique().tolist() == [2]
    assert any("Left out" in note and "CartPole-v1" in note for note in table.notes)
    assert "Without HNS, hence in no aggregate over games: CartPole-v1." in report_words.caveats(summary)
    scores = report_tables.final_scores(summary).frame.set_index("env_id")
    assert scores.loc["CartPole-v1", "hns"].isna().all()
    assert scores.loc["CartPole-v1", "final_score"].notna().all()


def test_median_hns_is_that_of_the_runs(made):
    summary = summarise(made[0], ["synthetic"])
    runs = summary.runs[(summary.runs["algorithm"] == "ppo") & (summary.runs["profile"] == "cpu-2dev")]
    expected = runs.dropna(subset=["hns"]).groupby("env_id")["hns"].mean().median()
    table = report_tables.aggregates(summary)
    assert table is not None
    found = table.frame.set_index(["system", "statistic"])["estimate"]
    assert found["ppo on cpu-2dev", "median"] == pytest.approx(expected, abs=1e-12)


def test_identical_profiles_are_identical_and_drifting_ones_are_not(made):
    pairs = summarise(made[0], ["synthetic"]).pairs.set_index(["algorithm", "env_id"])
    impala, ppo = pairs.loc["impala", "Pong-v5"], pairs.loc["ppo", "Pong-v5"]
    assert (impala["word"], impala["area"], impala["updates_compared"]) == ("identical", 0.0, 31)
    assert ppo["word"] == "cannot tell (the experiment declares no margin)"
    assert ppo["area"] > 0
    assert (ppo["identical"], ppo["first_update"], ppo["first_stage"]) == (False, 1, "rollout")


def test_equal_fingerprints_of_unequal_episodes_are_not_identical(tmp_path):
    one, _, other, _ = small(seeds=(1,))
    write_run(tmp_path, one)

    episodes = synthetic.episodes(other)
    write_run(tmp_path, other, episodes=episodes.assign(episode_return=episodes["episode_return"] + 1))
    [word] = summarise(tmp_path, ["synthetic"]).pairs["word"]
    assert word == "cannot tell (fingerprints equal, episodes differ)"


def test_missing_and_failed_cells_are_named(made):
    table = report_tables.left_out(summarise(made[0], ["synthetic"]))
    told = table.frame[["algorithm", "env_id", "profile", "seed", "state"]].to_records(index=False).tolist()
    assert ("impala", "Breakout-v5", "cpu-1dev", 3, "failed") in told
    assert ("ppo", "Pong-v5", "cpu-2dev", 3, "missing") in told
    assert len(told) == 12  # seed 3 of 4 systems on 3 games


def test_the_experiment_file_gives_order_margin_and_missing_cells(tmp_path):
    write(tmp_path, small())
    file = declare(tmp_path, small(seeds=(1, 2, 3, 4))[::-1], margin=0.05, seeds=[1, 2, 3, 4])
    summary = summarise(tmp_path, [str(file)])
    systems = list(dict.fromkeys(summary.runs[["algorithm", "profile"]].itertuples(index=False, name=None)))
    assert systems == [("ppo", "cpu-2dev"), ("ppo", "cpu-1dev"), ("impala", "cpu-2dev"), ("impala", "cpu-1dev")]
    assert summary.experiments[0].margin == 0.05
    assert sorted(summary.missing["seed"].unique()) == [3, 4]
    assert len(summary.missing) == 8
    assert summary.pairs["profile_a"].unique().tolist() == ["cpu-2dev"]
    ppo = summary.pairs.set_index("algorithm").loc["ppo"]
    assert ppo["word"].startswith("cannot tell (needs n >= ")


def test_runs_that_the_file_no_longer_declares_are_named_and_do_not_count(tmp_path):
    """Settings and seeds were edited: cells that only old settings have are missing, and others are not pooled."""
    write(tmp_path, small(systems=1))
    rerun = small(seeds=(2, 3), systems=1, settings=SMALL | {"learning_rate": 1e-5})
    write(tmp_path, rerun)
    with pytest.raises(
        ValueError, match=r"impala on Breakout-v5, cpu-1dev, seed 2 has 2 records of different settings"
    ):
        summarise(tmp_path, ["synthetic"])
    file = declare(tmp_path, rerun, seeds=[1, 2, 3])
    summary = summarise(tmp_path, [str(file)])
    assert summary.runs["seed"].tolist() == [2, 3]
    assert summary.missing["seed"].tolist() == [1]
    told = report_tables.left_out(summary).frame[["seed", "state", "reason"]].to_numpy().tolist()
    why = f"not declared by {file}: other settings or another cell"
    assert told == [[1, "undeclared", why], [2, "undeclared", why], [1, "missing", "no record"]]
    old = declare(tmp_path, small(systems=1, settings=SMALL | {"learning_rate": 1.0}))
    with pytest.raises(
        ValueError, match=r"no run of synthetic is complete \(they are undeclared; not declared by .*yaml"
    ):
        summarise(tmp_path, [str(old)])


def test_each_experiment_is_judged_by_its_own_margin_and_the_page_says_which(tmp_path):
    files = []
    for experiment, declared in (("a", {"margin": 0.1}), ("b", {"margin": 1e9}), ("c", {})):
        runs = small(seeds=(1, 2, 3, 4), experiment=experiment)[4:8]
        runs += small(seeds=(1, 2, 3, 4), experiment=experiment)[12:]
        write(tmp_path, runs)
        files.append(str(declare(tmp_path, runs, **declared)))
    summary = summarise(tmp_path, files)
    words = summary.pairs.set_index("algorithm")["word"]
    assert words["b/ppo"] == "same"
    assert words["c/ppo"] == "cannot tell (the experiment declares no margin)"
    assert words["a/ppo"] not in (words["b/ppo"], words["c/ppo"])
    note = report_tables.all_tables(summary)["divergence"].notes[0]
    assert note.startswith("Equivalence margin: 0.1 HNS (a/ppo); 1e+09 HNS (b/ppo); none declared (c/ppo). Area")
    note = report_tables.all_tables(summarise(tmp_path, files[:1]))["divergence"].notes[0]
    assert note.startswith("Equivalence margin: 0.1 HNS. Area")


def test_without_a_file_the_page_says_what_it_cannot_know(tmp_path):
    write(tmp_path, small(systems=2))
    assert find_declared("synthetic").path is None
    caveats = report_words.caveats(summarise(tmp_path, ["synthetic"]))
    assert any("no file experiments/synthetic.yaml" in sentence for sentence in caveats)


def test_a_score_table_of_ones_own_is_taken_by_its_path(tmp_path):
    write(tmp_path, small(systems=1))
    table = tmp_path / "mine.csv"
    rows = pd.DataFrame({"env_id": ATARI57, "random_score": 0.0, "human_score": 10.0})
    rows.to_csv(table, index=False)
    summary = summarise(tmp_path, ["synthetic"], table=str(table))
    assert summary.table.name == "mine"
    assert summary.runs["hns"].tolist() == (summary.runs["final_score"] / 10).tolist()
    with pytest.raises(ValueError, match=r"unknown score table 'nine.csv'; allowed: atari57_dqn_zoo, "):
        summarise(tmp_path, ["synthetic"], table="nine.csv")


def test_frames_are_those_of_the_protocol(tmp_path):
    write(tmp_path, small(systems=1))
    cartpole = SMALL | {"protocol": "classic_control"}
    write(tmp_path, small(("CartPole-v1",), systems=1, experiment="cartpole", settings=cartpole))
    for names, frames, words in (
        (["synthetic"], ["160,000"], "4 frames"),
        (["cartpole"], ["40,000"], ""),
        (["synthetic", "cartpole"], ["40,000", "160,000"], "4 frames under machado2018"),
    ):
        summary = summarise(tmp_path, names)
        table = report_tables.what_ran(summary)
        assert table.frame["frames"].tolist() == frames
        after = f", {words}" if words else ""
        assert table.notes[0].startswith(f"The budget is per run{words and f'; an env step is {words}'}. Runs: ")
        assert dict(report_words.definitions(summary))["env step"].startswith(f"one agent step of one game{after}; env")
        assert f"one agent step of one game{after}. Runs" in report_tables.throughput(summary).notes[0]
    drawn = curves.over_seeds(summary.curves)
    styles = curve_figures.line_styles([(name, "cpu-1dev") for name in ("cartpole/impala", "synthetic/impala")])
    for env_id, label in (("Breakout-v5", "env steps (4 frames each)"), ("CartPole-v1", "env steps")):
        frames = frames_per_env_step(summary.runs, env_id)
        figure = curve_figures.learning_curves(drawn, env_id, styles, summary.table, frames)
        assert figure.axes[0].get_xlabel() == label


def test_one_profile_says_nothing_about_hardware(tmp_path):
    write(tmp_path, small(systems=2))
    summary = summarise(tmp_path, ["synthetic"])
    assert report_words.answer(summary, None)[0].startswith("There is one hardware profile")
    assert "divergence" not in report_tables.all_tables(summary)


def test_mixed_budgets_are_refused_unless_asked_for_and_then_said(tmp_path):
    write(tmp_path, small(systems=1))
    write(tmp_path, small(systems=1, total_env_steps=80_000, experiment="longer"))
    names = ["synthetic", "longer"]
    with pytest.raises(
        ValueError, match="Breakout-v5 has runs of different budgets in env steps: 40000, 80000; allowed"
    ):
        summarise(tmp_path, names)
    summary = summarise(tmp_path, names, allow_mixed=True)
    assert "different budgets" in report_words.caveats(summary)[0]
    by_algorithm = summary.curves.groupby("algorithm")
    assert by_algorithm["env_steps"].max().tolist() == [80_000, 80_000]
    reached = summary.curves.dropna(subset=["episode_return"]).groupby("algorithm")["env_steps"].max()
    assert reached.to_dict() == {"longer/impala": 80_000, "synthetic/impala": 40_000}


def test_no_complete_run_is_refused(tmp_path):
    write_run(tmp_path, small()[0], state="failed", reason="x")
    with pytest.raises(ValueError, match=r"no run of synthetic is complete \(they are failed\)"):
        summarise(tmp_path, ["synthetic"])


def test_a_run_without_a_late_episode_has_no_final_score_and_is_named(tmp_path):

    one, other = small(systems=1)
    episodes = synthetic.episodes(other)
    write_run(tmp_path, one)
    write_run(tmp_path, other, episodes=episodes[episodes["env_steps"] < 30_000])
    summary = summarise(tmp_path, ["synthetic"])
    [row] = report_tables.final_scores(summary).frame.to_dict("records")
    assert row["seeds"] == 1
    assert any(
        "no final score: impala on Breakout-v5, cpu-1dev, seed 2" in said for said in report_words.caveats(summary)
    )


def test_a_noise_floor_needs_four_seeds(tmp_path):
    write(tmp_path, small(seeds=(1, 2, 3, 4)))
    pairs = summarise(tmp_path, ["synthetic"]).pairs.set_index("algorithm")
    assert pairs.loc["ppo", "floor_splits"] == 6  # three of each profile
    assert 0 < pairs.loc["ppo", "floor_median"] <= pairs.loc["ppo", "floor_largest"]


def test_many_games_become_a_wide_table_with_odd_numbers_of_seeds_said():
    frame = pd.DataFrame(
        {
            "env_id": ["A", "A", "B", "B"], "algorithm": ["x", "y"] * 2, "profile": "p", "seeds": [3, 3, 3, 2],
            "final_score": [1.0, 2.0, 3.0, float("nan")], "hns": [0.1, 0.2, 0.3, float("nan")],
        }
    )  # fmt: skip
    wide = report_tables._wide(frame)
    assert wide.columns.tolist() == ["game", "x on p", "y on p"]
    assert wide.to_numpy().tolist() == [["A", "1.0 (0.10)", "2.0 (0.20)"], ["B", "3.0 (0.30)", "– (–), n = 2"]]
