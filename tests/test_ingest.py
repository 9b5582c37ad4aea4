"""`cleanba ingest`: one copy, nothing mixed with our own, units explicit, nothing written when refused."""

import gzip
import json
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from cells import make_spec
from curves_of_others import DATA, needed

from analysis import ingest
from analysis.foreign import Declared
from runners.cli import main
from runners.record import RecordWriter, prepare

COLUMNS = ["--columns", "env_id=game", "seed=seed", "steps=x", "episode_return=y"]
FRAMES = ["--unit", "frames", *COLUMNS]
LOG = "game,seed,x,y\nPong-v5,1,0,\nPong-v5,1,400,-21.0\nPong-v5,2,400,-20.0\nQbert-v5,1,800,125.0\n"
MOOLIB_TABLE = DATA / "curves" / "moolib_atari_2021.csv.gz"
MOOLIB = Declared(
    unit="env_steps",
    protocol="moolib_2021",
    columns={
        "env_id": "env_id", "seed": "seed", "steps": "env_train_steps", "episode_return": "mean_episode_return",
        "episodes_done": "episodes_done",
    },
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(LOG)
    return tmp_path


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path("results").rglob("*")) if path.is_file()}


def test_runs_become_records_with_what_is_known_and_what_is_not(capsys):
    assert main(["ingest", "csv", "log.csv", "--as", "others", "--producer", "someone", *FRAMES]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "results/runs/others: 3 runs of 2 games written, 4 rows read",
        "unit frames; protocol unknown; unknown: num_episodes, protocol, wall_seconds",
    ]
    pong = ingest.specs(Path("results/runs/others"))[0]
    assert {key: pong[key] for key in ("kind", "parser", "unit", "protocol", "env_id", "seed", "algorithm")} == {
        "kind": "foreign", "parser": "csv", "unit": "frames", "protocol": None, "env_id": "Pong-v5", "seed": 1,
        "algorithm": "log",
    }  # fmt: skip
    assert (pong["rows"], pong["reached_env_steps"], pong["producer"]) == (2, 100.0, {"name": "someone"})
    assert len(pong["digests"][0]) == 64


def test_frames_are_four_env_steps():
    main(["ingest", "csv", "log.csv", "--as", "others", *FRAMES])
    curves = ingest.curves(Path("results/runs/others"))
    assert list(curves) == [
        "experiment", "algorithm", "env_id", "seed", "env_steps", "frames", "episode_return", "num_episodes",
        "wall_seconds",
    ]  # fmt: skip
    assert curves["env_steps"].tolist() == [0, 100, 100, 200]
    assert curves["frames"].tolist() == [0, 400, 400, 800]
    np.testing.assert_array_equal(curves["episode_return"], [np.nan, -21, -20, 125])
    assert curves["num_episodes"].isna().all()


def test_env_steps_stay_env_steps():
    main(["ingest", "csv", "log.csv", "--as", "others", "--unit", "env_steps", *COLUMNS])
    curves = ingest.curves(Path("results/runs/others"))
    assert curves["env_steps"].tolist() == [0, 400, 400, 800]
    assert curves["frames"].tolist() == [0, 1600, 1600, 3200]


def test_outside_atari_frames_are_unknown(capsys):
    Path("log.csv").write_text("game,seed,x,y\nCartPole-v1,1,7,3.0\n")
    assert main(["ingest", "csv", "log.csv", "--as", "others", *FRAMES]) == 3
    assert "CartPole-v1 is no Atari game, so its frames per env step are unknown" in capsys.readouterr().err
    assert main(["ingest", "csv", "log.csv", "--as", "others", "--unit", "env_steps", *COLUMNS]) == 0
    curves = ingest.curves(Path("results/runs/others"))
    assert curves["env_steps"].tolist() == [7]
    assert curves["frames"].isna().all()


def test_twice_gives_one_copy(capsys):
    main(["ingest", "csv", "log.csv", "--as", "others", *FRAMES])
    once = files()
    capsys.readouterr()
    assert main(["ingest", "csv", "log.csv", "--as", "others", *FRAMES]) == 0
    assert "3 runs have a record of the same content already: skipped" in capsys.readouterr().out
    assert files() == once


def test_more_runs_of_the_same_source_are_added(capsys):
    main(["ingest", "csv", "log.csv", "--as", "others", "--algorithm", "a", *FRAMES])
    Path("more.csv").write_text("game,seed,x,y\nPong-v5,3,400,-19.0\n")
    assert main(["ingest", "csv", "more.csv", "--as", "others", "--algorithm", "a", *FRAMES]) == 0
    assert "1 runs of 1 games written" in capsys.readouterr().out
    assert ingest.curves(Path("results/runs/others"))["seed"].tolist() == [1, 1, 2, 3, 1]


@pytest.mark.parametrize(
    ("arguments", "log", "words"),
    [
        (FRAMES, LOG + "Pong-v5,9,1,1\n", "with digests"),
        (["--unit", "env_steps", *COLUMNS], LOG, "its records have unit frames, not env_steps; allowed: the same, or"),
        (["--protocol", "p", *FRAMES], LOG, "its records have protocol None, not p; allowed: the same, or another"),
        (FRAMES, LOG.replace("125.0", "125,0"), "log.csv, line 5: has 5 cells; allowed: 4"),
        (FRAMES, LOG.replace("125.0", "inf"), "log.csv, line 5: y is 'inf'; allowed: a finite number, NaN, or blank"),
        (FRAMES, LOG.replace("Qbert-v5", ""), "log.csv, line 5: game is blank; allowed: a value"),
        (FRAMES, LOG.replace("Qbert-v5,1", "Qbert-v5,one"), "the seed is 'one'; allowed: a whole number"),
        (["--seed", "4", *FRAMES], LOG, "log on Pong-v5, seed 4 stands twice; allowed: one run per algorithm"),
        (FRAMES, "game,seed,x,y\n", "log.csv: has no runs; allowed: at least one row"),
        (FRAMES[:-1], LOG, "csv needs --columns episode_return=COLUMN"),
        ([*FRAMES, "x"], LOG, "--columns has 'x'; allowed: WHAT=COLUMN, such as steps=frames"),
        ([*FRAMES, "steps=y"], LOG, "--columns states steps twice; allowed: once"),
    ],
)
def test_a_refusal_is_one_sentence_and_writes_nothing(capsys, arguments, log, words):
    main(["ingest", "csv", "log.csv", "--as", "others", *FRAMES])
    before = files()
    capsys.readouterr()
    Path("log.csv").write_text(log)
    assert main(["ingest", "csv", "log.csv", "--as", "others", *arguments]) == 3
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert files() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["logs", "log.csv", "--as", "x"], "source is 'logs'; allowed: moolib, monobeast, polybeast, tensorboard, sb3"),
        (["csv", "none.csv", "--as", "x"], "none.csv: there is no such file or folder; allowed: logs of csv"),
        (["csv", "log.csv", "--as", "../x"], "--as is '../x'"),
        (["moolib", ".", "--as", "x"], "no logs.tsv there or below; allowed: such a file or a folder that has some"),
    ],
)
def test_what_is_not_there_is_refused(capsys, arguments, words):
    assert main(["ingest", *arguments]) == 3
    assert words in capsys.readouterr().err
    assert not Path("results").exists()


def test_nothing_foreign_is_mixed_with_our_own(capsys):
    """A name of our own is refused for logs of others; status and report see our own only."""
    spec = make_spec()
    prepare(spec.folder(Path("results")), spec)
    RecordWriter(spec.folder(Path("results")), segment=0).close("failed", "stopped")
    before = files()
    assert main(["ingest", "csv", "log.csv", "--as", spec.experiment, *FRAMES]) == 3
    assert "is a record of kind of our own" in capsys.readouterr().err
    assert files() == before
    main(["ingest", "csv", "log.csv", "--as", "others", *FRAMES])
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    assert [cell["experiment"] for cell in json.loads(capsys.readouterr().out)] == [spec.experiment]
    assert main(["report", "others"]) == 3
    assert "it is a curve of others, which `cleanba ingest` read; allowed: a run of our own" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"is a record of kind of our own"):
        ingest.curves(Path("results/runs") / spec.experiment)


def test_unknown_seeds_are_numbered_and_said_to_be_unknown(folder):
    for name in ("b", "a"):
        Path(name).mkdir()
        Path(name, "progress.csv").write_text(f"episode_reward_mean,timesteps_total\n{ord(name)},8\n")
    assert main(["ingest", "rllib", ".", "--as", "others", "--env-id", "Pong-v5"]) == 0
    specs = ingest.specs(Path("results/runs/others"))
    assert [(spec["seed"], spec["files"]) for spec in specs] == [(0, ["a/progress.csv"]), (1, ["b/progress.csv"])]
    assert all("seed" in spec["unknown"] for spec in specs)


def test_what_an_interrupted_ingest_left_behind_is_no_record():
    main(["ingest", "csv", "log.csv", "--as", "others", *FRAMES])
    left = Path("results/runs/others/.0123.9")
    left.mkdir()
    (left / "spec.json").write_text("{}")
    assert len(ingest.specs(Path("results/runs/others"))) == 3


@needed
def test_the_runs_of_moolib_ingest_in_twenty_seconds():
    """56 games x 3 seeds, 248,474 rows; CPU seconds, so that a busy machine does not count."""
    started = time.process_time()
    ingest.main("csv", MOOLIB_TABLE, "moolib", MOOLIB, Path("results"))
    assert time.process_time() - started < 20
    curves = ingest.curves(Path("results/runs/moolib"))
    assert len(curves) == 248_474
    runs = curves.groupby(["env_id", "seed"])
    assert len(runs) == 168
    assert runs["env_steps"].max().between(49_900_000, 50_100_000).all()
    assert (curves["num_episodes"].eq(0) == curves["episode_return"].isna()).all()  # blank: no episode ended


@needed
def test_the_logs_of_moolib_by_the_names_of_their_folders():
    pattern = Declared(folder_pattern="{env_id}-{seed}")
    ingest.main("moolib", DATA / "raw_logs" / "moolib", "six", pattern, Path("results"))
    specs = ingest.specs(Path("results/runs/six"))
    assert [(spec["env_id"], spec["seed"]) for spec in specs] == [
        ("Breakout-v5", 0), ("Breakout-v5", 1), ("Breakout-v5", 2), ("DoubleDunk-v5", 0), ("Freeway-v5", 1),
        ("PrivateEye-v5", 0),
    ]  # fmt: skip
    assert {tuple(spec["unknown"]) for spec in specs} == {("protocol", "wall_seconds")}


@needed
def test_curves_in_frames_end_at_the_same_env_steps():
    """The first game's five seeds of 500 points, to 200M frames."""
    with gzip.open(DATA / "curves" / "ppo_atari57_dreamerv3.csv.gz", "rt") as file:
        Path("ppo.csv").write_text("".join(islice(file, 2501)))
    columns = {"env_id": "env_id", "seed": "seed", "steps": "frames", "episode_return": "mean_return"}
    ingest.main("csv", Path("ppo.csv"), "ppo", Declared(unit="frames", columns=columns), Path("results"))
    curves = ingest.curves(Path("results/runs/ppo"))
    assert curves.groupby("seed")["env_steps"].max().tolist() == [50_000_000] * 5
    assert (curves["frames"] == 4 * curves["env_steps"]).all()
