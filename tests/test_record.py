"""The record: what is written is what is read, whatever interrupts it."""

import errno
import inspect
import json
import os
import re

import numpy as np
import pytest
from cells import episode_row, make_spec, metrics_row

from cleanba import recorder
from runners import record
from runners.record import (
    RecordWriter,
    compact,
    last_metrics,
    prepare,
    read_rows,
    read_spec,
    read_status,
)

FINGERPRINT = {"update": 1, "stage": "params", "shard": -1, "digest": "0123456789012345", "step_digests": "01234567"}
TIMING = {"update": 1, "env_steps": 20, "wall_seconds": 0.1} | {
    f"{what}_seconds": 0.25 for what in ("rollout", "params_wait", "env", "inference", "rollout_wait", "learn")
}


@pytest.fixture
def folder(tmp_path):
    spec = make_spec()
    prepare(spec.folder(tmp_path), spec)
    return spec.folder(tmp_path)


def write_segment(folder, segment, updates):
    """One start of the run: machine facts, an episode and a row of metrics per update; the writer stays open."""
    record.write_machine(folder, segment, {})
    writer = RecordWriter(folder, segment=segment)
    for update in updates:
        writer.episodes([episode_row(update, episode_return=100.0 * segment + update)])
        writer.metrics(metrics_row(update, **{"losses/loss": segment + update / 10}))
    return writer


def test_the_writer_is_the_trainers_recorder():
    methods = [name for name in vars(recorder.Recorder) if not name.startswith("_")]
    assert methods == ["metrics", "episodes", "fingerprints", "timing"]
    for name in methods:
        protocol, ours = getattr(recorder.Recorder, name), getattr(RecordWriter, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(protocol).parameters)


def test_columns_are_those_of_the_trainer():
    for table in ("episodes", "fingerprints", "timing"):
        columns = getattr(recorder, f"{table.removesuffix('s').upper()}_COLUMNS")
        assert tuple(record.COLUMNS[table]) == ("schema", "segment", *columns)


@pytest.mark.parametrize("complete", [False, True])
def test_what_is_written_is_read_back_to_the_bit(folder, complete):
    writer = RecordWriter(folder, segment=0)
    writer.metrics(metrics_row(1, learning_rate=np.float32(6e-4)))
    writer.metrics(metrics_row(2, learning_rate=0.1 + 0.2, **{"charts/avg_episodic_return": 1 / 3}))
    writer.episodes([episode_row(1, episode_return=1 / 3, truncated=True), episode_row(2, env=np.int32(3))])
    writer.fingerprints([FINGERPRINT])
    writer.timing(TIMING)
    if complete:
        writer.close("complete")
    metrics = read_rows(folder, "metrics")
    assert metrics["learning_rate"].tolist() == [float(np.float32(6e-4)), 0.1 + 0.2]
    assert np.isnan(metrics["charts/avg_episodic_return"][0])  # no finished episode yet: missing, not 0
    assert metrics["charts/avg_episodic_return"][1] == 1 / 3
    episodes = read_rows(folder, "episodes")
    assert episodes.iloc[0].to_dict() == {"schema": 1, "segment": 0} | episode_row(1, episode_return=1 / 3, truncated=1)
    assert episodes["env"].tolist() == [1, 3]
    assert read_rows(folder, "fingerprints").to_dict("records") == [{"schema": 1, "segment": 0} | FINGERPRINT]
    assert read_rows(folder, "timing").to_dict("records") == [{"schema": 1, "segment": 0} | TIMING]
    assert (folder / "metrics.parquet").exists() == complete
    assert (folder / "metrics.jsonl").exists() != complete


def test_named_columns_come_in_their_order_and_an_unmeasured_one_is_missing(folder):
    write_segment(folder, 0, [1, 2])
    rows = read_rows(folder, "metrics", ["env_steps", "charts/avg_episodic_return"])
    assert rows.columns.tolist() == ["env_steps", "charts/avg_episodic_return"]
    assert rows["env_steps"].tolist() == [20, 40]
    assert rows["charts/avg_episodic_return"].isna().all()


def test_a_record_without_rows_is_empty_not_an_error(folder):
    for table in record.FILES:
        assert len(read_rows(folder, table)) == 0
    RecordWriter(folder, segment=0)
    for table in record.FILES:
        assert len(read_rows(folder, table)) == 0
    assert {"segment", "update", "env_steps"} <= set(read_rows(folder, "episodes").columns)


def test_rows_are_on_disk_before_the_method_returns(folder):
    write_segment(folder, 0, [1])  # not closed
    assert (folder / "metrics.jsonl").read_text().count("\n") == 1
    assert (folder / "episodes.csv").read_text().count("\n") == 2  # and the header


@pytest.mark.parametrize("table", ["metrics", "episodes"])
def test_a_torn_last_line_is_dropped_and_said(folder, table):
    write_segment(folder, 0, [1, 2])
    path = folder / record.FILES[table]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match="a torn last line of .* bytes is dropped"):
        rows = read_rows(folder, table)
    assert rows["update"].tolist() == [1]


def test_a_torn_last_line_does_not_spoil_the_next_segment(folder):
    write_segment(folder, 0, [1, 2])
    path = folder / "episodes.csv"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match=r"episodes.csv: a torn last line of \d+ bytes is cut"):
        write_segment(folder, 1, [2, 3])
    assert read_rows(folder, "episodes")["episode_return"].tolist() == [1.0, 102.0, 103.0]


def test_the_last_segment_wins_from_its_first_update_on(folder):
    write_segment(folder, 0, range(1, 6))
    write_segment(folder, 1, range(4, 6))
    write_segment(folder, 2, range(5, 8))
    metrics = read_rows(folder, "metrics")
    assert metrics["update"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert metrics["segment"].tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert read_rows(folder, "episodes")["segment"].tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 10  # nothing is deleted


def test_a_later_segment_supersedes_episodes_before_it_has_one_of_its_own(folder):
    write_segment(folder, 0, range(1, 6))
    writer = RecordWriter(folder, segment=1)
    assert len(read_rows(folder, "episodes")) == 5  # a start without a row supersedes nothing
    writer.metrics(metrics_row(3))
    assert read_rows(folder, "episodes")["update"].tolist() == [1, 2]


def test_a_compaction_cut_short_loses_and_doubles_nothing(folder, monkeypatch):
    writer = write_segment(folder, 0, range(1, 4))
    monkeypatch.setattr(record, "FILES", {"metrics": "metrics.jsonl"})  # it got as far as the metrics
    compact(folder)
    monkeypatch.undo()
    assert not (folder / "metrics.jsonl").exists()
    assert (folder / "episodes.csv").exists()
    del writer
    write_segment(folder, 1, range(3, 6)).close("complete")
    for table in ("metrics", "episodes"):
        assert read_rows(folder, table)["segment"].tolist() == [0, 0, 1, 1, 1]
        assert len(record._stored_rows(folder, table)) == 6
    compact(folder)
    assert len(record._stored_rows(folder, "metrics")) == 6


@pytest.mark.parametrize("compacted", [False, True])
def test_a_start_after_the_last_update_knows_that_all_is_there(folder, compacted):
    """Its trainer has nothing to do: the worker before it was killed when all rows were written."""
    write_segment(folder, 0, range(1, 4))
    if compacted:
        compact(folder)
    writer = RecordWriter(folder, segment=1)
    assert writer.status.env_steps == read_status(folder).env_steps == 60
    writer.close("complete")
    assert read_rows(folder, "metrics")["update"].tolist() == [1, 2, 3]


def test_text_left_beside_its_own_parquet_is_not_counted_twice(folder):
    write_segment(folder, 0, range(1, 4))
    text = (folder / "metrics.jsonl").read_text()
    compact(folder)
    (folder / "metrics.jsonl").write_text(text)
    assert read_rows(folder, "metrics")["update"].tolist() == [1, 2, 3]


def test_a_complete_record_takes_no_more_rows(folder):
    write_segment(folder, 0, [1]).close("complete")
    with pytest.raises(ValueError, match="the record is complete; nothing may be added"):
        RecordWriter(folder, segment=1)


def test_the_mirror_is_handed_each_row_after_it_is_written(folder):
    heard = []

    def listen(row):
        heard.append((row["update"], (folder / "metrics.jsonl").read_text().count("\n"), row["stats/x"]))

    writer = RecordWriter(folder, segment=0)
    writer.on_metrics = listen
    writer.metrics(metrics_row(1, **{"stats/x": 0.5}))
    writer.metrics(metrics_row(2, **{"stats/x": float("nan")}))
    assert heard == [(1, 1, 0.5), (2, 2, None)]


def test_a_number_that_is_not_finite_is_stored_as_missing(folder):
    writer = RecordWriter(folder, segment=0)
    writer.metrics(metrics_row(7, **{"losses/loss": 1.0, "losses/value_loss": float("nan")}))
    writer.metrics(metrics_row(8, **{"losses/loss": float("-inf"), "losses/value_loss": 2.0}))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["losses/loss"], line["losses/value_loss"]) for line in lines] == [(1.0, None), (None, 2.0)]
    assert read_rows(folder, "metrics")["losses/value_loss"].isna().tolist() == [True, False]


def test_a_record_with_other_columns_is_not_gone_on_with(folder):
    """A version that wrote one column less: rows of this one would be read as shifted."""
    table = folder / "fingerprints.csv"
    table.write_text("schema,segment,update,stage,shard,digest\n1,0,1,params,-1,0123456789012345\n")
    with pytest.raises(
        ValueError, match=r"fingerprints.csv: begins with schema,.*digest; needed: schema,.*step_digests"
    ):
        RecordWriter(folder, segment=1)
    assert table.read_text().count("\n") == 2


def test_a_row_with_a_wrong_column_is_refused(folder):
    writer = RecordWriter(folder, segment=0)
    with pytest.raises(ValueError, match="fingerprints: a row lacks digest; needed: schema, segment, update, stage"):
        writer.fingerprints([{"update": 1, "stage": "params", "shard": -1}])
    with pytest.raises(ValueError, match="fields not in fieldnames: 'hash'"):
        writer.fingerprints([FINGERPRINT | {"hash": "0"}])


def test_a_full_disk_is_an_error_and_keeps_what_was_written(folder):
    write_segment(folder, 0, [1])
    writer = RecordWriter(folder, segment=1)
    os.dup2(os.open("/dev/full", os.O_WRONLY), writer._files["metrics"])
    with pytest.raises(OSError, match="No space left on device") as error:
        writer.metrics(metrics_row(2))
    assert error.value.errno == errno.ENOSPC
    assert read_rows(folder, "metrics")["update"].tolist() == [1]


def test_a_disk_that_fills_during_compaction_leaves_a_failed_record_with_all_rows(folder, monkeypatch):
    import pandas as pd

    def full(rows, path, **_):
        path.write_bytes(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    writer = write_segment(folder, 0, [1, 2])
    with pytest.raises(OSError, match="No space left on device"):
        writer.close("complete")
    writer.close("failed", "OSError: [Errno 28] No space left on device")
    assert (read_status(folder).state, read_status(folder).env_steps) == ("failed", 40)
    assert read_rows(folder, "metrics")["update"].tolist() == [1, 2]
    assert not list(folder.glob(".*.parquet"))


@pytest.mark.parametrize("columns", [None, ["update"]])
@pytest.mark.parametrize("size", [0, 100, -100])
def test_a_damaged_parquet_file_is_named(folder, columns, size):
    write_segment(folder, 0, [1, 2]).close("complete")
    path = folder / "metrics.parquet"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: cannot be read, it is damaged or no Parquet file"):
        read_rows(folder, "metrics", columns)


def test_a_warning_is_kept_whatever_follows(folder, capsys):
    writer = write_segment(folder, 0, [1])
    writer.warn("W&B mirror off")
    assert read_status(folder).warnings == ["W&B mirror off"]
    writer.close("complete")
    writer.warn("W&B could not finish")
    assert read_status(folder).state == "complete"
    assert read_status(folder).warnings == ["W&B mirror off", "W&B could not finish"]
    assert capsys.readouterr().err == "warning: W&B mirror off\nwarning: W&B could not finish\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_the_status_is_written_in_place(folder, monkeypatch, number):
    def full(path, content):
        raise OSError(number, os.strerror(number))

    writer = write_segment(folder, 0, [1])
    monkeypatch.setattr(record, "write_atomically", full)
    writer.close("failed", "OSError: [Errno 28] No space left on device")
    status = read_status(folder)
    assert (status.state, status.env_steps) == ("failed", 20)
    (folder / "status.json").unlink()
    with pytest.raises(OSError, match=os.strerror(number)):
        record.write_status(folder, status)


def test_status_tells_segment_env_steps_and_reason(folder):
    assert read_status(folder).state == "pending"  # prepared
    writer = write_segment(folder, 3, [1, 2])
    writer.close("failed", "actor 1 died")
    status = read_status(folder)
    assert (status.state, status.reason, status.segment, status.env_steps) == ("failed", "actor 1 died", 3, 40)
    assert status.pid == os.getpid()
    assert status.started_at.endswith("+00:00")
    assert json.loads((folder / "status.json").read_text())["schema"] == 1


def test_the_status_follows_the_run(folder, monkeypatch):
    monkeypatch.setattr(record, "HEARTBEAT_SECONDS", 0.0)
    write_segment(folder, 0, [1, 2])
    assert read_status(folder).env_steps == 40
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]  # no temporary file stays


def test_files_that_are_not_what_they_should_be_are_named(folder):
    (folder / "status.json").write_text("{")
    with pytest.raises(ValueError, match=r"status.json: cannot be read as a status"):
        read_status(folder)
    (folder / "spec.json").write_text("{}")
    with pytest.raises(ValueError, match=r"spec.json: cannot be read as a run spec"):
        read_spec(folder)
    assert read_status(folder.parent) is None


def test_prepare_refuses_a_record_of_another_meaning(folder, tmp_path):
    prepare(folder, make_spec())  # the same: nothing to do
    with pytest.raises(ValueError, match="holds a record with algorithm impala, not other; move it away first"):
        prepare(folder, make_spec(algorithm="other"))
    with pytest.raises(ValueError, match="holds a record with run_id"):
        prepare(folder, make_spec(seed=2))
    assert read_spec(folder) == make_spec()


def test_the_last_row_is_read_from_the_end(folder):
    assert last_metrics(folder) is None
    writer = write_segment(folder, 0, range(1, 400))
    assert last_metrics(folder)["update"] == 399
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"update": 4')
    assert last_metrics(folder)["update"] == 399
    del writer


def test_segments_are_counted_by_the_machine_files(folder):
    assert record.next_segment(folder) == 0
    for segment in (0, 9, 10):
        record.write_machine(folder, segment, {"usable_cpus": 2})
    assert record.next_segment(folder) == 11
    assert json.loads((folder / "machine.10.json").read_text()) == {"schema": 1, "segment": 10, "usable_cpus": 2}


def test_a_record_lies_under_experiment_and_run_id(tmp_path):
    spec = make_spec()
    assert spec.folder(tmp_path) == tmp_path / "runs" / "trial" / spec.run_id
