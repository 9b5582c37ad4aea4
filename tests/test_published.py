"""The published figures as carried over: complete, refused when broken, and their contradictions found by code."""

import csv
from pathlib import Path

import pandas as pd
import pytest

from analysis import over_games, published
from analysis.scores import TABLES

GIVEN = Path(__file__).resolve().parents[2] / "shared" / "data" / "published"
RETURNS = published.cleanba_returns()
FOUND = published.contradictions(RETURNS, published.cleanba_tables())


def of_kind(kind: str) -> pd.DataFrame:
    return FOUND[FOUND["kind"] == kind]


def test_seven_tables_with_their_systems_and_games():
    sizes = RETURNS.groupby("table", sort=False)["env_id"].agg(["nunique", "size"])
    assert sizes.T.to_dict("list") == {
        "base": [57, 228], "workstation": [57, 228], "across_hardware": [57, 342], "across_hardware_12": [12, 72],
        "cleanrl": [57, 285], "sync_or_not": [57, 114], "fair_ppo": [53, 106],
    }  # fmt: skip
    assert (published.cleanba_tables()["std_ddof"] == 0).all()
    assert (published.cleanba_tables()["seeds_declared"] == 3).all()


@pytest.mark.skipif(not GIVEN.exists(), reason="no ../shared/data beside the project")
def test_every_figure_is_the_one_given():
    names = published.cleanba_tables()["source_table"].to_dict()
    ours = [[names[row[0]], *row[1:6]] for row in RETURNS.to_numpy().tolist()]
    with (GIVEN / "cleanba_tables.csv").open(newline="") as file:
        given = [[*row[:4], float(row[4]), float(row[5])] for row in list(csv.reader(file))[1:]]
    assert sorted(ours) == sorted(given)
    claims = {row["id"]: row for row in published.claims().to_dict("records")}
    with (GIVEN / "claims.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert claims[row["id"]]["value"] == pytest.approx(float(row["value"] or "nan"), nan_ok=True)


def test_one_label_has_two_values():
    (row,) = of_kind("two values").to_dict("records")
    assert (row["system"], row["hardware"], row["env_id"]) == ("Cleanba PPO (Sync)", "1 A100, 10 CPU", "Alien-v5")
    assert row["detail"] == "base: 2696.91 ± 471.97; across_hardware: 1635.26 ± 1114.24"


def test_one_system_has_two_labels():
    assert set(of_kind("two labels")["system"]) == {"Moolib IMPALA / Moolib (Resnet CNN)"}
    assert list(of_kind("two labels")["hardware"]) == ["1 A100, 10 CPU", "8 A100, 80 CPU"]


def test_labels_that_differ_in_case_alone_differ_in_every_game():
    (row,) = of_kind("labels differ in case").to_dict("records")
    assert row["system"] == "Cleanba PPO (Sync) / Cleanba PPO (sync)"
    assert row["detail"] == "mean return differs in 57 of 57 games"


def test_a_57_game_table_has_53():
    rows = of_kind("missing games")
    assert list(rows["table"]) == ["fair_ppo", "fair_ppo"]
    assert set(rows["detail"]) == {"53 of 57 games: no Hero-v5, IceHockey-v5, Jamesbond-v5, MsPacman-v5"}


def test_zero_std_at_a_mean_that_is_not_zero():
    counts = of_kind("zero std").groupby(["table", "system"]).size()
    assert counts["base", "Monobeast IMPALA"] == 12
    assert counts["base"].sum() == 12  # no other system of the base table
    asterix = of_kind("zero std").query("table == 'base' and env_id == 'Asterix-v5'")
    assert asterix["detail"].item() == "536214.00 ± 0.00"


def test_contradictions_are_found_not_typed_in():
    """Negative control: one more changed figure is one more finding; a repaired one is one fewer."""
    other = RETURNS["table"].eq("cleanrl") & RETURNS["system"].eq("Cleanba IMPALA") & RETURNS["env_id"].eq("Pong-v5")
    changed = RETURNS.assign(mean_return=RETURNS["mean_return"].where(~other, 1.0))
    found = published.contradictions(changed, published.cleanba_tables())
    assert list(found[found["kind"] == "two values"]["env_id"]) == ["Alien-v5", "Pong-v5"]
    repaired = RETURNS[RETURNS["table"] != "across_hardware"]
    found = published.contradictions(repaired, published.cleanba_tables())
    assert "two values" not in set(found["kind"])


def test_impala_table_c1():
    counts = published.impala_returns().groupby("system").size().to_dict()
    assert counts == {"impala_shallow": 57, "impala_deep": 57, "impala_deep_multitask": 57, "reactor": 57, "acktr": 44}


def test_one_cell_of_the_hns_table_moves_the_mean_and_nothing_else():
    """FINDINGS T10: 1592.5 % against 957.3 % for IMPALA deep."""
    deep = {
        name: published.select(published.evidence(table), "impala_c1", "impala_deep", "")["hns"].to_numpy()
        for name, table in TABLES.items()
    }
    zoo, zero = deep["atari57_dqn_zoo"], deep["atari57_pinball_zero"]
    assert (round(100 * zoo.mean(), 1), round(100 * zero.mean(), 1)) == (1592.5, 957.3)
    for statistic in (over_games.median, over_games.iqm, over_games.optimality_gap):
        assert statistic(zoo) == statistic(zero)


def test_published_medians_of_impala():
    evidence = published.evidence(TABLES["atari57_dqn_zoo"])
    medians = {
        system: round(100 * published.select(evidence, "impala_c1", system, "")["hns"].median(), 1)
        for system in ("impala_shallow", "impala_deep", "impala_deep_multitask")
    }
    assert medians == {"impala_shallow": 93.2, "impala_deep": 191.8, "impala_deep_multitask": 59.7}


def broken(tmp_path: Path, change) -> Path:
    change(RETURNS.copy()).to_csv(tmp_path / "cleanba_returns.csv", index=False)
    (tmp_path / "cleanba_tables.csv").write_text((published.PUBLISHED / "cleanba_tables.csv").read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="std_return"), "no column std_return"),
        (lambda f: pd.concat([f, f.head(1)]), r"base / Monobeast IMPALA / 1 A100, 10 CPU / Alien-v5 stands twice"),
        (lambda f: f.replace("Pong-v5", "Pnog-v5"), r"unknown game 'Pnog-v5'; nearest: Pong-v5"),
        (lambda f: f.replace("cleanrl", "cleanerl"), "unknown table cleanerl"),
        (
            lambda f: f.assign(mean_return=f["mean_return"].astype(object).where(f.index != 3, "NaN")),
            "Asterix-v5: mean",
        ),
        (
            lambda f: f.assign(std_return=f["std_return"].where(f.index != 3, float("inf"))),
            "std_return is inf; allowed",
        ),
    ],
)
def test_broken_tables_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        published.cleanba_returns(broken(tmp_path, change))


def test_select_names_what_a_table_has():
    with pytest.raises(
        ValueError, match="table base has no 'Moolib' on '1 A100, 10 CPU'; allowed: Monobeast IMPALA on"
    ):
        published.select(RETURNS, "base", "Moolib", "1 A100, 10 CPU")
