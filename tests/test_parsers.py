"""Every parser reads what was logged, number for number, and refuses what cannot be read in one sentence."""

import gzip
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cells import ROOT
from curves_of_others import DATA, needed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis import foreign_events, foreign_logs, foreign_scores
from analysis.foreign import Declared, continued, game, latest_rows
from analysis.foreign_text import read_text

PONG = Declared(env_id="Pong-v5", seed=1)
MOOLIB = ["local/mean_episode_return", "local/env_train_steps", "local/optimizer_steps", "local/episodes_done"]
COLUMNS = {"env_id": "game", "seed": "seed", "steps": "x", "episode_return": "y"}
TABLE = Declared(unit="env_steps", columns=COLUMNS)

finite = st.floats(allow_nan=False, allow_infinity=False)
returns = st.lists(st.none() | st.just(math.nan) | finite, min_size=1, max_size=30)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def cell(value: float | None) -> str:
    return "" if value is None else repr(value)


def table(rows, header, *, separator=",", end="\n") -> str:
    return "".join(separator.join(map(str, row)) + end for row in [header, *rows])


def moolib_rows(values, steps=None):
    steps = steps or [640 * row for row in range(len(values))]
    return [[cell(value), step, step // 640, step // 64] for value, step in zip(values, steps)]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, newline="")
    return path


def moolib_log(folder: Path, rows, **more) -> Path:
    return write(folder / "logs.tsv", table(rows, MOOLIB, separator="\t", **more))


def expect(curve: pd.DataFrame, column: str, values) -> None:
    np.testing.assert_array_equal(curve[column], [math.nan if value is None else value for value in values])


# --- numbers, blanks, line ends, torn lines: for every text parser ---


def moolib_text(values, end):
    return table(moolib_rows(values), MOOLIB, separator="\t", end=end)


def monobeast_text(values, end):
    rows = [[row, 100.0 + row, 640 * row, cell(value)] for row, value in enumerate(values)]
    return table(rows, ["# _tick", "_time", "step", "mean_episode_return"], end=end)


def rllib_text(values, end):
    rows = [[cell(value), 640 * row] for row, value in enumerate(values)]
    return table(rows, ["episode_reward_mean", "timesteps_total"], end=end)


def csv_text(values, end, separator=","):
    rows = [["Pong-v5", 1, 640 * row, cell(value)] for row, value in enumerate(values)]
    return table(rows, COLUMNS.values(), separator=separator, end=end)


def tsv_text(values, end):
    return csv_text(values, end, separator="\t")


# file name, how it is written, how it is read
TEXTS = {
    "moolib": ("logs.tsv", moolib_text, lambda path: foreign_logs.moolib(path, PONG)),
    "monobeast": ("logs.csv", monobeast_text, lambda path: foreign_logs.monobeast(path, PONG)),
    "rllib": ("progress.csv", rllib_text, lambda path: foreign_logs.rllib(path, PONG)),
    "csv": ("t.csv", csv_text, lambda path: foreign_scores.csv(path, TABLE)),
    "tsv": ("t.tsv.gz", tsv_text, lambda path: foreign_scores.csv(path, TABLE)),
}


def parse_text(kind: str, folder: Path, values, *, end: str = "\n", cut: int = 0):
    """The one run of a log of these returns, of whose text the last `cut` characters are missing."""
    name, as_text, parse = TEXTS[kind]
    text = as_text(values, end)
    content = text[: len(text) - cut].encode()
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (run,) = parse(path)
    return run


@pytest.mark.parametrize("kind", TEXTS)
@quick
@given(values=returns, end=st.sampled_from(["\n", "\r\n"]))
def test_every_number_arrives_as_it_was_written(tmp_path, kind, values, end):
    """Negative values, exponents, the smallest and largest doubles, nan, blanks; both line ends."""
    run = parse_text(kind, tmp_path, values, end=end)
    expect(run.curve, "episode_return", values)
    expect(run.curve, "steps", [640 * row for row in range(len(values))])
    assert run.unit == "env_steps"


@pytest.mark.parametrize("kind", TEXTS)
@quick
@given(values=returns, end=st.sampled_from(["\n", "\r\n"]), cut=st.integers(1, 6))
def test_a_torn_last_line_is_dropped_and_noted(tmp_path, kind, values, end, cut):
    run = parse_text(kind, tmp_path, [*values, 1.25], end=end, cut=cut)
    expect(run.curve, "episode_return", values)
    assert sum("a torn last line" in note for note in run.notes) == 1


@pytest.mark.parametrize("kind", TEXTS)
def test_a_whole_last_line_is_kept(tmp_path, kind):
    run = parse_text(kind, tmp_path, [None, 1.25])
    expect(run.curve, "episode_return", [None, 1.25])
    assert not any("torn" in note for note in run.notes)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("wrong", [math.inf, -math.inf])
def test_an_infinite_return_is_refused(tmp_path, kind, wrong):
    with pytest.raises(ValueError, match=rf"line 3: \S+ is '{wrong}'; allowed: a finite number, NaN, or blank"):
        parse_text(kind, tmp_path, [1.0, wrong, 2.0])


@quick
@given(values=st.lists(finite, min_size=1, max_size=30), end=st.sampled_from(["\n", "\r\n"]), cut=st.integers(0, 6))
def test_every_episode_of_a_monitor_arrives(tmp_path, values, end, cut):
    """A monitor has no row without a return; the last line may be torn."""
    text = (
        '#{"t_start": 5.0, "env_id": "Pong-v5"}'
        + end
        + table([[repr(value), 7, 0.5 * row] for row, value in enumerate([*values, 1.25])], ["r", "l", "t"], end=end)
    )
    path = write(tmp_path / "monitor.csv", text[: len(text) - cut])
    (run,) = foreign_logs.stable_baselines3(path, Declared(unit="frames"))
    kept = [*values, 1.25] if cut == 0 else values
    expect(run.curve, "episode_return", kept)
    expect(run.curve, "steps", [7 * (row + 1) for row in range(len(kept))])
    expect(run.curve, "wall_seconds", [0.5 * row for row in range(len(kept))])


@quick
@given(values=returns)
def test_every_number_of_a_parquet_file_arrives(tmp_path, values):
    frame = pd.DataFrame({"game": "Pong-v5", "seed": 1, "x": range(len(values)), "y": pd.Series(values, dtype=float)})
    frame.to_parquet(tmp_path / "t.parquet")
    (run,) = foreign_scores.parquet(tmp_path / "t.parquet", TABLE)
    expect(run.curve, "episode_return", values)
    frame.assign(y=[*values[:-1], math.inf]).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=rf"t.parquet, row {len(values)}: y is inf; allowed: a finite number, NaN"):
        foreign_scores.parquet(tmp_path / "t.parquet", TABLE)


@quick
@given(values=returns)
def test_every_number_of_score_files_arrives(tmp_path, values):
    dreamer = [{"task": "atari_pong", "method": "m", "seed": "0", "xs": list(range(len(values))), "ys": values}]
    (run,) = foreign_scores.dreamerv3(write(tmp_path / "d.json", json.dumps(dreamer)), Declared())
    expect(run.curve, "episode_return", values)
    numbers = [0.0 if value is None else value for value in values]
    dopamine = [{"Agent": "DQN", "Iteration": row, "Value": value} for row, value in enumerate(numbers)]
    (run,) = foreign_scores.dopamine(write(tmp_path / "pong.json", json.dumps(dopamine)), Declared())
    expect(run.curve, "episode_return", numbers)


@pytest.mark.parametrize("wrong", ["nan", "inf", "-1", "", "12x"])
def test_steps_must_be_numbers_from_zero(tmp_path, wrong):
    path = write(tmp_path / "t.csv", table([["Pong-v5", 1, 0, 1.0], ["Pong-v5", 1, wrong, 1.0]], COLUMNS.values()))
    with pytest.raises(ValueError, match=rf"t.csv, line 3: x is '{wrong}'; allowed: "):
        foreign_scores.csv(path, TABLE)


def test_a_line_torn_in_the_middle_is_refused(tmp_path):
    text = table(moolib_rows([1.0, 2.0]), MOOLIB, separator="\t").rstrip("\n") + "3.0\t1280\t2\t20\n"
    with pytest.raises(ValueError, match=r"logs.tsv, line 3: has 7 cells; allowed: 4, as its header"):
        foreign_logs.moolib(write(tmp_path / "logs.tsv", text), PONG)


def test_a_missing_column_is_named(tmp_path):
    path = write(tmp_path / "logs.tsv", "local/SPS\tlocal/env_train_steps\n")
    with pytest.raises(ValueError, match=r"no column 'local/mean_episode_return'; allowed: local/SPS, local/env_train"):
        foreign_logs.moolib(path, PONG)


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no column 'local/env_train_steps'; allowed: none, the file is empty"):
        foreign_logs.moolib(write(tmp_path / "logs.tsv", ""), PONG)


# --- restarts ---


def test_later_rows_count_where_steps_go_back():
    steps = np.array([0, 100, 200, 300, 200, 250, 100, 400.0])
    assert latest_rows(steps).tolist() == [True, False, False, False, False, False, True, True]
    assert latest_rows(np.array([0, 100, 100, 200.0])).all()  # two rows of one step are no restart
    assert latest_rows(np.zeros(0)).tolist() == []


@quick
@given(st.lists(st.integers(0, 20), min_size=1, max_size=30))
def test_what_counts_never_goes_back_and_ends_where_the_log_does(steps):
    kept = np.array(steps, dtype=float)[latest_rows(np.array(steps, dtype=float))]
    assert (np.diff(kept) >= 0).all()
    assert kept[-1] == steps[-1]


def test_a_counter_that_starts_again_goes_on():
    raw = np.array([0, 5, 9, 0, 4, 0, 0, 2.0])
    assert continued(raw, np.array([0, 0, 0, 1, 0, 1, 0, 0]) > 0).tolist() == [0, 5, 9, 9, 13, 13, 13, 15]


def test_a_moolib_log_appended_after_a_restart(tmp_path):
    """No second header; the new process counts env steps and episodes from zero."""
    path = moolib_log(tmp_path, moolib_rows([None, 1.0, 2.0, None, 3.0], [0, 640, 1280, 0, 640]), end="\r\n")
    (run,) = foreign_logs.moolib(path, PONG)
    expect(run.curve, "steps", [0, 640, 1280, 1280, 1920])
    expect(run.curve, "num_episodes", [0, 10, 10, 0, 10])
    assert "1 restarts" in run.notes[0]


def test_a_moolib_log_that_goes_back_to_a_checkpoint(tmp_path):
    rows = moolib_rows([None, 1.0, 2.0, 5.0, 6.0], [0, 640, 1280, 640, 1280])
    (run,) = foreign_logs.moolib(moolib_log(tmp_path, rows), PONG)
    expect(run.curve, "episode_return", [None, 5.0, 6.0])
    expect(run.curve, "num_episodes", [0, 10, 10])


def test_monobeast_trains_from_zero_after_a_restart(tmp_path):
    text = (
        "# _tick,_time,step,mean_episode_return\r\n0,10.0,0,nan\r\n1,11.0,640,1.0\r\n2,50.0,0,nan\r\n3,51.5,640,2.5\r\n"
    )
    (run,) = foreign_logs.monobeast(write(tmp_path / "logs.csv", text), PONG)
    expect(run.curve, "episode_return", [None, 2.5])
    expect(run.curve, "wall_seconds", [40.0, 41.5])
    assert "1 restarts" in run.notes[0]


# --- what is particular to a source ---


def test_moolib_peers_stand_on_one_axis(tmp_path):
    """Two peers share every optimizer step: together they have the env steps of both."""
    meta = {"flags": {"env": {"name": "ALE/Pong-v5"}, "unroll_length": 20}, "env": {"API_KEY": "secret"}}
    for peer, second in (("a:1:x", 640), ("b:2:y", 320)):
        folder = tmp_path / "Pong-7" / "peers" / peer
        rows = moolib_rows([None, 1.0, 2.0], [0, second, 1280])
        for row in rows:
            row[2] = row[1] / 320  # each peer does half of the 640 env steps of an optimizer step
        moolib_log(folder, rows)
        write(folder / "meta.json", json.dumps(meta))
    (run,) = foreign_logs.moolib(tmp_path, Declared(folder_pattern="{env_id}-{seed}"))
    expect(run.curve, "steps", [0, 0, 640, 1280, 2560, 2560])
    assert (run.env_id, run.seed, len(run.files)) == ("Pong", 7, 2)
    assert run.producer["flags"]["unroll_length"] == 20
    assert "secret" not in json.dumps(run.producer)


def test_moolib_peers_that_did_not_train_together_are_refused(tmp_path):
    moolib_log(tmp_path / "peers" / "a", moolib_rows([1.0, 2.0], [0, 6400]))
    moolib_log(tmp_path / "peers" / "b", moolib_rows([1.0, 2.0], [0, 640]))
    with pytest.raises(ValueError, match=r"a peer ends at 1 optimizer steps, another at 10; allowed: peers that"):
        foreign_logs.moolib(tmp_path, PONG)


def test_monobeast_columns_that_appear_mid_file(tmp_path):
    """As torchbeast's file writer does it: the header has the first row's columns, fields.csv those of all rows."""
    first = ["_tick", "_time", "step"]
    added = [*first, "mean_episode_return", "episode_returns"]
    rows = [
        [0, 1.0, 0],
        [1, 2.0, 640, "nan", "()"],
        [2, 3.5, 1280, -1.5, '"(-1.0, -2.0)"'],
        [3, 4.0, 1920, 2.0, '"(2.0,)"'],
    ]
    text = "# " + ",".join(first) + "\n" + "".join(",".join(map(str, row)) + "\r\n" for row in rows)
    path = write(tmp_path / "Pong" / "logs.csv", text)
    write(path.with_name("fields.csv"), ",".join(first) + "\r\n" + ",".join(added) + "\r\n")
    write(path.with_name("meta.json"), json.dumps({"args": {"env": "PongNoFrameskip-v4", "seed": 3}}))
    (run,) = foreign_logs.monobeast(tmp_path, Declared())
    expect(run.curve, "episode_return", [None, None, -1.5, 2.0])
    expect(run.curve, "num_episodes", [None, 0, 2, 1])
    expect(run.curve, "wall_seconds", [0.0, 1.0, 2.5, 3.0])
    assert (run.env_id, run.seed, game(run.env_id)) == ("PongNoFrameskip-v4", 3, "Pong-v5")


@quick
@given(listed=st.lists(st.lists(finite, max_size=5), min_size=1, max_size=10), end=st.sampled_from(["\n", "\r\n"]))
def test_every_listed_episode_of_polybeast_counts(tmp_path, listed, end):
    """A row lists the returns of its episodes as Python writes a tuple, negative, with exponents, or none."""
    rows = [[row, 1.0, 640 * row, 1.0, f'"{tuple(values)}"'] for row, values in enumerate(listed)]
    text = table(rows, ["# _tick", "_time", "step", "mean_episode_return", "episode_returns"], end=end)
    (run,) = foreign_logs.monobeast(write(tmp_path / "logs.csv", text), PONG)
    expect(run.curve, "num_episodes", [len(values) for values in listed])


def test_monobeast_with_another_runs_fields_is_refused(tmp_path):
    path = write(tmp_path / "logs.csv", "# _tick,_time,step,mean_episode_return\n")
    write(tmp_path / "fields.csv", "_tick,step\n")
    with pytest.raises(ValueError, match=r"its last line does not begin with the columns of logs.csv"):
        foreign_logs.monobeast(path, PONG)


def test_a_longer_row_without_fields_is_refused(tmp_path):
    path = write(tmp_path / "logs.csv", "# _tick,_time,step,mean_episode_return\n0,1.0,0,1.0,7\n")
    with pytest.raises(ValueError, match=r"logs.csv, line 2: has 5 cells; allowed: 4"):
        foreign_logs.monobeast(path, PONG)


def test_stable_baselines_envs_in_the_order_of_their_clocks(tmp_path):
    head = '#{"t_start": %s, "env_id": "CartPole-v1"}\n'
    write(tmp_path / "0.monitor.csv", head % 100.0 + "r,l,t\n1.0,10,1.0\n-2e1,20,5.0\n3.0,5,2.0\n")
    write(tmp_path / "1.monitor.csv", head % 101.0 + "r,l,t\n7.0,30,3.0\n")
    (run,) = foreign_logs.stable_baselines3(tmp_path, Declared(unit="env_steps"))
    expect(run.curve, "steps", [10, 40, 60, 65])
    expect(run.curve, "episode_return", [1.0, 7.0, -20.0, 3.0])
    expect(run.curve, "wall_seconds", [1.0, 4.0, 5.0, 7.0])  # the third row of env 0: after a restart at 5.0
    assert run.curve["num_episodes"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("r,l,t\n1,2,3\n", "line 1: is 'r,l,t"),
        ('#{"t_start": 1}\nr,l,t\n1.0,0,3.0\n', "episode 1: l is 0.0; allowed: a number, l above 0"),
        ('#{"t_start": 1}\nr,l,t\n1.0,5,3.0\nnan,5,4.0\n', "episode 2: r is nan; allowed"),
        ('#{"t_start": 1}\r\nr,l,t\r\n1.0,5,3.0\r\n,5,4.0\r\n', "episode 2: r is nan; allowed"),
        ('#{"t_start": 1}\nr,l,t\n-inf,5,3.0\n', "line 3: r is '-inf'; allowed: a finite number"),
    ],
)
def test_a_monitor_that_is_none_is_refused(tmp_path, text, words):
    write(tmp_path / "monitor.csv", text)
    with pytest.raises(ValueError, match=words):
        foreign_logs.stable_baselines3(tmp_path, Declared(env_id="Pong-v5", unit="frames"))


def test_a_monitor_needs_its_unit(tmp_path):
    with pytest.raises(ValueError, match=r"so it does not say what its steps are; needed: --unit env_steps or"):
        foreign_logs.stable_baselines3(tmp_path, PONG)


def test_rllib_with_its_params_and_its_new_names(tmp_path):
    header = [
        "env_runners/episode_return_mean",
        "num_env_steps_sampled_lifetime",
        "time_total_s",
        "env_runners/num_episodes",
    ]
    write(tmp_path / "progress.csv", table([["nan", 100, 1.5, 0], [2.0, 200, 3.0, 4], [9.0, 200, 5.0, 3]], header))
    write(tmp_path / "params.json", json.dumps({"env": "ALE/Breakout-v5", "seed": 9}))
    (run,) = foreign_logs.rllib(tmp_path, Declared())
    assert (run.env_id, run.seed) == ("ALE/Breakout-v5", 9)
    expect(run.curve, "num_episodes", [0, 4, 3])
    expect(run.curve, "wall_seconds", [1.5, 3.0, 5.0])
    assert "mean over its last episodes" in run.notes[0]


def test_dopamine_runs_follow_each_other(tmp_path):
    points = [(0, 1.0, "DQN"), (1, 2.0, "DQN"), (0, 3.0, "DQN"), (1, -4.0, "DQN"), (0, 5.0, "IQN")]
    rows = [{"Iteration": iteration, "Value": value, "Agent": agent} for iteration, value, agent in points]
    runs = foreign_scores.dopamine(write(tmp_path / "airraid.json", json.dumps(rows)), Declared())
    assert [(run.algorithm, run.env_id, run.unit) for run in runs] == [
        ("DQN", "airraid", "frames"), ("DQN", "airraid", "frames"), ("IQN", "airraid", "frames"),
    ]  # fmt: skip
    expect(runs[1].curve, "steps", [1_000_000, 2_000_000])
    expect(runs[1].curve, "episode_return", [3.0, -4.0])
    for wrong in (math.inf, -math.inf):
        write(tmp_path / "airraid.json", json.dumps([rows[0] | {"Value": wrong}]))
        with pytest.raises(ValueError, match=rf"point 1: steps 1000000.0, return {wrong}; allowed: finite numbers"):
            foreign_scores.dopamine(tmp_path, Declared())
    write(tmp_path / "airraid.json", json.dumps(rows[:1] * 2))
    with pytest.raises(ValueError, match=r"DQN has iteration 0 twice in a row; allowed: run after run"):
        foreign_scores.dopamine(tmp_path, Declared())


def test_dreamerv3_scores(tmp_path):
    runs = [{"task": "atari_james_bond", "method": "ppo", "seed": "2", "xs": [400, 800], "ys": [None, -1.5e3]}]
    path = tmp_path / "scores.json.gz"
    path.write_bytes(gzip.compress(json.dumps(runs).encode()))
    (run,) = foreign_scores.dreamerv3(path, Declared())
    assert (game(run.env_id), run.seed, run.algorithm, run.unit) == ("Jamesbond-v5", 2, "ppo", "frames")
    expect(run.curve, "episode_return", [None, -1500.0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "dmc_walker"}, r"run 1 \(dmc_walker\): frames per env step are unknown outside Atari"),
        ({"ys": [1.0]}, "2 xs and 1 ys; allowed: as many of both"),
        ({"xs": [800, 400]}, "point 2: steps 400.0, return 2.0; allowed: finite numbers, steps from 0 that never"),
        ({"ys": [1.0, float("inf")]}, "point 2: steps 800.0, return inf; allowed"),
        ({"ys": ["a", 1.0]}, "could not convert string"),
        ({"seed": "x"}, "the seed is 'x'; allowed: a whole number"),
        ({"xs": None}, "object 1: xs is None; allowed: a list"),
    ],
)
def test_scores_that_are_none_are_refused(tmp_path, changes, words):
    run = {"task": "atari_pong", "method": "ppo", "seed": "2", "xs": [400, 800], "ys": [1.0, 2.0]} | changes
    path = write(tmp_path / "scores.json", json.dumps([run]))
    with pytest.raises(ValueError, match=words):
        foreign_scores.dreamerv3(path, Declared())


def test_a_torn_archive_is_refused(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(table([["Pong-v5", 1, 0, 1.0]] * 1000, COLUMNS.values()).encode())[:-20])
    with pytest.raises(ValueError, match=r"cannot be read as gzip .*; allowed: the whole file"):
        foreign_scores.csv(path, TABLE)


def test_parquet_and_csv_give_the_same(tmp_path):
    frame = pd.DataFrame(
        {"game": ["Pong-v5"] * 3 + ["Qbert-v5"], "seed": [1, 1, 2, 1], "x": [0, 5, 0, 0], "y": [1, np.nan, -2e-3, 4]}
    )
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    pairs = zip(foreign_scores.parquet(tmp_path / "t.parquet", TABLE), foreign_scores.csv(tmp_path / "t.csv", TABLE))
    for ours, theirs in pairs:
        assert (ours.env_id, ours.seed) == (theirs.env_id, theirs.seed)
        pd.testing.assert_frame_equal(ours.curve, theirs.curve)
    with pytest.raises(ValueError, match=r"t.csv: cannot be read as Parquet"):
        foreign_scores.parquet(tmp_path / "t.csv", TABLE)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (Declared(columns=COLUMNS), "csv does not say what its steps are; needed: --unit env_steps or --unit frames"),
        (Declared(unit="steps", columns=COLUMNS), "--unit is 'steps'; allowed: env_steps, frames"),
        (Declared(unit="frames", columns={"y": "y"}), "--columns: 'y' is unknown; allowed: algorithm, env_id"),
        (Declared(unit="frames", columns={"steps": "x"}), "csv needs --columns episode_return=COLUMN"),
        (Declared(unit="frames", columns=COLUMNS | {"steps": "z"}), "no column 'z'; allowed: game, seed, x, y"),
    ],
)
def test_what_a_table_does_not_say_must_be_declared(tmp_path, declared, words):
    path = write(tmp_path / "t.csv", table([["Pong-v5", 1, 0, 1.0]], COLUMNS.values()))
    with pytest.raises(ValueError, match=words):
        foreign_scores.csv(path, declared)


def test_a_declared_unit_may_not_contradict_the_source(tmp_path):
    with pytest.raises(ValueError, match=r"--unit is frames, but moolib counts env_steps; allowed: env_steps"):
        foreign_logs.moolib(moolib_log(tmp_path, moolib_rows([1.0])), Declared(env_id="Pong-v5", unit="frames"))


def test_a_log_without_a_game_asks_for_it(tmp_path):
    with pytest.raises(ValueError, match=r"no game is named; needed: meta.json with flags.env.name, --env-id, or"):
        foreign_logs.moolib(moolib_log(tmp_path, moolib_rows([1.0])), Declared())


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("ALE/Pong-v5", "Pong-v5"), ("PongNoFrameskip-v4", "Pong-v5"), ("atari_ms_pacman", "MsPacman-v5"),
        ("UpNDown", "UpNDown-v5"), ("airraid", "AirRaid-v5"), ("CartPole-v1", None), ("dmc_pong", None),
    ],
)  # fmt: skip
def test_games_by_the_names_in_use(name, env_id):
    assert game(name) == env_id


# --- TensorBoard ---


def events(folder: Path, scalars, *, text: str = "", suffix: str = ""):
    """An event file as CleanRL's writer makes it: scalars of (tag, step, value, seconds), flags as text."""
    writer_module = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason="tensorboard is absent")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = writer_module.EventFileWriter(str(folder), filename_suffix=suffix)
    if text:
        about = create_summary_metadata(display_name="", description="")
        value = Summary.Value(
            tag="hyperparameters/text_summary", metadata=about, tensor=make_tensor_proto([text.encode()])
        )
        writer.add_event(Event(step=0, wall_time=99.0, summary=Summary(value=[value])))
    for tag, step, number, seconds in scalars:
        value = Summary.Value(tag=tag, simple_value=number)
        writer.add_event(Event(step=step, wall_time=seconds, summary=Summary(value=[value])))
    writer.close()


FLAGS = "|param|value|\n|-|-|\n|env_id|Pong-v5|\n|exp_name|ppo|\n|seed|4|"
RETURN = "charts/episodic_return"


def test_events_of_cleanrl_with_a_restart(tmp_path):
    logged = [(RETURN, 128, -21.0, 100.0), ("charts/SPS", 128, 9.0, 100.0), (RETURN, 256, -1.5e1, 103.0)]
    events(tmp_path, logged, text=FLAGS, suffix=".a")
    events(tmp_path, [(RETURN, 256, math.nan, 150.0), (RETURN, 256, 3.0, 150.0)], suffix=".b")
    with pytest.raises(ValueError, match=r"tensorboard does not say what its steps are; needed: --unit env_steps or"):
        foreign_events.tensorboard(tmp_path, Declared())
    (run,) = foreign_events.tensorboard(tmp_path, Declared(unit="env_steps"))
    assert (run.env_id, run.seed, run.algorithm, len(run.files)) == ("Pong-v5", 4, "ppo", 2)
    expect(run.curve, "steps", [128, 256, 256, 256])  # going on at 256 is no step back
    expect(run.curve, "episode_return", [-21.0, -15.0, None, 3.0])
    expect(run.curve, "wall_seconds", [0.0, 3.0, 50.0, 50.0])
    assert (run.curve["num_episodes"] == 1).all()


def test_events_torn_in_the_last_record_and_tags_by_name(tmp_path):
    events(tmp_path, [("rollout/ep_rew_mean", 64 * row, float(row), 100.0 + row) for row in range(5)])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    declared = Declared(unit="env_steps", env_id="Pong-v5", columns={"episode_return": "rollout/ep_rew_mean"})
    (run,) = foreign_events.tensorboard(path, declared)
    expect(run.curve, "episode_return", [0, 1, 2, 3])
    assert run.curve["num_episodes"].isna().all()
    with pytest.raises(ValueError, match=r"no scalar charts/episodic_return or .*; allowed: rollout/ep_rew_mean"):
        foreign_events.tensorboard(path, Declared(unit="env_steps"))


@settings(quick, max_examples=10)
@given(values=st.lists(st.just(math.nan) | st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_every_scalar_of_an_event_file_arrives(tmp_path, values):
    """Scalars are stored in 32 bits."""
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    events(folder, [(RETURN, 128 * row, value, 100.0) for row, value in enumerate(values)], text=FLAGS)
    (run,) = foreign_events.tensorboard(folder, Declared(unit="env_steps"))
    expect(run.curve, "episode_return", values)
    expect(run.curve, "steps", [128 * row for row in range(len(values))])


def test_an_infinite_scalar_is_refused(tmp_path):
    events(tmp_path, [(RETURN, 128, math.inf, 100.0)], text=FLAGS)
    with pytest.raises(ValueError, match=r"charts/episodic_return is inf at step 128; allowed: a finite number or NaN"):
        foreign_events.tensorboard(tmp_path, Declared(unit="env_steps"))


def test_without_tensorboard_its_package_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    write(tmp_path / "events.out.tfevents.1", "")
    with pytest.raises(ValueError, match=r"needs the package tensorboard; allowed: pip install tensorboard"):
        foreign_events.tensorboard(tmp_path, Declared(unit="env_steps"))


# --- real logs (FINDINGS T11) and large ones ---


@needed
def test_the_last_hundred_rows_span_very_different_parts_of_training(tmp_path):
    """Alien's last 100 rows with a return span 6.5 % of training, PrivateEye's some 80 %."""
    with gzip.open(DATA / "curves" / "moolib_atari_2021.csv.gz", "rt") as file:
        lines = [line for line in file if line.startswith(("env_id", "Alien-v5,0,", "PrivateEye-v5,0,"))]
    columns = {"env_id": "env_id", "seed": "seed", "steps": "env_train_steps", "episode_return": "mean_episode_return"}
    path = write(tmp_path / "two.csv", "".join(lines))
    runs = foreign_scores.csv(path, Declared(unit="env_steps", columns=columns))
    curves = {(run.env_id, run.seed): run.curve for run in runs}
    spans = {}
    for env_id in ("Alien-v5", "PrivateEye-v5"):
        curve = curves[env_id, 0]
        spans[env_id] = 1 - curve.dropna(subset="episode_return")["steps"].iloc[-100] / curve["steps"].max()
    assert spans == {"Alien-v5": pytest.approx(0.0654, abs=1e-4), "PrivateEye-v5": pytest.approx(0.8206, abs=1e-4)}


@needed
def test_the_logs_as_moolib_wrote_them_agree_with_the_table_of_them():
    (run,) = foreign_logs.moolib(DATA / "raw_logs" / "moolib" / "PrivateEye-0" / "logs.tsv", PONG)
    frame = pd.read_csv(DATA / "curves" / "moolib_atari_2021.csv.gz").query("env_id == 'PrivateEye-v5' and seed == 0")
    np.testing.assert_array_equal(run.curve["steps"], frame["env_train_steps"])
    np.testing.assert_allclose(run.curve["episode_return"], frame["mean_episode_return"], atol=1e-3)  # rounded there
    blank = run.curve["episode_return"].isna()
    assert blank.mean() > 0.9
    assert (run.curve["num_episodes"][blank] == 0).all()  # a blank is "no episode ended"
    assert run.curve["num_episodes"].sum() == frame["episodes_done"].iloc[-1]


PEAK = """
import resource, sys
from pathlib import Path
from analysis.foreign_text import read_text
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
names = {"steps": "local/env_train_steps", "episode_return": "local/mean_episode_return"}
frame = read_text(Path(sys.argv[1]), names, separator="\\t", notes=[])[()]
print(len(frame), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def peak_growth(path: Path, mebibytes: int) -> tuple[int, int, int]:
    """(rows, bytes of the file, bytes by which reading it raises the peak memory of a fresh process)."""
    rows = moolib_rows([None, -1.5, 3e4], [0, 640, 1280])
    wide = [[*row, *("0.123456789012345" for _ in range(10))] for row in rows] * 2000
    block = table(wide[1:], wide[0], separator="\t", end="\r\n").encode()
    with path.open("wb") as file:
        file.write(table([], [*MOOLIB, *(f"local/{n}" for n in range(10))], separator="\t").encode())
        for _ in range(-(-mebibytes * 2**20 // len(block))):
            file.write(block)
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    num_rows, growth = map(int, done.stdout.split())
    return num_rows, path.stat().st_size, growth


def test_a_large_log_is_read_in_bounded_memory(tmp_path):
    num_rows, size, growth = peak_growth(tmp_path / "logs.tsv", 60)
    assert size >= 60 * 2**20
    assert growth < 48 * num_rows < size / 4  # two numbers of 8 bytes a row, twice while an array grows, and a third


@pytest.mark.slow
def test_a_log_of_one_gibibyte_is_read_in_bounded_memory(tmp_path):
    num_rows, size, growth = peak_growth(tmp_path / "logs.tsv", 1024)
    assert size >= 2**30
    assert growth < 48 * num_rows < size / 4


def test_memory_does_not_grow_with_columns_that_are_not_read(tmp_path):
    text = table([[step, 1.0, "x" * 1000] for step in range(100)], ["a", "b", "c"])
    frame = read_text(write(tmp_path / "t.csv", text), {"steps": "a", "episode_return": "b"}, notes=[])[()]
    assert frame.memory_usage(index=False).sum() == 100 * 2 * 8
