"""Claims: one record, one worker, on one machine and on several, whatever the clocks say."""

import json
import os
import signal
import subprocess
import sys
import time
from threading import Thread

import pytest
from cells import ROOT, make_spec, metrics_row

from runners import record_claim
from runners.files import create
from runners.record import RecordWriter, prepare, read_rows, read_status
from runners.record_claim import ClaimLostError, claim, holder, is_claimed


class Clock:
    """In the place of the clock of this process."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """No thread beats by itself: tests say when."""
    clock = Clock()
    monkeypatch.setattr(record_claim, "_clock", clock)
    monkeypatch.setattr(record_claim.time, "sleep", clock.sleep)
    monkeypatch.setattr(record_claim, "BEAT_SECONDS", 1e6)
    return clock


def claim_of_another_machine(folder, number=0, beats=0):
    named = {"token": "0" * 16, "boot_id": "of another", "pid_namespace": "pid:[1]", "pid": 1, "started_ticks": 1}
    (folder / f"claim.{number}").write_text(json.dumps(named) + "\n" + record_claim.BEAT.format(beats))


def claims(folder):
    return sorted(path.name for path in folder.glob("claim.*"))


def test_one_worker_has_a_record_and_the_next_one_has_it_then(tmp_path):
    assert not is_claimed(tmp_path)
    with claim(tmp_path):
        assert holder(tmp_path) == "here"
        with pytest.raises(BlockingIOError, match="another worker has this record"), claim(tmp_path):
            pytest.fail("two workers have one record")
        assert is_claimed(tmp_path)
    assert not is_claimed(tmp_path)
    with claim(tmp_path):
        assert claims(tmp_path) == ["claim.1"]


HOLD = """
import sys, time
from pathlib import Path
from runners.record_claim import claim
with claim(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """A process of this machine that has the record."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_killed_workers_record_is_taken_over_at_once(tmp_path, other):
    assert holder(tmp_path) == "here"
    other.kill()
    time.sleep(0.2)
    assert holder(tmp_path) == "nowhere"  # a zombie, which nobody has waited for yet
    with claim(tmp_path):
        pass


def test_a_stopped_worker_of_this_machine_keeps_its_record(tmp_path, other, clock):
    other.send_signal(signal.SIGSTOP)
    with pytest.raises(BlockingIOError), claim(tmp_path):
        pytest.fail("taken from a worker that is there")
    assert clock.now == 1000.0  # known at once


def test_another_process_with_the_pid_is_not_the_holder(tmp_path):
    with claim(tmp_path):
        path = tmp_path / "claim.0"
        named = json.loads(path.read_text().partition("\n")[0])
    named["started_ticks"] -= 1
    path.write_text(json.dumps(named) + "\n" + record_claim.BEAT.format(3))
    assert holder(tmp_path) == "nowhere"


def test_a_counter_of_another_machine_that_stands_still_is_a_dead_workers(tmp_path, clock):
    claim_of_another_machine(tmp_path)
    assert holder(tmp_path) == "elsewhere"
    with claim(tmp_path):
        assert record_claim.SILENT_SECONDS < clock.now - 1000 < record_claim.SILENT_SECONDS + 2
        assert claims(tmp_path) == ["claim.1"]


def test_a_counter_that_advances_is_a_living_workers(tmp_path, clock, monkeypatch):
    claim_of_another_machine(tmp_path)

    def sleep(seconds):
        clock.now += seconds
        if clock.now > 1004:
            claim_of_another_machine(tmp_path, beats=1)

    monkeypatch.setattr(record_claim.time, "sleep", sleep)
    with pytest.raises(BlockingIOError), claim(tmp_path):
        pytest.fail("taken from the living")
    assert clock.now < 1006
    assert claims(tmp_path) == ["claim.0"]


@pytest.mark.parametrize("years", [-10, 10])
def test_a_clock_of_the_day_that_is_set_changes_nothing(tmp_path, clock, monkeypatch, years):
    claim_of_another_machine(tmp_path)
    of_the_day = time.time
    monkeypatch.setattr(time, "time", lambda: of_the_day() + years * 365 * 86400)
    os.utime(tmp_path / "claim.0", (of_the_day() - years * 1e7,) * 2)
    with claim(tmp_path):
        assert clock.now - 1000 > record_claim.SILENT_SECONDS


def test_a_claim_that_is_not_readable_is_watched_like_any(tmp_path, clock):
    (tmp_path / "claim.7").write_text("{")
    assert holder(tmp_path) == "elsewhere"
    with claim(tmp_path):
        assert claims(tmp_path) == ["claim.8"]


def test_of_many_that_see_a_dead_worker_one_takes_over(tmp_path, monkeypatch):
    monkeypatch.setattr(record_claim, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(record_claim, "LOOK_SECONDS", 0.01)
    claim_of_another_machine(tmp_path)
    held, busy = [], []

    def take():
        try:
            held.append(record_claim._take(tmp_path))
        except BlockingIOError:
            busy.append(1)

    threads = [Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(busy)) == (1, 15)
    held[0].release()


def test_a_number_that_was_used_and_removed_is_not_taken_again(tmp_path, clock, monkeypatch):
    """One observer is slow: while it makes claim 1, others have been through 1 and are at 2."""
    claim_of_another_machine(tmp_path, number=2)
    seen_before, newest = [0], record_claim._newest
    monkeypatch.setattr(record_claim, "_newest", lambda folder: seen_before.pop() if seen_before else newest(folder))
    monkeypatch.setattr(record_claim, "_wait_until_free", lambda folder, number: number == 0 or free(number))

    def free(number):
        raise BlockingIOError(number)

    with pytest.raises(BlockingIOError, match="2"), claim(tmp_path):
        pytest.fail("two have one record")
    assert claims(tmp_path) == ["claim.2"]


def test_a_holder_that_was_away_too_long_finds_its_record_taken_and_writes_nothing(tmp_path, clock):
    spec = make_spec()
    folder = spec.folder(tmp_path)
    prepare(folder, spec)
    with claim(folder) as held:
        writer = RecordWriter(folder, segment=0, claim=held)
        writer.metrics(metrics_row(1))
        claim_of_another_machine(folder, number=1)
        clock.now += record_claim.LEASE_SECONDS - 1
        writer.metrics(metrics_row(2))  # within its lease: nobody has given it up yet
        clock.now += 2
        with pytest.raises(ClaimLostError, match="another worker has taken this record over"):
            writer.metrics(metrics_row(3))
        before = (folder / "status.json").read_bytes()
        with pytest.raises(ClaimLostError):
            writer.close("failed", "it was stopped")
        writer.warn("not kept")
    assert read_rows(folder, "metrics")["update"].tolist() == [1, 2]
    assert (folder / "status.json").read_bytes() == before
    assert read_status(folder).state == "running"


def test_a_holder_that_was_away_and_still_has_its_record_goes_on(tmp_path, clock):
    with claim(tmp_path) as held:
        clock.now += 10 * record_claim.LEASE_SECONDS
        held.check()
        assert (tmp_path / "claim.0").read_text().endswith(record_claim.BEAT.format(1))


def test_the_holder_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(record_claim, "BEAT_SECONDS", 0.05)
    with claim(tmp_path):
        first = (tmp_path / "claim.0").read_text()
        time.sleep(0.5)
        assert (tmp_path / "claim.0").read_text() != first


def test_a_file_is_made_once_and_whole(tmp_path):
    create(tmp_path / "a", "first")
    with pytest.raises(FileExistsError):
        create(tmp_path / "a", "second")
    assert (tmp_path / "a").read_text() == "first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_lost_reply_of_the_server_is_no_refusal(tmp_path, monkeypatch):
    link = os.link

    def twice(source, target):
        link(source, target)
        raise FileExistsError(17, "the second try of a client that heard nothing of the first")

    monkeypatch.setattr(os, "link", twice)
    create(tmp_path / "a", "first")
    assert (tmp_path / "a").read_text() == "first"
    with pytest.raises(FileExistsError):
        create(tmp_path / "a", "second")
