"""Checkpoints: a run that goes on from one has the bits of a run that was never stopped, where it has segments."""

import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import trainers
from trainers import CARTPOLE, SMALL, first_difference

from cleanba import checkpoints
from cleanba.checkpoints import Checkpoints, Stopped
from cleanba.recorder import ListRecorder
from runners import worker

UPDATES = 9
SEGMENT = 3
ALGORITHMS = [("impala", "cleanba"), ("ppo", "sync")]


class Killed(Exception):
    """Where a test ends a run."""


def config(algo="impala", schedule="cleanba", **more):
    settings = CARTPOLE | SMALL | {"schedule": schedule, "rollout_length": 20, "total_env_steps": UPDATES * 160}
    return trainers.config(algo, **(settings | {"segment_updates": SEGMENT} | more))


class KillingRecorder(ListRecorder):
    """Ends the run in the middle of recording an update."""

    def __init__(self, at):
        super().__init__()
        self._at = at

    def timing(self, row):
        super().timing(row)
        if row["update"] == self._at:
            raise Killed


def run(config, folder, kill_at=None, saving=None):
    """The rows of one start; `saving` gets what the checkpoints report."""
    recorder, told = KillingRecorder(kill_at), [] if saving is None else saving
    kept = Checkpoints(folder, config, warn=told.append, resumed=told.append)
    try:
        params = trainers.train(config, recorder, checkpoints=kept)
    except Killed:
        params = None
    return params, recorder.rows


def merged(starts, table):
    """Rows of all starts, of which a later one's supersede an earlier one's from its first update on."""
    rows = []
    for start in starts:
        first = min((row["update"] for row in start["metrics"]), default=UPDATES + 1)
        rows = [row for row in rows if row["update"] < first] + start[table]
    return rows


def without_clocks(rows):
    return [{key: value for key, value in row.items() if "seconds" not in key and "SPS" not in key} for row in rows]


@pytest.mark.parametrize(("algo", "schedule"), ALGORITHMS)
def test_killed_and_resumed_twice_is_the_run_that_was_not(algo, schedule, tmp_path):
    whole, rows = run(config(algo, schedule), tmp_path / "whole")
    told: list = []
    starts = [
        run(config(algo, schedule), tmp_path / "cut", kill_at=kill_at, saving=told) for kill_at in (5, 4, 8, None)
    ]
    assert told == [3, 3, 6]  # killed in update 5 and then 4: both go on after 3
    again = starts[-1][0]
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, again))
    for table in ("fingerprints", "metrics", "episodes"):
        assert without_clocks(merged([made for _, made in starts], table)) == without_clocks(rows[table]), table
    assert len(rows["fingerprints"]) > 0


def test_control_without_segments_the_resumed_run_is_another(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SAVE_SECONDS", 0.0)  # after every update
    settings = config(segment_updates=0)
    _, rows = run(settings, tmp_path / "whole")
    told: list = []
    starts = [run(settings, tmp_path / "cut", kill_at=kill_at, saving=told)[1] for kill_at in (5, None)]
    assert told == [4]
    before, _ = first_difference(rows["fingerprints"], merged(starts, "fingerprints"))
    assert before["update"] == 5
    assert before["stage"].startswith("rollout/")


def test_segments_are_part_of_the_run_not_of_its_interruption(tmp_path):
    _, rows = run(config(), tmp_path / "a")
    _, other = run(config(segment_updates=0), tmp_path / "b")
    before, _ = first_difference(rows["fingerprints"], other["fingerprints"])
    assert before["update"] == SEGMENT + 1


def test_the_newest_two_are_kept_and_a_corrupted_one_is_said(tmp_path):
    whole, _ = run(config(), tmp_path / "whole")
    folder = tmp_path / "cut"
    run(config(), folder, kill_at=8)
    assert sorted(path.name for path in folder.iterdir()) == ["3", "6"]
    largest = max((path for path in (folder / "6").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)
    told: list = []
    resumed, _ = run(config(), folder, saving=told)
    assert len(told) == 2
    assert f"{folder}/6: the checkpoint cannot be used" in told[0]
    assert told[1] == 3
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, resumed))


def test_with_no_usable_checkpoint_a_run_begins_again(tmp_path):
    folder = tmp_path / "cut"
    run(config(), folder, kill_at=8)
    for path in folder.iterdir():
        shutil.rmtree(path / "default")
    told: list = []
    _, rows = run(config(), folder, saving=told)
    assert [str(sentence).split(":")[0] for sentence in told] == [f"{folder}/6", f"{folder}/3"]
    assert rows["metrics"][0]["update"] == 1


def test_asked_to_stop_a_long_run_saves_and_a_short_one_does_not(tmp_path, monkeypatch):
    settings = config(segment_updates=0)
    kept = Checkpoints(tmp_path / "short", settings)
    assert not kept.stop()
    with pytest.raises(Stopped, match="not saved yet"):
        trainers.train(settings, ListRecorder(), checkpoints=kept)
    monkeypatch.setattr(checkpoints, "SAVE_SECONDS", 0.0)
    kept = Checkpoints(tmp_path / "long", settings)
    assert kept.stop()
    with pytest.raises(Stopped, match="saved after update 1"):
        trainers.train(settings, ListRecorder(), checkpoints=kept)


def end_and_stop():
    """A run that is asked to end, and is saved if it is old."""
    signal.raise_signal(signal.SIGTERM)
    raise Stopped("saved after update 1")


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_second_signal_leaves_the_closing_of_the_record_alone(is_saved):
    with worker._end_on_signal():
        with pytest.raises(worker.Ended), worker._saved_on_signal(SimpleNamespace(stop=lambda: is_saved)):
            end_and_stop()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR2)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"segment_updates": -1}, "segment_updates is -1; allowed: 0"),
        ({"schedule": "async"}, "segment_updates is 3; allowed: 0 with schedule async"),
        ({"seeding": "original"}, "segment_updates is 3; allowed: 0 with seeding original"),
        ({"segment_updates": 1, "total_env_steps": 160 * 513}, "segment_updates is 1; allowed: at least 2 for 513"),
    ],
)
def test_segments_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        config(**settings)
