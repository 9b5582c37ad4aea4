"""`cleanba paper` end to end: every product is written, and the tables hold the numbers that the findings state."""

import re
from pathlib import Path

import pandas as pd
import pytest

from analysis import figure_style, paper, paper_tables, published, scores
from analysis.scores import TABLES

TABLE_NAMES = ["base", "workstation", "across_hardware", "across_hardware_12", "cleanrl", "sync_or_not", "fair_ppo"]
EVIDENCE = published.evidence(TABLES["atari57_dqn_zoo"])


@pytest.fixture(scope="module")
def products(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_style, "PNG_DPI", 40)  # all is drawn, in a quarter of the time
        paths = paper.main(output)
    assert len(paths) == len(set(paths)) == len([path for path in output.rglob("*") if path.is_file()])
    assert all(path.stat().st_size > 0 for path in paths)
    return output


def read(products: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(products / "tables" / "paper" / f"{name}.csv")


def test_every_table_and_figure_is_written(products):
    tables = {path.name for path in (products / "tables" / "paper").iterdir()}
    stems = [f"{name}_{kind}" for name in TABLE_NAMES for kind in ("aggregate", "per_game")]
    stems += ["hardware_gaps", "impala_hns_tables", "score_tables", "contradictions", "ledger"]
    assert tables == {f"{stem}.{suffix}" for stem in stems for suffix in ("csv", "md", "tex")}
    figures = {path.name for path in (products / "figures" / "paper").iterdir()}
    kinds = ("aggregate", "profile", "games", "improvement", "speedup")
    assert figures == {f"{name}_{kind}.{end}" for name in TABLE_NAMES for kind in kinds for end in ("png", "svg")}


def test_base_aggregates(products):
    rows = read(products, "base_aggregate").set_index("system")
    medians = (100 * rows["median"]).round(1).to_dict()
    assert medians == {
        "Monobeast IMPALA": 159.7, "Moolib IMPALA": 124.4, "Cleanba IMPALA": 165.8, "Cleanba PPO (Sync)": 159.6,
    }  # fmt: skip
    assert rows.loc["Cleanba IMPALA", ["speedup_monobeast", "speedup_moolib"]].astype(float).round(2).tolist() == [
        6.81,
        1.20,
    ]
    assert rows["minutes"].round(1).tolist() == [929.8, 163.5, 136.5, 215.9]
    assert (rows["median_low"] < rows["median"]).all()
    assert (rows["median"] < rows["median_high"]).all()


def test_workstation_and_fair_ppo(products):
    rows = read(products, "workstation_aggregate").set_index("system")
    assert rows.loc["Cleanba IMPALA", ["speedup_monobeast", "speedup_moolib"]].astype(float).round(2).tolist() == [
        4.69,
        1.92,
    ]
    fair = read(products, "fair_ppo_aggregate")
    assert fair["games"].tolist() == [53, 53]
    assert len(read(products, "fair_ppo_per_game")) == 53


def test_impala_under_each_hns_table(products):
    rows = read(products, "impala_hns_tables").set_index(["system", "hns_table"])
    deep = (100 * rows.loc["impala_deep"]).round(1)
    assert deep["mean"].tolist() == [1592.5, 957.3]
    assert deep["median"].tolist() == deep["published_median"].tolist() == [191.8, 191.8]
    assert deep["iqm"].nunique() == deep["optimality_gap"].nunique() == 1


def test_products_say_what_their_numbers_are(products):
    for name in TABLE_NAMES:
        text = (products / "tables" / "paper" / f"{name}_aggregate.md").read_text()
        for said in ("3 declared, no n stored", "ddof 0", "atari57_dqn_zoo v1 (7ca7c807470a)", "sticky actions"):
            assert said in text
        assert "not intervals over seeds" in text


def test_latex_is_balanced_and_rectangular(products):
    for path in (products / "tables" / "paper").glob("*.tex"):
        text = re.sub(r"\\[&%$#_{}]", "", path.read_text())  # what is escaped does not count
        assert text.count("{") == text.count("}"), path.name
        rows = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert len({row.count("&") for row in rows}) == 1, path.name
        assert text.isascii(), path.name  # compiles without a font for symbols


def test_ledger_and_contradictions_are_among_the_products(products):
    assert read(products, "ledger")["id"].nunique() == 22
    assert read(products, "contradictions")["kind"].nunique() == 5
    assert "K2 | median HNS of monobeast IMPALA" in (products / "tables" / "paper" / "ledger.md").read_text()


def test_speedups_compare_the_same_games():
    """The references of the 53-game table are cut to its games."""
    part = published.select(EVIDENCE, "fair_ppo", "Cleanba IMPALA", "1 A100, 10 CPU")
    whole = published.select(EVIDENCE, "base", "Monobeast IMPALA", "1 A100, 10 CPU")["runtime_minutes"]
    expected = whole[part.index].mean() / part["runtime_minutes"].mean()
    assert paper_tables.speedups(EVIDENCE, part)["speedup_monobeast"] == pytest.approx(expected, rel=1e-12)
    assert expected != pytest.approx(whole.mean() / part["runtime_minutes"].mean(), rel=1e-3)


def test_hardware_gaps():
    rows = paper_tables.hardware_gaps(EVIDENCE, "across_hardware", 3).set_index("system")
    assert rows["iqm_gap"].round(3).to_dict() == {
        "Moolib (Resnet CNN)": 0.387, "Cleanba IMPALA": 0.100, "Cleanba PPO (Sync)": 0.073,
    }  # fmt: skip
    assert rows["expected_median"].round(3).unique().tolist() == [0.741]


def test_profiles_start_high_and_bracket_the_share():
    rows = paper_tables.profiles(EVIDENCE, "base")
    at_human = rows[(rows["system"] == "Cleanba IMPALA") & (rows["threshold"] == 1.0)].iloc[0]
    above = published.select(EVIDENCE, "base", "Cleanba IMPALA", "1 A100, 10 CPU")["hns"] > 1
    assert at_human["fraction"] == above.mean()
    assert ((rows["low"] <= rows["fraction"]) & (rows["fraction"] <= rows["high"])).all()


def test_improvement_is_the_share_of_games_won():
    (row,) = paper_tables.improvement(EVIDENCE, "fair_ppo").to_dict("records")
    ours, theirs = (
        published.select(EVIDENCE, "fair_ppo", name, "1 A100, 10 CPU")["mean_return"] for name in (row["x"], row["y"])
    )
    assert row["probability"] == ((ours > theirs).sum() + 0.5 * (ours == theirs).sum()) / 53


def user_table(path: Path, **changed: tuple[float, float]) -> str:
    cells = dict(scores.TABLES["atari57_dqn_zoo"].scores) | {f"{game}-v5": pair for game, pair in changed.items()}
    lines = ["env_id,random_score,human_score", *(f"{game},{r},{h}" for game, (r, h) in cells.items())]
    path.write_text("\n".join(lines))
    return str(path)


def test_a_users_table_is_named_hashed_and_diffed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(paper, "write_all_tables", lambda *_: [])  # its 35 figures have been drawn above
    name = user_table(tmp_path / "mine.csv", FishingDerby=(-91.7, 38.7))
    paper.main(tmp_path / "results", name)
    printed = capsys.readouterr().out
    assert "HNS table mine user (" in printed
    assert "differs from atari57_dqn_zoo: FishingDerby-v5 human_score: 38.7, reference -38.7" in printed
    cells = read(tmp_path / "results", "score_tables")
    assert cells[["env_id", "column"]].to_numpy().tolist() == [
        ["FishingDerby-v5", "human_score"], ["FishingDerby-v5", "human_score"], ["VideoPinball-v5", "random_score"],
    ]  # fmt: skip


def test_a_broken_user_table_writes_nothing(tmp_path):
    name = user_table(tmp_path / "mine.csv", VideoPinball=(20452.0, 15641.1))
    with pytest.raises(ValueError, match=r"mine.csv: score table mine, VideoPinball-v5: human score"):
        paper.main(tmp_path / "results", name)
    assert not (tmp_path / "results").exists()


def test_products_are_the_same_twice(products, tmp_path):
    """The intervals are seeded by their games, not by what was computed before them."""
    rows = paper_tables.aggregate(EVIDENCE, "cleanrl", 3)
    about = published.cleanba_tables().to_dict("index")["cleanrl"]
    for path in paper.write_aggregate(tmp_path / "cleanrl_aggregate", rows, about, TABLES["atari57_dqn_zoo"]):
        assert path.read_bytes() == (products / "tables" / "paper" / path.name).read_bytes()
