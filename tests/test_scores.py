"""Score tables: hand-computed HNS, refusals that name the cell, and the diff that finds what refusals cannot."""

import subprocess
import sys

import numpy as np
import pytest

from analysis import scores
from analysis.scores import ATARI57, SUBSETS, TABLES, ScoreTable, diff, read_table, subset

ZOO = TABLES["atari57_dqn_zoo"]


def changed(env_id: str, random: float, human: float) -> dict[str, tuple[float, float]]:
    return {**ZOO.scores, env_id: (random, human)}


def test_hns_is_a_fraction_of_the_human_margin():
    assert ZOO.hns("Breakout-v5", 1.7) == 0.0
    assert ZOO.hns("Breakout-v5", 30.5) == 1.0
    assert ZOO.hns("Breakout-v5", np.array([1.7, 16.1, 59.3])) == pytest.approx([0.0, 0.5, 2.0])
    assert ZOO.hns("Skiing-v5", -4336.9) == 1.0  # negative scores


def test_names_sizes_and_hashes():
    assert len(ATARI57) == 57
    assert list(ATARI57) == sorted(set(ATARI57))
    assert {name: len(games) for name, games in SUBSETS.items()} == {"atari57": 57, "atari55": 55, "atari5": 5}
    assert set(ATARI57) - set(SUBSETS["atari55"]) == {"Defender-v5", "Surround-v5"}
    # A changed cell is a changed hash: these are part of every product ever printed.
    assert ZOO.label == "atari57_dqn_zoo v1 (7ca7c807470a)"
    assert TABLES["atari57_pinball_zero"].hash == "6e7875e46fbd"


def test_hash_is_of_the_cells_alone():
    shuffled = ScoreTable("other", "v9", dict(reversed(list(ZOO.scores.items()))))
    assert shuffled.hash == ZOO.hash
    assert ScoreTable("other", "v9", changed("Pong-v5", -20.7, 14.7)).hash != ZOO.hash


def test_the_circulating_tables_differ_in_one_cell():
    (cell,) = diff(TABLES["atari57_pinball_zero"], ZOO)
    assert cell == ("VideoPinball-v5", "random_score", 0.0, 16256.9)
    assert str(cell) == "VideoPinball-v5 random_score: 0, reference 16256.9"
    assert diff(ZOO, ZOO) == []


def test_a_sign_error_passes_the_order_check_and_is_found_by_the_diff():
    table = ScoreTable("mine", "v1", changed("FishingDerby-v5", -91.7, 38.7))
    assert diff(table, ZOO) == [("FishingDerby-v5", "human_score", 38.7, -38.7)]


@pytest.mark.parametrize(
    ("random", "human"),
    [(16.0, 16.0), (20452.0, 15641.1), (0.0, float("nan")), (float("-inf"), 1.0)],  # the second is Wang et al.'s
)
def test_human_not_above_random_is_refused(random, human):
    with pytest.raises(
        ValueError, match=r"VideoPinball-v5: human score .* allowed: finite numbers, human above random"
    ):
        ScoreTable("mine", "v1", changed("VideoPinball-v5", random, human))


def test_unknown_game_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown game 'Breakou-v5'; nearest: Breakout-v5"):
        ScoreTable("mine", "v1", {"Breakou-v5": (0.0, 1.0)})
    with pytest.raises(ValueError, match="HNS: unknown game 'Pong'; nearest: Pong-v5"):
        ZOO.hns("Pong", 3.0)
    with pytest.raises(ValueError, match=r"experiments/x.yaml: unknown game 'CartPole'; nearest: CartPole-v1"):
        scores.check_games(["CartPole"], where="experiments/x.yaml", known=(*ATARI57, "CartPole-v1"))


def test_missing_game_is_refused():
    lacking = {game: cells for game, cells in ZOO.scores.items() if game != "Zaxxon-v5"}
    with pytest.raises(ValueError, match="score table mine lacks 1 of the 57 games: Zaxxon-v5"):
        ScoreTable("mine", "v1", lacking)


def test_subset_takes_a_name_or_a_list():
    assert subset("atari5")[0] == "BattleZone-v5"
    assert subset(["Pong-v5", "Alien-v5"]) == ("Alien-v5", "Pong-v5")
    with pytest.raises(ValueError, match="unknown subset 'atari50'; allowed: atari57, atari55, atari5 or a list"):
        subset("atari50")
    with pytest.raises(ValueError, match="names Pong-v5 more than once"):
        subset(["Pong-v5", "Pong-v5"])


def write(path, lines):
    path.write_text("\n".join(["env_id,random_score,human_score", *lines]) + "\n")
    return path


def rows(table: dict[str, tuple[float, float]]) -> list[str]:
    return [f"{game},{random},{human}" for game, (random, human) in table.items()]


def test_a_users_table_round_trips(tmp_path):
    table = read_table(write(tmp_path / "mine.csv", rows(dict(ZOO.scores))))
    assert (table.name, table.hash) == ("mine", ZOO.hash)
    assert scores.resolve(str(tmp_path / "mine.csv")).hash == ZOO.hash
    assert scores.resolve("atari57_dqn_zoo") is ZOO
    with pytest.raises(
        ValueError, match="unknown score table 'atari'; allowed: atari57_dqn_zoo, atari57_pinball_zero or"
    ):
        scores.resolve("atari")


def test_a_users_table_is_refused_with_its_file_named(tmp_path):
    good = rows(dict(ZOO.scores))
    with pytest.raises(ValueError, match=r"twice.csv: Alien-v5 stands twice"):
        read_table(write(tmp_path / "twice.csv", [good[0], *good]))
    with pytest.raises(ValueError, match=r"text.csv, Alien-v5: human_score is 'n/a'; allowed: a number"):
        read_table(write(tmp_path / "text.csv", ["Alien-v5,0,n/a", *good[1:]]))
    with pytest.raises(ValueError, match=r"nan.csv: score table nan, Alien-v5: human score nan"):
        read_table(write(tmp_path / "nan.csv", ["Alien-v5,0,NaN", *good[1:]]))
    (tmp_path / "columns.csv").write_text("game,random_score,human_score\nAlien-v5,1,2\n")
    with pytest.raises(ValueError, match=r"columns.csv: no column env_id; needed: env_id, random_score, human_score"):
        read_table(tmp_path / "columns.csv")


def test_scores_import_the_standard_library_only():
    code = "import sys, analysis.scores; print([m for m in ('numpy', 'pandas', 'jax', 'envpool') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
