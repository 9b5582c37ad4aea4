"""`cleanba compare`: how far the learning curves of two run sets are apart, and a verdict about B against A.

Per game and, where several games have human-normalised scores (HNS), of the IQM over games. Protocol, unit and budget
are compared first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import comparison, curve_tests, curves, divergence, run_sets, summary
from analysis.matrix import ScoreMatrix
from analysis.run_sets import RunSet
from analysis.scores import DEFAULT, ScoreTable, resolve

SAME, WORSE, CANNOT_TELL = 0, 1, 2  # exit codes; what is invalid raises ValueError
OVERALL = comparison.OVERALL
VERDICT_CONFIDENCE = 1 - 2 * divergence.ALPHA  # two one-sided tests at 5 %
BAND_CONFIDENCE = curve_tests.CURVE_RESAMPLING.confidence


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """B against A. `games` and `overall` have the fields of a `_row`; `overall` is None with fewer than two HNS games.

    curves          set (A or B), env_id, seed, env_steps, episodes, episode_return, hns, value (in the game's unit)
    overall_curves  set, env_steps, estimate, low, high: IQM of HNS with its pointwise bootstrap interval
    mixed           differences in protocol, unit or budget that were asked for
    """

    a: RunSet
    b: RunSet
    table: ScoreTable
    margin: float | None
    mixed: list[str]
    games: pd.DataFrame
    curves: pd.DataFrame
    overall: Mapping[str, Any] | None
    overall_curves: pd.DataFrame
    notes: list[str]

    @property
    def verdict(self) -> str:
        """Worse where the aggregate or any game is, so that no game hides in a mean; else the aggregate's word, or
        without one that of the least certain game."""
        worse = self.games.loc[self.games["word"] == "worse", "env_id"].tolist()
        if self.overall is not None:
            return "worse" if worse else self.overall["word"]
        if worse:
            return "worse"
        doubtful = [word for word in self.games["word"] if word.startswith("cannot tell")]
        return doubtful[0] if doubtful else "same" if "same" in self.games["word"].tolist() else "better"

    @property
    def exit_code(self) -> int:
        word = self.verdict
        return SAME if word in ("same", "better") else WORSE if word == "worse" else CANNOT_TELL

    @property
    def margin_unit(self) -> str:
        """HNS, or points where no game has HNS."""
        return "HNS" if "HNS" in self.games["unit"].tolist() else "points"


def compare(
    a: RunSet,
    b: RunSet,
    *,
    margin: float | None = None,
    table: str = DEFAULT,
    games: Sequence[str] = (),
    allow_mixed: bool = False,
) -> Comparison:
    """Compare two sets on `games` (see `run_sets.choose_games`). `margin` is the experiments' own when not given.

    Raises ValueError where protocol, unit or budget differ, unless `allow_mixed`, and for games that one side lacks.
    """
    env_ids = run_sets.choose_games(a, b, games)
    mixed = run_sets.differences(a, b, env_ids)
    if mixed and not allow_mixed:
        raise ValueError(
            f"{'; '.join(mixed)}; allowed: sets that agree, or --allow-mixed, which is said on all products"
        )
    if margin is None:
        margin = declared_margin(a, b)
    elif not margin > 0 or not math.isfinite(margin):
        raise ValueError(f"--margin is {margin}; allowed: a number above 0, in HNS, or in points where no game has HNS")
    scores = resolve(table)
    normalised = [env_id for env_id in env_ids if env_id in scores.scores]
    run_curves = pd.concat([_curves(a, b, env_id, scores) for env_id in env_ids], ignore_index=True)
    rows = []
    for env_id in env_ids:
        unit = "HNS" if env_id in normalised else "points"
        applies = unit == "HNS" or not normalised
        rows.append(_game(a, b, env_id, unit, run_curves, margin if applies else None, scores))
    overall, overall_curves = None, pd.DataFrame()
    if len(normalised) > 1:
        overall, overall_curves = _overall(a, b, normalised, margin, scores)
        if all(row["identical"] and row["word"] == "same" for row in rows):
            overall["word"] = "same"  # bit for bit, which needs no statistics
    frame = pd.DataFrame(rows)
    return Comparison(
        a=a, b=b, table=scores, margin=margin, mixed=mixed, curves=run_curves, overall=overall,
        overall_curves=overall_curves, notes=[*a.notes, *b.notes, *_notes(frame)],
        games=frame.assign(
            p_holm=_holm(frame["p_value"].to_numpy()), final_p_holm=_holm(frame["final_p_value"].to_numpy())
        ),
    )  # fmt: skip


def declared_margin(a: RunSet, b: RunSet) -> float | None:
    """The margin of the experiments' files, where those that state one agree. Raises ValueError where they do not."""
    margins = {one.margin for one in (a, b)} - {None}
    if len(margins) > 1:
        raise ValueError(f"{a.name} and {b.name} declare the margins {a.margin} and {b.margin}; allowed: --margin")
    return margins.pop() if margins else None


def as_json(found: Comparison) -> dict[str, Any]:
    """Every number of the comparison; what is missing is null."""
    content = {
        "a": _described(found.a),
        "b": _described(found.b),
        "verdict": found.verdict,
        "exit_code": found.exit_code,
        "margin": found.margin,
        "margin_unit": found.margin_unit,
        "mixed": found.mixed,
        "hns_table": found.table.label,
        "score_definition": SCORE_DEFINITION,
        "smoothing": smoothing(found),
        "overall": found.overall,
        "games": found.games.to_dict("records"),
        "notes": found.notes,
    }
    return plain(content)


SCORE_DEFINITION = "mean raw return of the episodes that ended in the last 10 % of the budget's env steps, per seed"


def smoothing(found: Comparison) -> str:
    """The bins of the curves, which is all the smoothing there is."""
    counts = sorted(found.games["num_bins"].unique())
    bins = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f"mean return of the episodes that ended in each of {bins} equal bins of the budget, weighted by the number of "
        "episodes; no further smoothing; a bin without episodes is a gap"
    )


def _curves(a: RunSet, b: RunSet, env_id: str, table: ScoreTable) -> pd.DataFrame:
    """Both sides on the game's grid: up to the smaller budget, as fine as the run with the fewest rows allows."""
    budget = min(a.budget(env_id), b.budget(env_id))
    num_bins = curves.choose_num_bins(min(a.fewest_rows(env_id), b.fewest_rows(env_id)))
    sides = {"A": a.curves(env_id, budget, num_bins), "B": b.curves(env_id, budget, num_bins)}
    frame = pd.concat([rows.assign(set=side, env_id=env_id) for side, rows in sides.items()], ignore_index=True)
    hns = curves.hns(frame, "episode_return", table)
    return frame.assign(hns=hns, value=hns if env_id in table.scores else frame["episode_return"])


def _game(
    a: RunSet, b: RunSet, env_id: str, unit: str, run_curves: pd.DataFrame, margin: float | None, table: ScoreTable
) -> dict[str, Any]:
    rows = run_curves.loc[run_curves["env_id"] == env_id]
    env_steps, values_a = curves.matrix(rows.loc[rows["set"] == "A"], "value")
    _, values_b = curves.matrix(rows.loc[rows["set"] == "B"], "value")
    found = divergence.divergence(values_a, values_b, env_steps)
    # One seed a side at least: a floor of single seeds overstates the noise of a set, and its n is printed with it.
    floors = {
        side: divergence.noise_floor([values], env_steps, fewest_per_side=1)
        for side, values in (("a", values_a), ("b", values_b))
    }
    verdict = divergence.verdict(values_a, values_b, found.area, margin)
    prints = _fingerprints(a, b, env_id)
    row = {
        "env_id": env_id, "unit": unit, "num_bins": len(env_steps), "budget_env_steps": int(env_steps[-1]),
        "seeds_a": len(values_a), "seeds_b": len(values_b), **asdict(found),
        **{f"floor_{side}_{name}": value for side, floor in floors.items() for name, value in asdict(floor).items()},
        **asdict(curve_tests.area_test(values_a, values_b)), **asdict(verdict), **prints,
        **_final(a, b, [env_id], unit, table),
    }  # fmt: skip
    if prints["identical"]:
        row["word"] = "same" if not found.area > 0 else "cannot tell (fingerprints equal, episodes differ)"
    return row


def _fingerprints(a: RunSet, b: RunSet, env_id: str) -> dict[str, Any]:
    """As `summary.agreement`, seed by seed; nothing is compared where no two digests would be of the same thing."""
    if a.identity is None or a.identity != b.identity:
        return summary.agreement({}, {}) | {"identical": None}
    of_game = ({seed: rows for (game, seed), rows in one.fingerprints.items() if game == env_id} for one in (a, b))
    prints_a, prints_b = of_game
    found = summary.agreement(prints_a, prints_b)
    if set(prints_a) != set(a.seeds(env_id)) or set(prints_b) != set(b.seeds(env_id)) or not prints_a:
        found["identical"] = found["identical"] and None  # a run without fingerprints is not known to be identical
    return found


def _final(a: RunSet, b: RunSet, env_ids: Sequence[str], unit: str, table: ScoreTable) -> dict[str, Any]:
    """Final scores, B - A: mean of a game, IQM of several, with the bootstrap interval and its permutation p-value."""
    x, y = (_score_matrix(one, side, (a, b), env_ids, unit, table) for one, side in ((b, "B"), (a, "A")))
    if x is None or y is None:
        return dict.fromkeys(FINAL, math.nan) | {"final_note": "no final score on a side"}
    compared = (
        comparison.compare_games(x, y).rename(columns={"mean_x": "x", "mean_y": "y"})
        if len(env_ids) == 1
        else comparison.compare_overall(x, y, names=["iqm"])
    )
    row = compared.iloc[0].to_dict()
    return {name: row[key] for name, key in FINAL.items()} | {"final_note": row["note"]}


FINAL = {
    "final_a": "y", "final_b": "x", "final_difference": "difference", "final_low": "low", "final_high": "high",
    "final_p_value": "p_value", "final_smallest_p": "smallest_p", "final_seeds_needed": "seeds_needed",
}  # fmt: skip


def _score_matrix(
    one: RunSet, side: str, both: tuple[RunSet, RunSet], env_ids: Sequence[str], unit: str, table: ScoreTable
) -> ScoreMatrix | None:
    """Final scores at the smaller budget of `both`; None where a game has none. Runs without a score are left out."""
    scores = {}
    for env_id in env_ids:
        budget = min(member.budget(env_id) for member in both)
        found = one.final_scores(env_id, budget)
        scores[env_id] = table.hns(env_id, found) if unit == "HNS" else found
    if any(not len(found) for found in scores.values()):
        return None
    # Normalised a line above: however large, they are no raw points by mistake.
    return ScoreMatrix(side, scores, unit="hns" if unit == "HNS" else "raw", allow_large=True)


def _overall(
    a: RunSet, b: RunSet, env_ids: Sequence[str], margin: float | None, table: ScoreTable
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The IQM over the runs of all games in bins of equal shares of each game's budget."""
    num_bins = curves.choose_num_bins(min(one.fewest_rows(env_id) for one in (a, b) for env_id in env_ids))
    budgets = {env_id: min(a.budget(env_id), b.budget(env_id)) for env_id in env_ids}
    games_a, games_b = (_hns_on_shares(one, budgets, num_bins, table) for one in (a, b))
    env_steps = max(budgets.values()) * np.arange(1, num_bins + 1) / num_bins
    curve_a, curve_b = curve_tests.iqm_curve(games_a), curve_tests.iqm_curve(games_b)
    found = divergence.of_means(curve_a, curve_b, env_steps)
    resampled_a, resampled_b = (curve_tests.bootstrapped_iqm(g, s) for g, s in ((games_a, "A"), (games_b, "B")))
    fewest = min(len(values) for games in (games_a, games_b) for values in games.values())
    compared = ~np.isnan(curve_b - curve_a)
    difference = float((curve_b - curve_a)[compared].mean()) if compared.any() else math.nan
    replicates = (resampled_b - resampled_a)[:, compared].mean(axis=1) if compared.any() else np.array([math.nan])
    low, high = curve_tests.widened(replicates, difference, fewest, VERDICT_CONFIDENCE)
    test = curve_tests.iqm_area_test(games_a, games_b, "A and B")
    floors = {side: curve_tests.iqm_floor(games) for side, games in (("a", games_a), ("b", games_b))}
    word = _overall_word(difference, low, high, found.area, margin, fewest, test.smallest_p)
    row = {
        "env_id": OVERALL, "unit": "HNS", "statistic": "IQM", "num_games": len(env_ids), "num_bins": num_bins,
        "budget_env_steps": int(env_steps[-1]),
        **{f"runs_{side}": sum(map(len, g.values())) for side, g in (("a", games_a), ("b", games_b))},
        "fewest_seeds": fewest, **asdict(found),
        **{f"floor_{side}_{name}": value for side, floor in floors.items() for name, value in asdict(floor).items()},
        **asdict(test), "word": word, "difference": difference, "low": low, "high": high,
        **_final(a, b, env_ids, "HNS", table),
    }  # fmt: skip
    drawn = [_band("A", env_steps, curve_a, resampled_a), _band("B", env_steps, curve_b, resampled_b)]
    return row, pd.concat(drawn, ignore_index=True)


def _hns_on_shares(one: RunSet, budgets: Mapping[str, int], num_bins: int, table: ScoreTable) -> dict[str, np.ndarray]:
    """env_id -> HNS (seeds, bins)."""
    return {
        env_id: table.hns(env_id, curves.matrix(one.curves(env_id, budget, num_bins), "episode_return")[1])
        for env_id, budget in budgets.items()
    }


def _band(side: str, env_steps: np.ndarray, curve: np.ndarray, resampled: np.ndarray) -> pd.DataFrame:
    quantiles = (1 - BAND_CONFIDENCE) / 2, (1 + BAND_CONFIDENCE) / 2
    low, high = np.quantile(resampled, quantiles, axis=0)
    return pd.DataFrame({"set": side, "env_steps": env_steps, "estimate": curve, "low": low, "high": high})


def _overall_word(
    difference: float, low: float, high: float, area: float, margin: float | None, fewest: int, smallest_p: float
) -> str:
    """As `divergence.verdict`, of the IQM. Three seeds on each of several games can tell, where on one they cannot."""
    if margin is None:
        return "cannot tell (the experiment declares no margin)"
    if math.isnan(low) or smallest_p > divergence.ALPHA:
        return divergence.cannot_tell(max(2, fewest + 1))
    room = abs(margin - abs(difference))
    # The interval's half width falls as one over the root of the number of seeds.
    needed = divergence.MOST_SEEDS if room == 0 else math.ceil(fewest * ((high - low) / 2 / room) ** 2)
    return divergence.judge(low, high, area, margin, min(divergence.MOST_SEEDS, max(fewest + 1, needed)))


def _holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's correction over the games that have a p-value; NaN stays NaN."""
    out, known = np.full(len(p_values), np.nan), ~np.isnan(p_values)
    out[known] = comparison.holm(p_values[known])
    return out


def _notes(games: pd.DataFrame) -> list[str]:
    empty = games.loc[games["compared_share"] == 0, "env_id"].tolist()
    partial = games.loc[games["compared_share"].between(0, 1, inclusive="neither"), "env_id"].tolist()
    said = [f"no bin has values of both sides: {', '.join(empty)}"] if empty else []
    said += [f"some bins have values of one side only and are not compared: {', '.join(partial)}"] if partial else []
    raw = games.loc[games["unit"] == "points", "env_id"].tolist()
    return said + ([f"without random and human scores, hence in raw points: {', '.join(raw)}"] if raw else [])


def _described(one: RunSet) -> dict[str, Any]:
    names = ("name", "kind", "algorithm", "profile", "protocol", "unit")
    return {name: getattr(one, name) for name in names} | {"runs": len(one.runs), "games": len(one.env_ids)}


def plain(value: Any) -> Any:
    """What JSON can say: numpy's numbers as Python's, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
