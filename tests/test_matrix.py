"""What a score matrix refuses, and that its sentence names the culprit."""

import numpy as np
import pandas as pd
import pytest

from analysis.matrix import ScoreMatrix, from_array, from_frame, same_games


def tidy(**scores):
    rows = [(env_id, seed, hns) for env_id, values in scores.items() for seed, hns in enumerate(values, 1)]
    return pd.DataFrame(rows, columns=["env_id", "seed", "hns"])


def test_games_are_sorted_and_seeds_may_be_ragged():
    matrix = ScoreMatrix("ppo", {"Pong-v5": np.array([1.0, 2.0]), "Alien-v5": np.array([0.5])})
    assert matrix.env_ids == ("Alien-v5", "Pong-v5")
    assert (matrix.num_games, matrix.num_runs, matrix.num_seeds) == (2, 3, (1, 2))
    assert matrix.describe() == "2 games x 1 to 2 seeds"


def test_a_matrix_cannot_be_changed():
    given = np.array([1.0, 2.0])
    matrix = ScoreMatrix("ppo", {"Pong-v5": given})
    given[0] = 9.0
    assert matrix.scores["Pong-v5"].tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        matrix.scores["Pong-v5"][0] = 9.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, "NaN", "Infinity", "1.5", None, True])
def test_what_is_no_finite_number_is_refused_with_its_game(bad):
    with pytest.raises(ValueError, match=r"^ppo: Pong-v5 has the score"):
        ScoreMatrix("ppo", {"Alien-v5": np.array([1.0]), "Pong-v5": np.array([1.0, bad], dtype=object)})
    with pytest.raises(ValueError, match=r"^ppo: Pong-v5 has the score"):
        from_frame(tidy(**{"Alien-v5": [1.0, 2.0], "Pong-v5": [1.0, bad]}), "ppo")


def test_a_column_of_strings_is_refused():
    frame = tidy(**{"Pong-v5": [1.0, 2.0]}).astype({"hns": str})
    with pytest.raises(ValueError, match=r"Pong-v5 has the score '1.0', a str; allowed: numbers"):
        from_frame(frame, "ppo")


def test_a_duplicate_run_is_refused():
    frame = pd.concat([tidy(**{"Pong-v5": [1.0, 2.0]}), tidy(**{"Pong-v5": [3.0]})])
    with pytest.raises(ValueError, match="Pong-v5 seed 1 has more than one score"):
        from_frame(frame, "ppo")
    with pytest.raises(ValueError, match="a seed twice"):
        ScoreMatrix("ppo", {"Pong-v5": np.array([1.0, 2.0])}, {"Pong-v5": (1, 1)})


def test_rows_of_two_algorithms_are_refused():
    with pytest.raises(ValueError, match="the rows mix algorithm impala, ppo"):
        from_frame(tidy(**{"Pong-v5": [1.0, 2.0]}).assign(algorithm=["impala", "ppo"]), "ppo")


def test_a_transposed_matrix_is_refused():
    games, seeds = ["Alien-v5", "Pong-v5"], [1, 2, 3]
    scores = np.arange(6.0).reshape(3, 2)
    assert from_array(scores, "ppo", env_ids=games, seeds=seeds).scores["Pong-v5"].tolist() == [1.0, 3.0, 5.0]
    with pytest.raises(ValueError, match=r"is 2 x 3; allowed: 3 seeds x 2 games \(it is transposed\)"):
        from_array(scores.T, "ppo", env_ids=games, seeds=seeds)
    with pytest.raises(ValueError, match="are the axes swapped"):
        from_array(scores.T, "ppo", env_ids=seeds, seeds=games)
    with pytest.raises(ValueError, match="are the axes swapped"):
        ScoreMatrix("ppo", {1: np.array([1.0])})  # type: ignore[dict-item]
    wide = pd.DataFrame(scores, index=seeds, columns=games)
    with pytest.raises(ValueError, match="column env_id, seed, hns is missing; found Alien-v5, Pong-v5"):
        from_frame(wide, "ppo")


def test_raw_scores_stated_as_normalised_are_refused_unless_asked_for():
    raw = tidy(**{"Alien-v5": [1500.0, 1600.0], "Breakout-v5": [300.0, 350.0], "Pong-v5": [20.0, 20.5]})
    with pytest.raises(ValueError, match="as raw points do"):
        from_frame(raw, "ppo")
    points = {"Alien-v5": 900.0, "Breakout-v5": 300.0, "Pong-v5": 20.0, "Qbert-v5": 700.0, "Venture-v5": 0.0}
    with pytest.raises(ValueError, match="median over games 300"):
        ScoreMatrix("ppo", {env_id: np.array([score]) for env_id, score in points.items()})
    one_large = {"Alien-v5": np.array([0.5]), "Pong-v5": np.array([0.9]), "Qbert-v5": np.array([15000.0])}
    with pytest.raises(ValueError, match="reach 15000 "):
        ScoreMatrix("ppo", one_large)
    assert from_frame(raw, "ppo", allow_large=True).unit == "hns"
    assert from_frame(raw.rename(columns={"hns": "episode_return"}), "ppo", value="episode_return").unit == "raw"


def test_the_largest_scores_published_are_accepted():
    """VideoPinball's 999,999 points under the table that puts random play at 16,256.9 (697 times human)."""
    ScoreMatrix("agent57", {"VideoPinball-v5": np.array([(999_999 - 16256.9) / 1411.0])})


def test_subsets_name_what_is_missing():
    matrix = ScoreMatrix("ppo", {"Alien-v5": np.array([1.0, 2.0]), "Pong-v5": np.array([3.0])})
    assert matrix.subset(["Pong-v5"]).scores["Pong-v5"].tolist() == [3.0]
    with pytest.raises(ValueError, match="ppo: no scores of Qbert-v5; it has Alien-v5, Pong-v5"):
        matrix.subset(["Pong-v5", "Qbert-v5"])


def test_systems_that_do_not_match_are_refused():
    one = ScoreMatrix("a", {"Alien-v5": np.array([1.0]), "Pong-v5": np.array([1.0])})
    with pytest.raises(ValueError, match="only one has Alien-v5"):
        same_games([one, ScoreMatrix("b", {"Pong-v5": np.array([1.0])})])
    with pytest.raises(ValueError, match="a is in hns, b in raw"):
        same_games([one, ScoreMatrix("b", dict(one.scores), unit="raw")])
    with pytest.raises(ValueError, match="a name occurs twice"):
        same_games([one, one])
    with pytest.raises(ValueError, match="at least one"):
        same_games([])


@pytest.mark.parametrize("scores", [{}, {"Pong-v5": []}, {"Pong-v5": [[1.0, 2.0]]}, {"Pong-v5": 1.0}])
def test_shapes_that_are_no_row_of_seeds_are_refused(scores):
    with pytest.raises(ValueError, match=r"allowed: one score per seed|has no game"):
        ScoreMatrix("ppo", scores)
