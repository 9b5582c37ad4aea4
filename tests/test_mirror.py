"""The W&B mirror: W&B's own offline file holds what the record holds, and no failure of W&B reaches the run."""

import json
import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from threading import Event, Thread
from time import monotonic, process_time, sleep
from types import SimpleNamespace

import pytest
import wandb
from cells import ROOT, make_spec, metrics_row

from runners import cli, launcher, mirror, replay, wandb_file
from runners.cli import main
from runners.mirror import Mirror, config, mode, start_mirror
from runners.options import Options
from runners.record import RecordWriter, prepare, write_machine

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
        cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    return done.stderr


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("record") / "run"
    warnings = write_mirror(folder, Options(wandb_project="cleanba-suite"))
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return list(wandb_file.records(path)), warnings, folder


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
    assert sum(record.WhichOneof("record_type") == "history" for record in wandb_file.records(path)) == 3


class Kept:
    """In the place of W&B's run: keeps the updates that it is given."""

    starting_step = 0

    def __init__(self):
        self.updates = []

    def log(self, row, step):
        assert step == row["update"]
        self.updates.append(row["update"])

    def finish(self, exit_code):
        self.updates.append("finish")


class Broken(Kept):
    def log(self, row, step):
        raise OSError("no space left")

    def finish(self, exit_code):
        raise AssertionError("a broken mirror is left alone")


def test_a_failure_while_logging_is_told_once():
    told = []
    broken = Mirror(lambda warn: Broken(), 1, told.append)
    for row in ROWS:
        broken.metrics(row)
    broken.finish(0)
    assert told == ["W&B mirror off, the run goes on: OSError: no space left"]


def test_the_first_row_every_kth_and_the_last_are_logged():
    for last, expected in ((9, [1, 3, 6, 9, "finish"]), (10, [1, 3, 6, 9, 10, "finish"]), (0, ["finish"])):
        kept = Kept()
        every_third = Mirror(lambda warn, kept=kept: kept, 3, pytest.fail)
        for update in range(1, last + 1):
            every_third.metrics(metrics_row(update))
        every_third.finish(0)
        assert kept.updates == expected


def test_rows_that_the_server_has_already_are_not_sent_again():
    kept = Kept()
    kept.starting_step = 3
    for update in range(1, 6):
        mirror.log(kept, metrics_row(update))
    assert kept.updates == [3, 4, 5]


def test_a_wandb_that_hangs_costs_the_run_nothing(monkeypatch):
    for name in ("INIT_TIMEOUT_SECONDS", "FINISH_TIMEOUT_SECONDS"):
        monkeypatch.setattr(mirror, name, 0.1)
    monkeypatch.setattr(mirror, "WAITING_ROWS", 2)
    told, forever, began = [], Event(), monotonic()
    hanging = Mirror(lambda warn: forever.wait() and None, 1, told.append)
    for row in ROWS:
        hanging.metrics(row)
    hanging.finish(0)
    assert monotonic() - began < 2
    assert told == ["W&B mirror off, the run goes on: it does not end; `cleanba mirror` sends what is missing"]
    forever.set()


def test_a_wandb_that_is_behind_gets_the_rest_from_the_record_when_the_run_is_over(monkeypatch):
    monkeypatch.setattr(mirror, "WAITING_ROWS", 2)
    kept, go = Kept(), Event()
    recorded = [metrics_row(update) for update in range(1, 9)]
    behind = Mirror(lambda warn: go.wait() and kept, 3, pytest.fail, recorded_rows=lambda: recorded)
    for row in recorded:
        behind.metrics(row)
    go.set()
    behind.finish(0)
    assert kept.updates == [1, 3, 6, 8, "finish"]


def test_a_thread_that_hands_over_leaves_the_cpu_to_the_run(monkeypatch):
    """The first row costs 50 ms: until the end of the run, the next one is 5 s away."""

    class Slow(Kept):
        def log(self, row, step):
            super().log(row, step)
            began = process_time()
            while process_time() - began < 0.05:
                pass

    slow = Slow()
    throttled = Mirror(lambda warn: slow, 1, pytest.fail)
    for row in ROWS:
        throttled.metrics(row)
    sleep(1)
    assert slow.updates == [1]
    throttled.finish(0)
    assert slow.updates == [1, 2, 3, "finish"]


def write_record(folder, segments, state="complete"):
    """A record whose segments are ranges of updates; its rows have a loss that tells segment and update."""
    prepare(folder, make_spec(experiment="suite"))
    for segment, updates in enumerate(segments):
        write_machine(folder, segment, {})
        writer = RecordWriter(folder, segment=segment)
        for update in updates:
            writer.metrics(metrics_row(update, **{"losses/loss": segment + update / 100}))
    writer.close(state)
    return make_spec(experiment="suite")


def offline_rows(folder):
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    rows = []
    for record in wandb_file.records(path):
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append((record.history.step.num, row["update"], row["losses/loss"]))
    return rows


MERGED = [(1, 1, 0.01), (2, 2, 0.02), (3, 3, 1.03), (4, 4, 1.04), (5, 5, 1.05)]


def test_the_mirror_of_a_later_segment_is_one_run_with_the_rows_before_it(tmp_path):
    """Live: segment 0 has a file of its own with updates 1 to 4; segment 1 goes on at 3, and its file has all."""
    folder = tmp_path / "run"
    spec = write_record(folder, [range(1, 5)], "interrupted")
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tests")!r})
from cells import metrics_row
from runners.mirror import start_mirror
from runners.options import Options
from runners.record import RecordWriter, read_spec, write_machine
folder = Path({str(folder)!r})
segment = int(sys.argv[1])
if segment:
    write_machine(folder, segment, {{}})
    writer = RecordWriter(folder, segment=segment)
started = start_mirror(read_spec(folder), folder, Options(), describe=None, warn=sys.exit)
for update in range(*map(int, sys.argv[2:])):
    row = metrics_row(update, segment=segment, **{{"losses/loss": segment + update / 100}})
    if segment:
        writer.metrics(row)
    started.metrics(row)
started.finish(0)
"""
    for arguments in (["0", "1", "5"], ["1", "3", "6"]):
        subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, check=True, timeout=60)
    assert offline_rows(folder) == MERGED
    assert spec.run_id in next(folder.glob("wandb/offline-run-*")).name


@pytest.fixture
def new_service():
    """W&B's service process keeps the ids of runs, and writes no row of one that it has had; tests share an id."""
    wandb.teardown()


@pytest.mark.faults  # on a loaded machine W&B's service has left the rows out of the file
def test_a_record_is_mirrored_after_the_fact_and_only_once(new_service, tmp_path, capfd):
    folder = make_spec(experiment="suite").folder(tmp_path)
    write_record(folder, [range(1, 5), range(3, 6)])
    spec = make_spec(experiment="suite")
    command = ["mirror", "suite", "--results", str(tmp_path)]
    label = f"{spec.run_id} impala CartPole-v1 one s1"
    assert main(command) == 0
    assert capfd.readouterr().out == f"{label}: wrote 5 rows\n"
    assert offline_rows(folder) == MERGED
    (before,) = folder.glob("wandb/offline-run-*")
    assert main(command) == 0
    assert capfd.readouterr().out == f"{label}: has all 5 rows\n"
    assert list(folder.glob("wandb/offline-run-*")) == [before]


@pytest.mark.faults  # on a loaded machine W&B's service has left the rows out of the file
def test_a_mirror_that_lacks_a_row_is_told(new_service, tmp_path, monkeypatch, capfd):
    folder = make_spec(experiment="suite").folder(tmp_path)
    write_record(folder, [range(1, 4)])
    monkeypatch.setattr(mirror, "log", lambda run, row, log=mirror.log: row["update"] == 2 or log(run, row))
    assert main(["mirror", "suite", "--results", str(tmp_path)]) == 1
    assert capfd.readouterr().err.endswith(": W&B has 2 rows, the record 3\n")


class StoredRun(Kept):
    """A run that the server has, with some updates; `log` adds to them."""

    entity, project, id = "we", "cleanba-bench", "run"

    def __init__(self, updates):
        self.updates = list(updates)
        self.starting_step = max(updates, default=-1) + 1

    def finish(self, exit_code):
        pass

    def scan_history(self, keys):
        return [{"update": update} for update in self.updates]


@pytest.mark.parametrize(
    ("stored", "kept", "sentence"),
    [
        ([], 25, "sent 25 rows"),
        (range(1, 26), 25, "sent 25 rows"),
        ([1, 10], 17, "has 17 of 25 rows; the live mirror left the others out, and W&B takes none of them now"),
        ([1, 10, 20, 25], 4, "has 4 of 25 rows; the live mirror left the others out, and W&B takes none of them now"),
    ],
)
def test_a_mirror_on_the_server_has_every_row_that_it_takes(stored, kept, sentence, tmp_path, monkeypatch):
    """A live run of `cleanba train` sent every 10th row, and perhaps the last."""
    folder, run = tmp_path / "run", StoredRun(stored)
    spec = write_record(folder, [range(1, 26)])
    monkeypatch.setattr(mirror, "init", lambda *_: run)
    monkeypatch.setattr(wandb, "Api", lambda timeout: SimpleNamespace(run=lambda path: run))
    done = mirror.mirror_record(spec, folder, online=True, project="cleanba-bench", entity=None)
    assert (len(run.updates), done) == (kept, sentence)


def test_a_row_that_does_not_arrive_at_the_server_is_told(tmp_path, monkeypatch):
    folder, run = tmp_path / "run", StoredRun([1, 10])
    spec = write_record(folder, [range(1, 26)])
    monkeypatch.setattr(mirror, "init", lambda *_: run)
    monkeypatch.setattr(wandb, "Api", lambda timeout: SimpleNamespace(run=lambda path: StoredRun(run.updates[:-1])))
    with pytest.raises(RuntimeError, match="W&B has 16 rows, the record 25"):
        mirror.mirror_record(spec, folder, online=True, project="cleanba-bench", entity=None)


class Server:
    """A W&B that does not do what it should: answers each request with a status, or not at all."""

    def __init__(self, answer):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):  # noqa: N805
                self.requests.append((handler.path, monotonic()))
                answer(handler)

            do_GET = do_POST  # noqa: N815

            def log_message(handler, *_):  # noqa: N805
                pass

        self.requests = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self):
        self._thread = Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()


def answer_with(status, **headers):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    return answer


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["429", "500", "hangs"])
def test_a_server_in_trouble_is_asked_a_bounded_number_of_times(tmp_path, kind):
    """The run goes on, its warning is kept, and the file for later has every row."""
    over = Event()
    answers = {
        "429": answer_with(429, Retry_After="3"),
        "500": answer_with(500),
        "hangs": lambda handler: over.wait(60),
    }
    with Server(answers[kind]) as server:
        reach = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "12"}
        began = monotonic()
        warnings = write_mirror(tmp_path / "run", Options(track=True), **reach)
        seconds = monotonic() - began
        over.set()
    assert "W&B online mirror failed, the run goes on: " in warnings
    assert seconds < mirror.INIT_TIMEOUT_SECONDS + mirror.FINISH_TIMEOUT_SECONDS
    assert 1 <= len(server.requests) <= 60
    print(f"\n{kind}: {len(server.requests)} requests, over after {seconds:.0f} s")
    if kind == "429":
        times = [at for path, at in server.requests if path == "/graphql"]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert pauses
        assert min(pauses) > 2.9  # as Retry-After asks
    (path,) = (tmp_path / "run").glob("wandb/offline-run-*/run-*.wandb")
    assert wandb_file.count_rows(path) == 3


def test_the_environment_variable_wins(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert (mode(track=False), mode(track=True)) == ("offline", "online")
    for value in ("offline", "online", "disabled"):
        monkeypatch.setenv("WANDB_MODE", value)
        assert mode(track=False) == mode(track=True) == value


@pytest.mark.parametrize(("mode", "options"), [("disabled", Options()), ("offline", Options(mirror=False))])
def test_disabled_means_that_wandb_is_not_even_started(mode, options, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setattr(mirror, "init", lambda *_: pytest.fail("W&B was started"))
    started = start_mirror(make_spec(), tmp_path, options, describe=None, warn=pytest.fail)
    started.metrics(ROWS[0])
    started.finish(0)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def launched(monkeypatch):
    """The options of launches that start nothing."""
    found = []

    def note(cells, results, *, options, **_):
        found.append(options)
        return []

    for module in (launcher, replay):
        monkeypatch.setattr(module, "launch", note)
    monkeypatch.setattr(launcher, "check_machine", lambda cells: [])
    return found


def test_a_run_trained_again_by_bisect_has_no_mirror(launched, tmp_path):
    folder = tmp_path / "run"
    write_record(folder, [range(1, 3)], "interrupted")
    row = {"update": 1, "stage": "params", "shard": -1, "digest": "0" * 16, "step_digests": ""}
    RecordWriter(folder, segment=1).fingerprints([row])
    with pytest.raises(ValueError, match="stopped before the run began"):
        replay.replay(folder, tmp_path)
    assert [options.mirror for options in launched] == [False]


@pytest.mark.parametrize("fresh", [True, False])
def test_runs_made_anew_by_regress_have_no_mirror(fresh, launched, tmp_path):
    cli._run_for_verdict(ROOT / "experiments" / "quickstart.yaml", tmp_path, fresh=fresh, jobs=1)
    assert [options.mirror for options in launched] == [not fresh]
