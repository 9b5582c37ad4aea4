"""`cleanba compare`: hand-computed areas, p-values and verdicts; what must not be compared; what every product says."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from curves_of_others import DATA, needed
from synthetic import Cell, write_run

from analysis import compare, curve_tests, ingest, run_sets, statistics
from analysis.foreign import Declared
from runners.cli import main

RESULTS = Path("results")
COLUMNS = {
    "env_id": "game", "seed": "seed", "steps": "steps", "episode_return": "score", "num_episodes": "episodes",
    "algorithm": "algorithm",
}  # fmt: skip
PONG = 35.3  # human - random points
STEPS = range(100, 1001, 100)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


OTHER = partial(Cell, algorithm="other", profile="cpu-1dev", drift=0.1, settings={"learning_rate": 1e-3})


def rows(scores, *, game="Pong-v5", algorithm="theirs", steps=STEPS, episodes=1):
    """Curves that stay at a score, one per seed."""
    return [
        {"algorithm": algorithm, "game": game, "seed": seed, "steps": step, "score": score, "episodes": episodes}
        for seed, score in enumerate(scores)
        for step in steps
    ]


def add(name, table, *, unit="env_steps", protocol="p"):
    pd.DataFrame(table).to_csv(f"{name}.csv", index=False)
    ingest.main("csv", Path(f"{name}.csv"), name, Declared(unit=unit, protocol=protocol, columns=COLUMNS), RESULTS)


def against(a, b, **options):
    return compare.compare(run_sets.find(a, RESULTS), run_sets.find(b, RESULTS), **options)


def test_area_test_enumerates_all_relabelings():
    constant = [np.tile([[value]], (1, 3)).astype(float) for value in (0, 1, 2, 3)]
    found = curve_tests.area_test(np.concatenate(constant[:2]), np.concatenate(constant[2:]))
    # |mean - mean| of the 6 relabelings: 2, 1, 0, 0, 1, 2
    assert (found.p_value, found.smallest_p) == (2 / 6, 2 / 6)
    uneven = curve_tests.area_test(np.zeros((3, 3)), np.full((1, 3), 5.0))
    assert (uneven.p_value, uneven.smallest_p) == (1 / 4, 1 / 4)


def test_area_test_sees_curves_that_cross():
    rising, falling = np.tile(np.arange(5.0), (4, 1)), np.tile(np.arange(5.0)[::-1], (4, 1))
    assert curve_tests.area_test(rising, falling).p_value == pytest.approx(2 / 70)
    assert curve_tests.area_test(rising, rising).p_value == 1.0


def test_area_test_leaves_gaps_out():
    a, b = np.array([[0.0, np.nan], [1.0, np.nan]]), np.array([[2.0, 7.0], [3.0, 7.0]])
    assert curve_tests.area_test(a, b).p_value >= 2 / 6
    nothing = curve_tests.area_test(np.array([[np.nan, 1.0]]), np.array([[1.0, np.nan]]))
    assert np.isnan(nothing.p_value)


def test_iqm_of_resamples_is_rliables_with_and_without_missing_runs():
    rng = np.random.default_rng(0)
    games = {name: rng.normal(size=(seeds, 6)) for name, seeds in (("a", 3), ("b", 5), ("c", 4))}
    games["b"][1, 4:] = np.nan
    expected = [statistics.iqm({name: v[~np.isnan(v[:, p]), p] for name, v in games.items()}) for p in range(6)]
    assert curve_tests.iqm_curve(games) == pytest.approx(expected, abs=1e-12)
    twice = curve_tests.iqm_of_weighted(np.arange(4.0)[:, None], np.array([[2.0, 0.0, 0.0, 2.0]]))
    assert twice[0, 0] == 1.5  # 0, 0, 3, 3 without the lowest and the highest
    games["a"][:, 0] = np.nan
    assert np.isnan(curve_tests.iqm_curve(games)[0])  # of other games


def test_bootstrap_of_curves_agrees_with_that_of_scores():
    """The same resamples as `bootstrap.replicates` at each bin."""
    from analysis.bootstrap import Cells, Resampling, bootstrap_draw, replicates

    games = {name: np.sort(np.random.default_rng(i).normal(size=(4, 1)), axis=0) for i, name in enumerate("ab")}
    resampling = Resampling(repetitions=100)
    cells = Cells.of({name: values.T for name, values in games.items()})
    expected = replicates(cells, ["iqm"], draw=bootstrap_draw("A", cells, resampling), resampling=resampling)["iqm"]
    assert curve_tests.bootstrapped_iqm(games, "A", resampling)[:, 0] == pytest.approx(expected[0])


def test_verdicts_of_constant_curves(capsys):
    add("low", rows([-20, -20, -20, -20]))
    add("high", rows([-10, -10, -10, -10]))
    found = against("low", "high", margin=0.1)
    (row,) = found.games.to_dict("records")
    assert row["area"] == row["largest_gap"] == pytest.approx(10 / PONG)
    assert row["relative_area"] == pytest.approx((10 / PONG) / ((20.7 - 20) / PONG))
    assert row["final_difference"] == pytest.approx(10 / PONG)
    assert (row["p_value"], row["smallest_p"]) == (pytest.approx(2 / 70), pytest.approx(2 / 70))
    assert row["floor_a_largest"] == 0.0
    for arguments, code in (
        (["low", "high", "--margin", "0.1"], 0), (["high", "low", "--margin", "0.1"], 1),
        (["low", "high", "--margin", "0.5"], 0), (["low", "high"], 2), (["low", "low"], 3), (["low", "none"], 3),
    ):  # fmt: skip
        assert main(["compare", *arguments]) == code
    assert "high against low" not in capsys.readouterr().err


def test_two_seeds_cannot_tell():
    add("a", rows([-20, -20]))
    add("b", rows([-20, -20]))
    found = against("a", "b", margin=0.1)
    assert (found.verdict, found.exit_code) == ("cannot tell (needs n >= 4 seeds)", 2)


def test_episodes_weigh_and_nothing_is_extrapolated():
    """One bin: returns of 0 over 3 episodes and of 4 over 1. A run that ends at half the budget has no later value."""
    for name in "ab":
        half = rows([0], steps=range(50, 501, 50), episodes=3) + rows([4], steps=range(45, 496, 50), episodes=1)
        table = sorted(half, key=lambda row: row["steps"])
        add(name, table + [row | {"seed": 1} for row in rows([0], steps=range(50, 1001, 50))] if name == "a" else table)
    found = against("a", "b", allow_mixed=True)
    curve = found.curves.query("set == 'A' and seed == 0")["episode_return"].to_numpy()
    assert curve[0] == 1.0
    assert np.isnan(run_sets.find("a", RESULTS).curves("Pong-v5", 1000, 10).query("seed == 0")["episode_return"][6])
    assert found.games["budget_env_steps"].tolist() == [500]


def test_aggregate_over_games_can_tell_with_three_seeds():
    rng = np.random.default_rng(1)
    games = ["Pong-v5", "Boxing-v5", "Breakout-v5", "Freeway-v5"]
    for name, shift in (("a", 0.0), ("b", 0.0), ("worse", -20.0)):
        add(name, [row for game in games for row in rows(20 + shift + rng.normal(size=3) / 10, game=game)])
    same = against("a", "b", margin=0.1)
    assert (same.verdict, same.exit_code) == ("same", 0)
    assert same.overall["word"] == "same"
    assert same.overall["p_value"] > 0.05
    worse = against("a", "worse", margin=0.1)
    assert worse.overall["word"] == "worse"
    assert worse.overall["p_value"] == worse.overall["smallest_p"] == pytest.approx(1 / 2000)
    assert worse.exit_code == 1
    assert worse.overall["floor_a_splits"] == 200


def test_no_game_hides_in_the_mean():
    games = ["Pong-v5", "Boxing-v5", "Breakout-v5", "Freeway-v5"]
    jitter = np.arange(4) / 100
    add("a", [row for game in games for row in rows(10 + jitter, game=game)])
    add("b", [row for game in games for row in rows((10 if game != "Pong-v5" else -20) + jitter, game=game)])
    found = against("a", "b", margin=0.3)
    assert found.overall["word"] != "worse"
    assert found.games.set_index("env_id")["word"].to_dict()["Pong-v5"] == "worse"
    assert (found.verdict, found.exit_code) == ("worse", 1)


def test_what_differs_is_refused_and_with_the_flag_said_on_every_product(capsys):
    add("a", rows([0, 0, 0, 0]))
    add("b", rows([0, 0, 0, 0], steps=range(400, 4001, 400)), unit="frames", protocol="q")
    assert main(["compare", "a", "b"]) == 3
    refused = capsys.readouterr().err
    assert "protocols differ or are unknown: p in a, q in b" in refused
    assert "units of the logged steps differ: env_steps in a, frames in b" in refused
    assert main(["compare", "a", "b", "--allow-mixed", "--margin", "1"]) == 0
    folder = RESULTS / "verdicts" / "a-vs-b"
    for said in (capsys.readouterr().out, *((folder / name).read_text() for name in ("games.md", "games.csv"))):
        assert "protocols differ or are unknown: p in a, q in b" in said
    assert len(json.loads((folder / "verdict.json").read_text())["mixed"]) == 2
    assert {path.suffix for path in folder.glob("curves_Pong-v5.*")} == {".png", ".svg"}
    found = against("a", "b", allow_mixed=True)
    from analysis import compare_figures

    for caption in (
        compare_figures.caption(found, found.games.iloc[0].to_dict()), compare_figures.strip_caption(found)
    ):  # fmt: skip
        assert "protocols differ or are unknown" in caption


def test_unknown_protocols_and_other_budgets_are_differences():
    add("a", rows([0, 0]), protocol=None)
    add("b", rows([0, 0], steps=range(90, 901, 90)), protocol=None)
    with pytest.raises(ValueError, match=r"unknown in a, unknown in b; budgets of Pong-v5 differ: 1,000 .* in a, 900"):
        against("a", "b")


def test_missing_games_are_named():
    add("a", rows([0, 0]))
    add("b", rows([0, 0]) + rows([0, 0], game="Qbert-v5"))
    with pytest.raises(ValueError, match=r"a has no Qbert-v5; allowed: --games shared \(1 games\)"):
        against("a", "b")
    with pytest.raises(ValueError, match="--games names Pong-v5 more than once; allowed: each game once"):
        against("a", "b", games=["Pong-v5", "Pong-v5"])
    assert against("a", "b", games=["shared"]).games["env_id"].tolist() == ["Pong-v5"]
    assert against("a", "b", games=["Pong-v5"]).games["env_id"].tolist() == ["Pong-v5"]


@pytest.mark.parametrize("stated", ["", ":x", "a:", "a@", "a@p", "a:none", "b"])
def test_a_run_set_is_one_system(stated):
    add("a", rows([0]))
    add("b", rows([0]) + rows([1], algorithm="other"))
    with pytest.raises(ValueError, match="allowed: "):
        run_sets.find(stated, RESULTS)
    assert run_sets.find("b:other", RESULTS).algorithm == "other"


def test_names_from_logs_are_escaped_and_stay_in_the_folder(capsys):
    add("a", rows([0, 0], game="../../x", algorithm="<script>|$x_1$"))
    add("b", rows([0, 0], game="../../x", algorithm="<script>|$x_1$"))
    name = "a:<script>|$x_1$"
    assert main(["compare", name, "b", "--margin", "1"]) == 2
    (folder,) = (RESULTS / "verdicts").iterdir()
    assert "<" not in folder.name
    text = (folder / "games.md").read_text()
    assert "<script>" not in text
    assert "&lt;script>" in text
    assert (folder / "curves_..%2F..%2Fx.png").is_file()


def test_own_runs_of_the_same_bits_are_the_same_with_two_seeds(capsys):
    for profile in ("cpu-1dev", "cpu-2dev"):
        for seed in (1, 2):
            write_run(RESULTS, Cell(profile=profile, seed=seed))
    for seed in (1, 2):
        write_run(RESULTS, OTHER(seed=seed))
    write_run(RESULTS, OTHER(seed=3), state="failed", reason="why")
    assert main(["compare", "synthetic:impala@cpu-1dev", "synthetic:impala@cpu-2dev", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["games"]
    assert (row["word"], row["identical"], row["area"]) == ("same", True, 0.0)
    assert row["run_pairs"] == row["identical_run_pairs"] == 2
    assert found["overall"] is None
    assert main(["compare", "synthetic:impala@cpu-1dev", "synthetic:other"]) == 2
    out = capsys.readouterr().out
    assert "Breakout-v5: fingerprints: 0 of 2 run pairs identical; first difference at update" in out
    assert "note: synthetic:other: Breakout-v5 seed 3 is failed and does not count (why)" in out
    assert main(["compare", "synthetic:impala", "synthetic:other"]) == 3
    assert "holds 2 systems; allowed: one of synthetic:impala@cpu-1dev" in capsys.readouterr().err


def test_the_same_bits_on_several_games_are_the_same_with_one_seed():
    for profile in ("a", "b"):
        for env_id in ("Breakout-v5", "Pong-v5"):
            write_run(RESULTS, Cell(env_id=env_id, profile=profile))
    found = against("synthetic@a", "synthetic@b", margin=0.1)
    assert (found.overall["word"], found.verdict, found.exit_code) == ("same", "same", 0)


def test_games_without_hns_are_compared_in_points():
    """Areas are those of the raw returns, the margin is in points, and both are said."""
    for profile, drift in (("a", 0.0), ("b", 0.0), ("c", 0.9)):
        for seed in (1, 2, 3, 4):
            write_run(RESULTS, Cell(env_id="CartPole-v1", profile=profile, seed=seed, drift=drift))
    found = against("synthetic@a", "synthetic@c", margin=5.0)
    (row,) = found.games.to_dict("records")
    means = found.curves.groupby(["set", "env_steps"])["episode_return"].mean()
    assert row["area"] == pytest.approx((means["B"] - means["A"]).abs().mean())
    assert (row["unit"], found.margin_unit, found.verdict) == ("points", "points", "better")
    assert "without random and human scores, hence in raw points: CartPole-v1" in found.notes
    assert against("synthetic@a", "synthetic@b", margin=5.0).verdict == "same"


@needed
def test_moolib_against_ppo_is_refused_and_with_the_flag_compared():
    """Three games of real curves: the aggregate can tell what three seeds on one game cannot."""
    games = ["Breakout-v5", "Freeway-v5", "Pong-v5"]
    for name, unit, columns in (
        ("moolib_atari_2021", "env_steps", {"steps": "env_train_steps", "episode_return": "mean_episode_return",
                                            "episodes_done": "episodes_done"}),
        ("ppo_atari57_dreamerv3", "frames", {"steps": "frames", "episode_return": "mean_return"}),
    ):  # fmt: skip
        table = pd.read_csv(DATA / "curves" / f"{name}.csv.gz")
        table.loc[table["env_id"].isin(games)].to_csv(f"{name}.csv", index=False)
        declared = Declared(unit=unit, protocol=name, columns={"env_id": "env_id", "seed": "seed", **columns})
        ingest.main("csv", Path(f"{name}.csv"), name[:3], declared, RESULTS)
    with pytest.raises(ValueError, match=r"protocols differ .*; units of the logged steps differ: env_steps in moo"):
        against("moo", "ppo")
    found = against("moo", "ppo", allow_mixed=True, margin=0.1)
    assert len(found.mixed) == 2
    by_game = found.games.set_index("env_id")
    assert by_game["seeds_a"].tolist() == [3, 3, 3]
    assert by_game["smallest_p"].tolist() == pytest.approx([1 / 56] * 3)
    # a second route, from the table itself: PPO's mean HNS on Breakout in the last fiftieth of the budget
    ppo = pd.read_csv("ppo_atari57_dreamerv3.csv").query("env_id == 'Breakout-v5' and frames > 196e6")
    mean = (ppo.groupby("seed")["mean_return"].mean().mean() - 1.7) / (30.5 - 1.7)
    last = found.curves.query("env_id == 'Breakout-v5' and set == 'B'").groupby("env_steps")["hns"].mean().iloc[-1]
    assert last == pytest.approx(mean)
    # the A/A floor of moolib's own three seeds, one against two
    assert (by_game["floor_a_splits"] == 3).all()
    assert (by_game["floor_a_seeds_per_side"] == 1).all()
    pong = found.curves.query("env_id == 'Pong-v5' and set == 'A'")
    pong = pong.pivot_table(index="env_steps", columns="seed", values="hns")
    areas = [(pong[seed] - pong.drop(columns=seed).mean(axis=1)).abs().mean() for seed in pong]
    assert by_game["floor_a_median"]["Pong-v5"] == pytest.approx(np.median(areas))
    assert by_game["floor_a_largest"]["Pong-v5"] == pytest.approx(max(areas))
