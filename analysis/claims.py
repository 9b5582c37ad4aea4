"""The claims ledger: what the two papers say, recomputed from their own published figures, with a verdict each.

A claim that is a number holds when the recomputed number lies within half the step to which the claim was rounded. A
claim of direction holds when the interval over games lies on its side of no difference (1 for ratios, 0 for
differences); when the interval reaches both sides it is not shown, which is not the same as untrue.
"""

from typing import Any

import numpy as np
import pandas as pd

from analysis import over_games, published

HOLDS = "holds"
HOLDS_FINAL = "holds for final scores only"
CONTRADICTED = "contradicted"
NOT_SHOWN = "not shown"
UNDECIDED = "published data cannot decide"
VERDICTS = (HOLDS, HOLDS_FINAL, CONTRADICTED, NOT_SHOWN, UNDECIDED)

LEDGER_COLUMNS = [
    "id", "claim", "setting", "source", "claimed", "unit", "recomputed", "low", "high", "games",
    "verdict", "why", "experiment",
]  # fmt: skip


def ledger(claims: pd.DataFrame, evidence: pd.DataFrame) -> pd.DataFrame:
    """One row per claim and piece of evidence. Columns: LEDGER_COLUMNS; `low`, `high` are 95 % intervals over games.

    `claims` as published.claims, `evidence` as published.evidence; NaN stands for what cannot be computed.
    """
    rows = [claim | judge(claim, evidence) for claim in claims.to_dict("records")]
    return pd.DataFrame(rows).rename(columns={"value": "claimed"}).reindex(columns=LEDGER_COLUMNS)


def judge(claim: dict, evidence: pd.DataFrame) -> dict[str, Any]:
    """recomputed, low, high, unit, games, verdict and why, of one row of the claims."""
    match claim["kind"]:
        case "median":
            found = _median(claim, evidence)
        case "faster":
            found = _faster(claim, evidence)
        case "lower" | "no_clear_effect":
            found = _difference(claim, evidence)
        case "more_alike":
            found = _more_alike(claim, evidence)
        case "unpublished":
            found = _found(np.nan, (np.nan, np.nan), 0, UNDECIDED, "")
        case kind:
            allowed = "median, faster, lower, no_clear_effect, more_alike, unpublished"
            raise ValueError(f"claims.csv, {claim['id']}: kind is {kind!r}; allowed: {allowed}")
    return found | {"why": "; ".join(filter(None, [found["why"], claim["note"]]))}


def _median(claim: dict, evidence: pd.DataFrame) -> dict[str, Any]:
    """Median HNS over games, in percent, against the number claimed."""
    percent = 100 * published.select(evidence, claim["table"], claim["system"], claim["hardware"])["hns"].to_numpy()
    value = float(over_games.median(percent))
    interval = over_games.interval(over_games.median, percent)
    verdict, why = _against_number(value, claim)
    return _found(value, interval, len(percent), verdict, why)


def _faster(claim: dict, evidence: pd.DataFrame) -> dict[str, Any]:
    """Ratio of the mean minutes of a run, the other system's over this one's, over the games that both have."""
    ours, theirs = _pair(claim, evidence, "runtime_minutes")
    interval = over_games.interval(mean_ratio, theirs, ours)
    value = float(mean_ratio(theirs, ours))
    if pd.notna(claim["value"]):
        verdict, why = _against_number(value, claim)
    else:
        verdict, why = _by_side(1 / interval[1] - 1, 1 / interval[0] - 1), ""
    faster = f"faster in {int((ours < theirs).sum())} of {len(ours)} games"
    return _found(value, interval, len(ours), verdict, "; ".join(filter(None, [why, faster]))) | {"unit": "times"}


def _difference(claim: dict, evidence: pd.DataFrame) -> dict[str, Any]:
    """IQM of HNS of this system less the other's, over the games that both have, resampled in pairs."""
    ours, theirs = _pair(claim, evidence, "hns")
    low, high = over_games.interval(iqm_difference, ours, theirs)
    no_clear_effect = HOLDS if low <= 0 <= high else CONTRADICTED
    verdict = _by_side(low, high) if claim["kind"] == "lower" else no_clear_effect
    lower = f"lower in {int((ours < theirs).sum())} of {len(ours)} games"
    why = f"IQM {over_games.iqm(ours):.3f} against {over_games.iqm(theirs):.3f}; {lower}"
    return _found(float(iqm_difference(ours, theirs)), (low, high), len(ours), verdict, why) | {"unit": "HNS"}


def _more_alike(claim: dict, evidence: pd.DataFrame) -> dict[str, Any]:
    """IQM over games of |HNS on one hardware - HNS on the other|, this system's less the other's."""
    ours = hardware_gap(evidence, claim["table"], claim["system"], *claim["hardware"].split(" | "))
    theirs = hardware_gap(evidence, claim["other_table"], claim["other_system"], *claim["other_hardware"].split(" | "))
    low, high = over_games.interval(iqm_difference, ours, theirs)
    verdict = _by_side(low, high).replace(HOLDS, HOLDS_FINAL)
    why = f"IQM of the gap {over_games.iqm(ours):.3f} against {over_games.iqm(theirs):.3f}"
    return _found(float(iqm_difference(ours, theirs)), (low, high), len(ours), verdict, why) | {"unit": "HNS"}


def hardware_gap(evidence: pd.DataFrame, table: str, system: str, first: str, second: str) -> np.ndarray:
    """|HNS difference| between two hardware settings of a system, [G], games sorted."""
    one, other = (published.select(evidence, table, system, hardware)["hns"] for hardware in (first, second))
    return (one - other).abs().to_numpy()


def mean_ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return over_games.mean(numerator) / over_games.mean(denominator)


def iqm_difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return over_games.iqm(first) - over_games.iqm(second)


def _pair(claim: dict, evidence: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    """`column` of the claim's two systems, [G] each, over the games that both have, sorted."""
    ours = published.select(evidence, claim["table"], claim["system"], claim["hardware"])
    theirs = published.select(evidence, claim["other_table"], claim["other_system"], claim["other_hardware"])
    pairs = ours.join(theirs, how="inner", rsuffix="_other")
    return pairs[column].to_numpy(), pairs[f"{column}_other"].to_numpy()


def _against_number(value: float, claim: dict) -> tuple[str, str]:
    off = value - claim["value"]
    verdict = HOLDS if abs(off) <= claim["step"] / 2 else CONTRADICTED
    return verdict, f"off by {off:+.2g}; {claim['step'] / 2:g} allowed by rounding"


def _by_side(low: float, high: float) -> str:
    """The claim says: below zero."""
    if high < 0:
        return HOLDS
    return CONTRADICTED if low > 0 else NOT_SHOWN


def _found(value: float, interval: tuple[float, float], games: int, verdict: str, why: str) -> dict[str, Any]:
    return {
        "recomputed": value,
        "low": interval[0],
        "high": interval[1],
        "games": games,
        "verdict": verdict,
        "why": why,
    }
