"""The ledger: every claim judged, with the numbers that FINDINGS C10 states, and verdicts that can go the other way."""

import numpy as np
import pandas as pd
import pytest

from analysis import claims, published
from analysis.scores import TABLES

EVIDENCE = published.evidence(TABLES["atari57_dqn_zoo"])
LEDGER = claims.ledger(published.claims(), EVIDENCE)


def rows(claim_id: str) -> pd.DataFrame:
    return LEDGER[LEDGER["id"] == claim_id]


def test_every_claim_is_in_the_ledger():
    assert list(dict.fromkeys(LEDGER["id"])) == [f"K{i}" for i in range(1, 23)]
    assert list(LEDGER.columns) == claims.LEDGER_COLUMNS
    assert set(LEDGER["verdict"]) <= set(claims.VERDICTS)


@pytest.mark.parametrize(
    ("claim_id", "claimed", "recomputed", "verdict"),
    [
        ("K1", 165, 165.8, "holds"),
        ("K2", 165, 159.7, "contradicted"),
        ("K3", 140, 124.4, "contradicted"),
        ("K4", 165, 159.6, "contradicted"),
        ("K19", 191.8, 191.8, "holds"),
        ("K20", 93.2, 93.2, "holds"),
        ("K21", 59.7, 59.7, "holds"),
    ],
)
def test_medians(claim_id, claimed, recomputed, verdict):
    (row,) = rows(claim_id).to_dict("records")
    assert (row["claimed"], round(row["recomputed"], 1), row["verdict"]) == (claimed, recomputed, verdict)
    assert row["low"] < row["recomputed"] < row["high"]


@pytest.mark.parametrize(("claim_id", "times"), [("K5", 6.81), ("K6", 1.20), ("K7", 4.69), ("K8", 1.92), ("K12", 1.59)])
def test_speeds(claim_id, times):
    (row,) = rows(claim_id).to_dict("records")
    assert (round(row["recomputed"], 2), row["verdict"]) == (times, "holds")
    assert "faster in 57 of 57 games" in row["why"]


def test_directions():
    for claim_id, num_games in (("K10", 57), ("K13", 53)):
        assert (rows(claim_id)["high"] < 0).all()
        assert set(rows(claim_id)["verdict"]) == {"holds"}
        assert set(rows(claim_id)["games"]) == {num_games}
    (effect,) = rows("K11").to_dict("records")
    assert effect["low"] < 0 < effect["high"]
    assert "not the same as equal" in effect["why"]


def test_across_hardware_is_decided_for_final_scores_only():
    assert set(rows("K9")["verdict"]) == {"holds for final scores only"}
    assert "0.100 against 0.387" in rows("K9")["why"].iloc[0]


def test_undecided_claims_have_no_number_and_say_why():
    undecided = LEDGER[LEDGER["verdict"] == "published data cannot decide"]
    assert list(undecided["id"]) == ["K14", "K15", "K16", "K17", "K18", "K22"]
    assert undecided[["recomputed", "low", "high"]].isna().all(axis=None)
    assert (undecided["why"] != "").all()
    assert (undecided["experiment"] != "").all()


def test_verdicts_can_go_the_other_way():
    """Negative control: swap the systems of each claim of direction, or claim another number."""
    table = published.claims()
    swapped = table.rename(
        columns={name: f"other_{name}" for name in ("table", "system", "hardware")}
        | {f"other_{name}": name for name in ("table", "system", "hardware")}
    )
    turned = claims.ledger(swapped[swapped["id"].isin(["K9", "K10", "K12", "K13"])], EVIDENCE)
    assert set(turned["verdict"]) == {"contradicted"}
    assert claims.ledger(table[table["id"] == "K1"].assign(value=160), EVIDENCE)["verdict"].item() == "contradicted"
    wrong = table[table["id"] == "K10"].assign(kind="no_clear_effect")
    assert set(claims.ledger(wrong, EVIDENCE)["verdict"]) == {"contradicted"}


def test_no_difference_is_not_shown():
    claim = published.claims().query("id == 'K11'").assign(kind="lower")
    assert claims.ledger(claim, EVIDENCE)["verdict"].item() == "not shown"


def test_interval_of_a_claim_does_not_depend_on_the_others():
    alone = claims.ledger(published.claims().query("id == 'K7'"), EVIDENCE)
    assert np.array_equal(alone[["low", "high"]].to_numpy(), rows("K7")[["low", "high"]].to_numpy())


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"claims.csv, K1: kind is 'guess'; allowed: median, faster"):
        claims.ledger(published.claims().head(1).assign(kind="guess"), EVIDENCE)
