"""The W&B mirror: W&B's own offline file holds what the record holds, and no failure of W&B reaches the run."""

import json
import os
import socket
import struct
import subprocess
import sys

import pytest
from cells import ROOT, make_spec, metrics_row

from runners import mirror
from runners.mirror import Mirror, config, mode, start_mirror
from runners.options import Options
from runners.record import prepare

ROWS = [
    metrics_row(1, **{"losses/loss": 0.5}),
    metrics_row(2, **{"losses/loss": 0.25, "charts/avg_episodic_return": 1.5, "charts/SPS": 100.0}),
    metrics_row(3, **{"losses/loss": 0.125, "charts/avg_episodic_return": 2.5, "charts/SPS": 110.0}),
]

WRITE = f"""
import json, sys
from pathlib import Path
from runners.mirror import start_mirror
from runners.options import Options
from runners.record import read_spec
folder = Path(sys.argv[1])
options = Options.from_json(sys.argv[2])
warn = lambda sentence: print(sentence, file=sys.stderr)
started = start_mirror(read_spec(folder), folder, options, describe="v1-2-gabc", warn=warn)
for row in json.loads({json.dumps(json.dumps(ROWS))}):
    started.metrics(row)
started.finish(0)
"""


def write_mirror(folder, options, **environment):
    """A W&B run in a process of its own, as in the worker; what it wrote to stderr."""
    spec = make_spec(experiment="suite", question="why?")
    prepare(folder, spec)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(folder), options.to_json()],
        cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stderr


def stored_records(path):
    """The protobuf records of a .wandb file: a 7-byte header, then LevelDB's log format (blocks of 32 KiB, each piece
    with checksum, length and type: 1 whole, 2 first, 3 middle, 4 last)."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("record") / "run"
    warnings = write_mirror(folder, Options(wandb_project="cleanba-suite"))
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return list(stored_records(path)), warnings, folder


def test_an_offline_run_is_named_as_documented(offline):
    records, warnings, _ = offline
    run = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    spec = make_spec(experiment="suite")
    assert (run.project, run.run_group, run.job_type) == ("cleanba-suite", "suite", "train")
    assert (run.run_id, run.display_name) == (spec.run_id, "impala-CartPole-v1-a0-l0-d1-one-s1")
    assert set(run.tags) == {"v1-2-gabc", "one"}
    assert warnings == ""


def test_an_offline_run_has_the_rows_of_the_record(offline):
    records, _, _ = offline
    rows = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({key: value for key, value in row.items() if not key.startswith("_")})
    assert rows == [row | {"global_step": row["env_steps"]} for row in ROWS]


def test_an_offline_run_has_env_steps_as_its_axis(offline):
    records, _, _ = offline
    metrics = [record.metric for record in records if record.WhichOneof("record_type") == "metric"]
    assert ("*", "env_steps") in {(metric.glob_name or metric.name, metric.step_metric) for metric in metrics}


def test_an_offline_run_has_the_spec_as_its_config(offline):
    records, _, _ = offline
    updates = [
        update for record in records if record.WhichOneof("record_type") == "run" for update in record.run.config.update
    ]
    stored = {update.key: json.loads(update.value_json) for update in updates}
    stored.pop("_wandb", None)
    assert stored == json.loads(json.dumps(config(make_spec(experiment="suite"))))
    assert (stored["env_id"], stored["exp_name"], stored["seed"]) == ("CartPole-v1", "impala", 1)
    assert stored["profile"]["name"] == "one"
    assert stored["num_envs"] == 4


def test_no_host_name_is_stored(offline):
    _, _, folder = offline
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    content = path.read_bytes()
    assert socket.gethostname().encode() not in content
    assert b"CartPole-v1" in content  # the search does find what is there


def test_without_network_the_run_goes_on_with_a_warning_and_an_offline_file(tmp_path):
    unreachable = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "3"}
    warnings = write_mirror(tmp_path / "run", Options(track=True), **unreachable)
    assert "W&B online mirror failed, the run goes on: " in warnings
    (path,) = (tmp_path / "run").glob("wandb/offline-run-*/run-*.wandb")
    assert sum(record.WhichOneof("record_type") == "history" for record in stored_records(path)) == 3


def test_a_failure_while_logging_is_told_once():
    class Broken:
        def log(self, row):
            raise OSError("no space left")

        def finish(self, exit_code):
            raise AssertionError("a broken mirror is left alone")

    told = []
    broken = Mirror(Broken(), 1, told.append)
    for row in ROWS:
        broken.metrics(row)
    broken.finish(0)
    assert told == ["W&B mirror off, the run goes on: OSError: no space left"]


def test_the_first_row_every_kth_and_the_last_are_logged():
    class Kept:
        def __init__(self):
            self.updates = []

        def log(self, row):
            self.updates.append(row["update"])

        def finish(self, exit_code):
            self.updates.append("finish")

    for last, expected in ((9, [1, 3, 6, 9, "finish"]), (10, [1, 3, 6, 9, 10, "finish"]), (0, ["finish"])):
        kept = Kept()
        every_third = Mirror(kept, 3, pytest.fail)
        for update in range(1, last + 1):
            every_third.metrics(metrics_row(update))
        every_third.finish(0)
        assert kept.updates == expected


def test_the_environment_variable_wins(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert (mode(track=False), mode(track=True)) == ("offline", "online")
    for value in ("offline", "online", "disabled"):
        monkeypatch.setenv("WANDB_MODE", value)
        assert mode(track=False) == mode(track=True) == value


def test_disabled_means_that_wandb_is_not_even_started(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(mirror, "_init", lambda *_: pytest.fail("W&B was started"))
    started = start_mirror(make_spec(), tmp_path, Options(), describe=None, warn=pytest.fail)
    started.metrics(ROWS[0])
    started.finish(0)
    assert list(tmp_path.iterdir()) == []
