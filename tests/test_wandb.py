"""`cleanba ingest wandb` and `openrlbenchmark`: what W&B holds arrives whole, once, and is said to be what it is.

The real `wandb.Api` asks a server on this machine (wandb_server.py): no network is used.
"""

import json
import math
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import wandb_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wandb_server import HANG, StoredRun, WandbServer

from analysis import foreign_wandb, ingest
from analysis.foreign import Declared
from analysis.openrlbenchmark import selections
from runners import snapshot, wandb_runs
from runners.cli import main

RETURN = "charts/avg_episodic_return"
STEPS = ["--unit", "env_steps"]
HERE = Path("results/snapshots/w")
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """The server, and where W&B's client looks for it and keeps its files."""
    with WandbServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", server.url)
        patch.setenv("WANDB_API_KEY", "0" * 40)
        for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        yield server


@pytest.fixture
def server(running, tmp_path, monkeypatch):
    """Requests that are repeated at once, and given up after a second."""
    monkeypatch.chdir(tmp_path)
    fast = {
        "x_graphql_retry_max": 2,
        "x_graphql_retry_wait_min_seconds": 0.01,
        "x_graphql_retry_wait_max_seconds": 0.05,
    }
    monkeypatch.setattr(wandb_runs, "REQUESTS", fast | {"x_graphql_timeout_seconds": 1.0})
    monkeypatch.setattr(wandb_runs, "WAIT_SECONDS", 0.01)
    running.reset()
    return running


def rows(*points) -> list[dict]:
    """Logged rows of (W&B step, global_step, return); None where a row does not have it."""
    found = []
    for step, steps, value in points:
        row = {"_step": step, "_runtime": 0.5 * step, "global_step": steps, RETURN: value}
        found.append({key: cell for key, cell in row.items() if cell is not None})
    return found


def stored(run="a1", seed=1, logged=None, **more) -> StoredRun:
    config = {"env_id": "Pong-v5", "seed": seed, "exp_name": "cleanba_ppo"} | more.pop("config", {})
    return StoredRun(run, config, logged or rows((0, 100, -21.0), (1, 200, -20.5)), **more)


def read(*arguments: str) -> int:
    return main(["ingest", "wandb", "them/atari", "--as", "w", *STEPS, *arguments])


def curve(*arguments: str) -> pd.DataFrame:
    assert read(*arguments) == 0
    return ingest.curves(Path("results/runs/w"))


def refusal(capsys, *arguments: str) -> str:
    """The one sentence of a refusal, after which no record is written."""
    capsys.readouterr()
    assert read(*arguments) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert not Path("results/runs").exists()
    return error


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path("results").rglob("*")) if path.is_file()}


# --- histories arrive whole ---


def test_runs_become_records_that_say_what_is_known(server, capsys):
    server.reset(stored(tags=["v1"], logged=rows((0, 100, -21.0), (1, 200, -20.5), (2, 300, None))))
    frame = curve()
    assert frame["env_steps"].tolist() == [100, 200, 300]
    np.testing.assert_array_equal(frame["episode_return"], [-21, -20.5, np.nan])
    assert frame["wall_seconds"].tolist() == [0, 0.5, 1]
    assert capsys.readouterr().out.splitlines() == [
        "results/snapshots/w: 1 runs fetched, 1 in the snapshot",
        "results/runs/w: 1 runs of 1 games written, 3 rows read",
        "unit env_steps; protocol unknown; unknown: num_episodes, protocol",
        f"episode_return is the metric {RETURN}, steps global_step",
        "envs that have not finished an episode count as 0 in Cleanba's charts/avg_episodic_return",
    ]
    [spec] = ingest.specs(Path("results/runs/w"))
    assert {key: spec[key] for key in ("kind", "parser", "algorithm", "env_id", "seed", "unit")} == {
        "kind": "foreign", "parser": "wandb", "algorithm": "cleanba_ppo", "env_id": "Pong-v5", "seed": 1,
        "unit": "env_steps",
    }  # fmt: skip
    producer = {key: spec["producer"][key] for key in ("name", "entity", "project", "run", "tags", "state")}
    assert producer == {
        "name": "wandb", "entity": "them", "project": "atari", "run": "a1", "tags": ["v1"], "state": "finished",
    }  # fmt: skip


def test_the_manifest_tells_what_was_fetched(server):
    server.reset(stored(logged=rows((0, 100, None), (1, 200, 5.0), (2, 300, 6.0)), config={"lr": 0.5}))
    curve()
    [entry] = snapshot.read_manifest(HERE)
    assert entry["metrics"] == [
        {"name": "global_step", "rows": 3}, {"name": RETURN, "rows": 2}, {"name": "_runtime", "rows": 3},
    ]  # fmt: skip
    assert (entry["rows"], entry["last_steps"], entry["summary_last_steps"]) == (3, 300, 300)
    assert (entry["run"], entry["file"], entry["config"]["lr"]) == ("a1", "them/atari/a1.parquet", 0.5)
    assert entry["fetched_at"].startswith("20")
    assert len(entry["digest"]) == 64


def test_many_pages_in_any_order_give_the_whole_history_in_order(server):
    """2,500 rows in pages of 1,000 steps; 5 runs in pages of 2; with the first rows exported, and without."""
    logged = rows(*((step, 10 * step, math.sin(step)) for step in range(2500)))
    server.reset(*(stored(f"a{seed}", seed, logged, exported=exported) for seed, exported in enumerate((0, 1, 1200))))
    frame = curve()
    for _, found in frame.groupby("seed"):
        np.testing.assert_array_equal(found["env_steps"], np.arange(2500) * 10)
        np.testing.assert_array_equal(found["episode_return"], [math.sin(step) for step in range(2500)])
    assert server.count("Runs") == 2
    assert server.count("SampledHistoryPage") >= 9  # 3 pages of 3 metrics of the run without an export


def test_rows_that_lack_a_key_are_joined(server):
    """Steps and returns that are never in one row together with the clock; a scan of all keys would find nothing."""
    logged = [
        {"_step": 0, "global_step": 100, RETURN: 1.0},
        {"_step": 1, "_runtime": 2.0},
        {"_step": 2, "global_step": 200},
        {"_step": 3, "global_step": 300, RETURN: 3.0, "losses/x": 0.1},
    ]
    assert not [row for row in logged if {"global_step", RETURN, "_runtime"} <= set(row)]
    server.reset(stored(logged=logged))
    frame = curve()
    assert frame["env_steps"].tolist() == [100, 200, 300]
    np.testing.assert_array_equal(frame["episode_return"], [1, np.nan, 3])
    assert frame["wall_seconds"].isna().all()


def test_a_return_without_steps_is_left_out_and_told(server, capsys):
    server.reset(stored(logged=rows((0, 100, 1.0), (1, None, 2.0), (2, 300, 3.0))))
    assert curve()["episode_return"].tolist() == [1, 3]
    assert "them/atari/a1: 1 returns stand in rows without global_step and are left out" in capsys.readouterr().out


@pytest.mark.parametrize("exported", [0, 3])
def test_nan_arrives_as_nan(server, exported):
    """Live rows have it as a text; an exported file as a number."""
    nan = math.nan if exported else "NaN"
    server.reset(stored(logged=rows((0, 100, 1.0), (1, 200, nan), (2, 300, -2e-3)), exported=exported, summary={}))
    np.testing.assert_array_equal(curve()["episode_return"], [1, np.nan, -2e-3])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("Infinity", rf"W&B step 1: global_step 200.0, {RETURN} inf; allowed: finite numbers, steps from 0"),
        ("-Infinity", rf"{RETURN} -inf; allowed: finite numbers"),
        ("fast", rf"W&B step 1: {RETURN} is 'fast'; allowed: a metric of numbers"),
        ({"_type": "histogram"}, "allowed: a metric of numbers"),
    ],
)
def test_what_is_no_finite_number_is_refused(server, capsys, wrong, words):
    server.reset(stored(logged=rows((0, 100, 1.0), (1, 200, wrong))))
    assert words in refusal(capsys)


def test_after_a_resume_the_later_rows_count(server, capsys):
    """The resumed process goes back to step 100; one W&B step was logged twice, the second time by it."""
    logged = rows((0, 100, 1.0), (1, 200, 2.0), (2, 300, 3.0), (2, 200, 20.0), (3, 300, 30.0))
    server.reset(stored(logged=logged))
    frame = curve()
    assert frame["env_steps"].tolist() == [100, 200, 200, 300]
    assert frame["episode_return"].tolist() == [1, 2, 20, 30]
    server.reset(stored("b1", logged=rows((0, 100, 1.0), (1, 200, 2.0), (2, 300, 3.0), (3, 200, 20.0), (4, 400, 40.0))))
    assert main(["ingest", "wandb", "them/atari", "--as", "back", *STEPS]) == 0
    frame = ingest.curves(Path("results/runs/back"))
    assert frame["env_steps"].tolist() == [100, 200, 400]
    assert frame["episode_return"].tolist() == [1, 20, 40]
    assert "them/atari/b1: 1 restarts; later rows count" in capsys.readouterr().out


def test_a_history_that_ends_before_its_summary_is_refused(server, capsys):
    server.reset(stored(summary={"global_step": 5000}))
    assert "its history ends at global_step 200, its summary says 5,000; allowed: a whole history" in refusal(capsys)


def test_a_summary_without_steps_is_said_to_be_unchecked(server):
    server.reset(stored(summary={"global_step": {"max": 200}}))
    curve()
    assert snapshot.read_manifest(HERE)[0]["summary_last_steps"] is None


# --- which runs ---


def test_tags_and_filters_select(server):
    server.reset(
        stored("a1", 1, tags=["v1", "gpu"]),
        stored("a2", 2, tags=["v1"]),
        stored("a3", 3, tags=["v1", "gpu"], config={"env_id": "Qbert-v5"}),
        stored("a4", 4, tags=["gpu"]),
    )
    pong = json.dumps({"config.env_id.value": "Pong-v5"})
    assert set(curve("--tags", "v1", "gpu", "--where", pong)["seed"]) == {1}


def test_running_runs_are_skipped_and_told(server, capsys):
    server.reset(stored("a1", 1), stored("a2", 2, state="running"))
    assert set(curve()["seed"]) == {1}
    assert "them/atari/a2 is still running: skipped" in capsys.readouterr().out


def test_other_metrics_and_keys_by_declaration(server):
    logged = [{"_step": 0, "step": 7, "r": 2.0}]
    server.reset(stored(logged=logged, config={"env": "ALE/Breakout-v5", "s": 5, "name": "theirs"}))
    columns = ["--columns", "steps=step", "episode_return=r", "env_id=env", "seed=s", "algorithm=name"]
    [row] = curve(*columns).to_dict("records")
    assert (row["env_id"], row["seed"], row["algorithm"], row["env_steps"]) == ("Breakout-v5", 5, "theirs", 7)


def test_the_unit_is_declared_or_known_from_the_producer(server, capsys):
    server.reset(stored())
    assert main(["ingest", "wandb", "them/atari", "--as", "w"]) == 3
    assert "W&B's global_step in them/atari does not say what its steps are" in capsys.readouterr().err
    assert main(["ingest", "wandb", "them/atari", "--as", "w", "--producer", "cleanba"]) == 0
    [spec] = ingest.specs(Path("results/runs/w"))
    assert (spec["unit"], spec["producer"]["name"]) == ("env_steps", "cleanba")
    assert main(["ingest", "wandb", "them/atari", "--as", "v", "--producer", "cleanrl", "--unit", "frames"]) == 3
    assert "--unit is frames, but W&B's global_step in them/atari counts env_steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--where", "{"], "--where is '{'"),
        (["--where", "[]"], "--where is '[]'; allowed: a JSON object"),
        (["--tags", "none"], "W&B project them/atari: no run matches"),
        (["--columns", "episode_return=charts/x"], f"has no metric 'charts/x'; allowed: {RETURN}, global_step"),
        (["--columns", "x=y"], "--columns: 'x' is unknown; allowed: steps, episode_return, wall_seconds, env_id"),
        (["--columns", "env_id=game"], "no game is named; needed: config game, --env-id"),
        (["--columns", "seed=env_id"], "the config's env_id is 'Pong-v5'; allowed: a whole number"),
    ],
)
def test_what_is_not_there_is_refused(server, capsys, arguments, words):
    server.reset(stored())
    assert words in refusal(capsys, *arguments)


def test_projects_that_are_not_there_are_refused(server, capsys):
    assert main(["ingest", "wandb", "them/nothing", "--as", "w", *STEPS]) == 3
    assert "W&B project them/nothing: Could not find project nothing" in capsys.readouterr().err
    for wrong in ("atari", "a/b/c"):
        assert main(["ingest", "wandb", wrong, "--as", "w", *STEPS]) == 3
        assert f"wandb is asked for {wrong}; allowed: ENTITY/PROJECT, or the folder of a" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_sentence(server, capsys, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert "needed: `wandb login`, or WANDB_API_KEY, and a network" in refusal(capsys)


# --- one copy, also after an interruption, also without the network ---


def test_a_second_ingest_gives_one_copy(server, capsys):
    server.reset(stored("a1", 1), stored("a2", 2))
    curve()
    once = files()
    server.asked.clear()
    capsys.readouterr()
    curve()
    assert files() == once
    assert server.count("SampledHistoryPage") == 0  # nothing is fetched again
    assert "2 runs have a record of the same content already: skipped" in capsys.readouterr().out


def test_an_interrupted_ingest_goes_on_where_it_stopped(server, capsys):
    runs = [stored(f"a{seed}", seed) for seed in (1, 2, 3)]
    server.reset(*runs)
    server.faults = [("RunHistoryKeys", 404)] * 9  # not repeated by the client: the first scan fails three times
    assert "them/atari/a1: global_step: " in refusal(capsys)
    server.reset(*runs)
    broken = iter([None] * 4 + [404] * 3)  # the second run's second metric
    server.faults = [("SampledHistoryPage", what) for what in broken]
    assert "them/atari/a2: " in refusal(capsys)
    assert [entry["run"] for entry in snapshot.read_manifest(HERE)] == ["a1"]
    first = (HERE / "them/atari/a1.parquet").stat().st_mtime_ns
    server.reset(*runs)
    assert set(curve()["seed"]) == {1, 2, 3}
    assert (HERE / "them/atari/a1.parquet").stat().st_mtime_ns == first
    assert server.count("SampledHistoryPage") == 6  # three metrics of two runs


def test_a_snapshot_is_read_without_the_network(server, monkeypatch):
    server.reset(stored("a1", 1), stored("a2", 2))
    frame = curve()
    monkeypatch.setattr(wandb_runs, "fetch", lambda *_: pytest.fail("the network was used"))
    assert main(["ingest", "wandb", str(HERE), "--as", "copy", *STEPS]) == 0
    copy = ingest.curves(Path("results/runs/copy"))
    pd.testing.assert_frame_equal(frame.drop(columns="experiment"), copy.drop(columns="experiment"))


def test_a_run_that_went_on_is_refused(server, capsys):
    server.reset(stored())
    curve()
    before = files()
    capsys.readouterr()
    server.reset(stored(logged=rows((0, 100, 1.0), (1, 900, 2.0)), heartbeat="2024-01-01T00:00:00"))
    assert read() == 3
    assert "them/atari/a1: was fetched with heartbeat_at 2023-01-02T00:00:00, now it is 2024" in capsys.readouterr().err
    assert files() == before


def test_a_snapshot_that_was_changed_is_refused(server, capsys):
    server.reset(stored())
    curve()
    path = HERE / "them/atari/a1.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["ingest", "wandb", str(HERE), "--as", "copy", *STEPS]) == 3
    assert "a1.parquet: is not the history that was fetched" in capsys.readouterr().err
    for text in ("{", "[]", '{"schema": 99}'):
        (HERE / "manifest.json").write_text(text)
        assert main(["ingest", "wandb", str(HERE), "--as", "copy", *STEPS]) == 3
        assert "manifest.json: " in capsys.readouterr().err


# --- a server that does not answer ---


def test_too_many_requests_are_repeated_after_the_time_asked_for(server):
    server.reset(stored())
    server.faults = [("Runs", (429, {"Retry-After": "1"}))]
    assert len(curve()) == 2
    first, second = (when for when, operation in server.asked if operation == "Runs")
    assert 0.95 < second - first < 5


def test_what_fails_once_is_asked_again(server):
    """A bad gateway while runs are listed and while a live page is read, a hang, a download that breaks."""
    server.reset(stored(logged=rows((0, 100, 1.0), (1, 200, 2.0), (2, 300, 3.0)), exported=2))
    server.faults = [("Runs", 502), ("SampledHistoryPage", 502), ("RunParquetHistory", HANG), ("download", 502)]
    assert curve()["episode_return"].tolist() == [1, 2, 3]
    assert server.faults == []


def test_tries_are_bounded(server, capsys):
    server.reset(stored())
    server.faults = [("Runs", 502)] * 50
    assert "W&B project them/atari: " in refusal(capsys)
    assert server.count("Runs") == 3  # once, and twice again
    server.reset(stored(exported=2))
    server.faults = [("download", 502)] * 500
    assert "502 Bad Gateway, 3 times; allowed: the same command later, which goes on here" in refusal(capsys)


def test_a_hang_is_longer_than_a_request_may_take():
    assert wandb_server.HANG_SECONDS > 1.0


# --- openrlbenchmark ---

# The selections of the paper's comparison on 10 CPUs, as its script static/plot.sh states them.
PAPER = [
    "--filters", "?we=openrlbenchmark&wpn=torchbeast&ceik=env&cen=exp_name&metric=mean_episode_return",
    "monobeast_cpu10?cl=Monobeast IMPALA, 1 A100, 10 CPU",
    "--filters", "?we=costa-huang&wpn=moolib-atari-2&ceik=env_id&cen=exp_name&metric=global/mean_episode_return",
    "moolib_impala_envpool_machado?cl=Moolib IMPALA, 1 A100, 10 CPU",
    "--filters", "?we=openrlbenchmark&wpn=cleanba&ceik=env_id&cen=exp_name&metric=charts/avg_episodic_return",
    "cleanba_impala_a0_l0_d1_cpu10?tag=v1.0.0b2&cl=Cleanba IMPALA, 1 A100, 10 CPU",
    "cleanba_ppo_a0+1_l2+3_d2_cpu46?tag=v1.0.0b3&cl=Cleanba PPO, 8 A100, 46 CPU",
    "--env-ids", "Alien-v5", "Amidar-v5",
]  # fmt: skip
LABELS = [
    "Cleanba IMPALA, 1 A100, 10 CPU", "Cleanba PPO, 8 A100, 46 CPU", "Moolib IMPALA, 1 A100, 10 CPU",
    "Monobeast IMPALA, 1 A100, 10 CPU",
]  # fmt: skip


def paper_runs() -> list[StoredRun]:
    """Two seeds per selection on Alien, one on Amidar, each with a run beside it that is not selected."""
    runs = []
    for entity, project, game, metric, name, tag in (
        ("openrlbenchmark", "torchbeast", "env", "mean_episode_return", "monobeast_cpu10", "any"),
        (
            "costa-huang",
            "moolib-atari-2",
            "env_id",
            "global/mean_episode_return",
            "moolib_impala_envpool_machado",
            "any",
        ),
        ("openrlbenchmark", "cleanba", "env_id", RETURN, "cleanba_impala_a0_l0_d1_cpu10", "v1.0.0b2"),
        ("openrlbenchmark", "cleanba", "env_id", RETURN, "cleanba_ppo_a0+1_l2+3_d2_cpu46", "v1.0.0b3"),
    ):
        for number, (env_id, seed) in enumerate([("Alien-v5", 1), ("Alien-v5", 2), ("Amidar-v5", 1)]):
            logged = [
                {"_step": i, "_runtime": float(i), "global_step": 100 * i, metric: 10.0 * i + seed} for i in range(3)
            ]
            for selected in (True, False):
                config = {game: env_id, "seed": seed, "exp_name": name if selected else f"{name}_other"}
                run = f"{project[0]}{len(runs)}x{number}"
                runs.append(StoredRun(run, config, logged, [tag, "more"], entity=entity, project=project))
    return runs


def test_the_papers_selections_work_as_they_stand(server, capsys):
    server.reset(*paper_runs())
    assert main(["ingest", "openrlbenchmark", *PAPER, "--as", "w", *STEPS]) == 0
    frame = ingest.curves(Path("results/runs/w"))
    found = frame.groupby(["algorithm", "env_id"])["seed"].unique().map(list).to_dict()
    assert found == {(label, env_id): seeds for label in LABELS for env_id, seeds in ALIEN_AMIDAR.items()}
    assert frame["env_steps"].unique().tolist() == [0, 100, 200]
    assert set(frame["episode_return"]) == {1, 2, 11, 12, 21, 22}
    assert "results/snapshots/w: 12 runs fetched, 12 in the snapshot" in capsys.readouterr().out


ALIEN_AMIDAR = {"Alien-v5": [1, 2], "Amidar-v5": [1]}


def write_offline(folder: Path, runs: list[StoredRun]) -> None:
    """openrlbenchmark's offline data of these runs: the tables that peewee makes of its models, pandas' CSV files."""
    for run in runs:
        project = folder / run.entity / run.project
        project.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(project / "offline.sqlite")) as database, database:
            database.executescript("""
                CREATE TABLE IF NOT EXISTS offlinerun (
                    id VARCHAR(255) NOT NULL, name VARCHAR(255) NOT NULL, state VARCHAR(255) NOT NULL,
                    url VARCHAR(255) NOT NULL, path JSON NOT NULL, username VARCHAR(255) NOT NULL,
                    project VARCHAR(255) NOT NULL, entity VARCHAR(255) NOT NULL, config JSON NOT NULL);
                CREATE TABLE IF NOT EXISTS tag (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(255) NOT NULL);
                CREATE TABLE IF NOT EXISTS tag_offlinerun_through (
                    id INTEGER NOT NULL PRIMARY KEY, tag_id INTEGER NOT NULL REFERENCES tag (id),
                    offlinerun_id INTEGER NOT NULL REFERENCES offlinerun (id));
            """)
            path, config = json.dumps([run.entity, run.project, run.run]), json.dumps(run.config)
            known = (run.run, run.run, run.state, "url", path, run.username, run.project, run.entity, config)
            database.execute("INSERT INTO offlinerun VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", known)
            for tag in run.tags:
                found = database.execute("SELECT id FROM tag WHERE name = ?", (tag,)).fetchone()
                number = found[0] if found else database.execute("INSERT INTO tag (name) VALUES (?)", (tag,)).lastrowid
                link = "INSERT INTO tag_offlinerun_through (tag_id, offlinerun_id) VALUES (?, ?)"
                database.execute(link, (number, run.run))
        (project / run.run).mkdir()
        pd.DataFrame(run.rows).to_csv(project / run.run / "run_df.csv")


def read_offline(filters, env_ids=("Alien-v5", "Amidar-v5"), **more):
    declared = Declared(filters=filters, env_ids=(env_ids,), unit="env_steps", **more)
    return foreign_wandb.openrlbenchmark(Path("dataset"), declared)


def test_the_offline_data_give_the_same_as_the_server(server):
    server.reset(*paper_runs())
    write_offline(Path("dataset"), paper_runs())
    assert main(["ingest", "openrlbenchmark", *PAPER, "--as", "online", *STEPS]) == 0
    assert main(["ingest", "openrlbenchmark", "dataset", *PAPER, "--as", "offline", *STEPS]) == 0
    online, offline = (ingest.curves(Path("results/runs") / name) for name in ("online", "offline"))
    assert len(online) == 36
    pd.testing.assert_frame_equal(online.drop(columns="experiment"), offline.drop(columns="experiment"))


def test_offline_selections_by_several_tags_settings_and_user(tmp_path, monkeypatch):
    """A run has all the tags, which openrlbenchmark's own query never finds for two of them."""
    monkeypatch.chdir(tmp_path)
    group = "?we=them&wpn=atari"
    runs = [
        stored("12345678", 1, tags=["v1", "gpu"], config={"env_id": "Alien-v5", "lr": 0.5}),
        stored("3e5", 2, tags=["v1"], config={"env_id": "Alien-v5"}),
        stored("a3", 3, tags=["v1", "gpu"], config={"env_id": "Amidar-v5"}, username="other"),
        stored("a4", 4, tags=["v1", "gpu"], config={"env_id": "Alien-v5"}, state="running"),
    ]
    write_offline(Path("dataset"), runs)
    group += f"&metric={RETURN}"
    seeds = {
        text: [run.seed for run in read_offline(((group, text),))]
        for text in (
            "cleanba_ppo?tag=v1&tag=gpu", "cleanba_ppo?user=other", "cleanba_ppo?seed=2&seed=3", "cleanba_ppo?lr=0.5",
        )
    }  # fmt: skip
    assert list(seeds.values()) == [[1, 3], [3], [2, 3], [1]]
    [run] = read_offline(((group, "cleanba_ppo?seed=2"),))
    assert any("no run on Amidar-v5" in note for note in run.notes)
    with pytest.raises(ValueError, match=r"no run matches 'cleanba_ppo\?tag=v9' on Alien-v5, Amidar-v5"):
        read_offline(((group, "cleanba_ppo?tag=v9"),))


def test_offline_data_that_are_none_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = (f"?we=them&wpn=atari&metric={RETURN}", "cleanba_ppo")
    with pytest.raises(ValueError, match=r"offline.sqlite: there is no such file; allowed: the folder with ENTITY"):
        read_offline((group,))
    write_offline(Path("dataset"), [stored(config={"env_id": "Alien-v5"})])
    Path("dataset/them/atari/a1/run_df.csv").unlink()
    with pytest.raises(ValueError, match=r"run_df.csv: there is no such file; allowed: the history"):
        read_offline((group,))
    Path("dataset/them/atari/offline.sqlite").write_text("no database")
    with pytest.raises(ValueError, match=r"offline.sqlite: cannot be read \(.*\); allowed: openrlbenchmark's"):
        read_offline((group,))


GROUP = "?we=e&wpn=p"


@pytest.mark.parametrize(
    ("filters", "env_ids", "words"),
    [
        ((), (("A",),), "openrlbenchmark needs --filters"),
        (((GROUP, "a"),), (), "--env-ids stands 0 times; allowed: once, or once for each of 1 --filters"),
        (((GROUP, "a"), (GROUP, "b"), (GROUP, "c")), (("A",), ("B",)), "--env-ids stands 2 times"),
        (((GROUP,),), (("A",),), "selects nothing; needed: EXP_NAME"),
        (((GROUP, "a"),), ((),), "--env-ids names no game"),
        ((("we=e&wpn=p", "a"),), (("A",),), "--filters begins with 'we=e&wpn=p'; allowed: ?we="),
        ((("?we=e", "a"),), (("A",),), "has no wpn; needed"),
        ((("?we=e&wpn=p&ciek=x", "a"),), (("A",),), "'ciek' is unknown; allowed: we, wpn, ceik, cen, metric, xaxis"),
        ((("?we=e&wpn=p&metrics=x", "a"),), (("A",),), "'metrics' is unknown"),
        ((("?we=e&wpn=p&we=f", "a"),), (("A",),), "states we twice; allowed: once"),
        ((("?we=e&wpn=", "a"),), (("A",),), "cannot be read; allowed: KEY=VALUE joined by &"),
        (((GROUP, "a?tag="),), (("A",),), "'a?tag=': cannot be read"),
        (((GROUP, "a?tag"),), (("A",),), "'a?tag': cannot be read; allowed: KEY=VALUE"),
        (((GROUP, "a?cl=x&cl=y"),), (("A",),), "states cl twice; allowed: once"),
        (((GROUP, "?tag=x"),), (("A",),), "has no name; allowed: EXP_NAME?"),
    ],
)
def test_filter_strings_are_read_strictly(filters, env_ids, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are compared below
        selections(filters, env_ids)
    assert words in str(error.value)


def test_a_filter_string_becomes_a_filter_of_the_server():
    """As openrlbenchmark builds it: config keys with .value, every tag for itself."""
    [found] = selections(
        [["?we=e&wpn=p&ceik=env&cen=a.value.b", "x+y?tag=v1&tag=v2&user=me&seed=1&on=True"]], [["A", "B"]]
    )
    assert found.where == {
        "$and": [
            {"config.a.value.b": {"$in": ["x+y"]}}, {"config.env.value": {"$in": ["A", "B"]}},
            {"config.seed.value": {"$in": [1]}}, {"config.on.value": {"$in": [True]}},
            {"tags": {"$in": ["v1"]}}, {"tags": {"$in": ["v2"]}}, {"username": "me"},
        ]
    }  # fmt: skip
    assert found.columns == {
        "steps": "global_step", "episode_return": "charts/episodic_return", "env_id": "env", "algorithm": "a.value.b",
    }  # fmt: skip
    assert found.matches({"a": {"b": "x+y"}, "env": "B", "seed": 1, "on": True}, {"v1", "v2", "v3"}, "me")
    assert not found.matches({"a": {"b": "x+y"}, "env": "B", "seed": 1, "on": True}, {"v1"}, "me")


def test_groups_have_games_of_their_own():
    found = selections([[GROUP, "a", "b"], [GROUP, "c"]], [["A"], ["B"]])
    assert [(one.exp_name, one.env_ids) for one in found] == [("a", ("A",)), ("b", ("A",)), ("c", ("B",))]


# --- every number, as in test_parsers ---

finite = st.floats(allow_nan=False, allow_infinity=False)


@quick
@given(values=st.lists(st.none() | finite, min_size=1, max_size=30), end=st.sampled_from(["\n", "\r\n"]))
def test_every_number_of_offline_data_arrives(tmp_path, monkeypatch, values, end):
    monkeypatch.chdir(tmp_path)
    path = Path("run_df.csv")
    logged = [f"{i},{i},{10 * i},{'' if value is None else repr(value)}" for i, value in enumerate([*values, 1.25])]
    text = f",_step,global_step,{RETURN}{end}" + "".join(line + end for line in logged)
    columns = foreign_wandb.complete_columns({})
    for cut, kept in ((0, [*values, 1.25]), (len(end) + 1, values)):  # whole, and with a torn last line
        path.write_text(text[: len(text) - cut], newline="")
        notes: list[str] = []
        frame = foreign_wandb._offline_history(path, columns, notes)
        np.testing.assert_array_equal(frame["episode_return"], [math.nan if v is None else v for v in kept])
        np.testing.assert_array_equal(frame["steps"], [10.0 * i for i in range(len(kept))])
        assert sum("a torn last line" in note for note in notes) == (cut > 0)


@quick
@given(values=st.lists(st.none() | st.just("NaN") | finite, min_size=1, max_size=30))
def test_every_number_of_a_scan_arrives(values):
    class Run:
        def scan_history(self, keys, use_cache):
            return iter({"_step": i, **({} if v is None else {keys[1]: v})} for i, v in enumerate(values))

    found = wandb_runs._scan("e/p/r", Run(), "m")
    expected = {i: math.nan if v == "NaN" else v for i, v in enumerate(values) if v is not None}
    np.testing.assert_equal(found, expected)


def test_a_histories_file_is_in_the_order_of_its_steps(server):
    server.reset(stored(logged=rows(*((step, step, 1.0) for step in range(50)))))
    curve()
    steps = pd.read_parquet(HERE / "them/atari/a1.parquet")["wandb_step"]
    assert all(a < b for a, b in pairwise(steps))
