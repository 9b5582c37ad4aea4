"""Which worker has a record, so that no two run one cell and a dead worker's cell is taken over.

A claim is a file `claim.<number>` in the run's folder; the highest number counts, and whoever makes the next one has
the record. It names the holder's process and holds a counter that the holder advances while it lives. On the machine
of the holder the kernel says whether that process is there. On another, a counter that stands still for SILENT_SECONDS
of the observer's own clock is a dead worker's: no clock of the day is read, and no lock, which NFS may lack.

A holder that was itself out of the way for longer than LEASE_SECONDS, stopped or cut off from the server, makes sure
that the claim is still its own before it writes another row.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread

from runners.files import create

BEAT_SECONDS = 5.0
LEASE_SECONDS = 30.0  # less than SILENT_SECONDS: a holder doubts itself before others give it up
SILENT_SECONDS = 60.0  # a network file system may show a change late; NFS keeps attributes for up to 60 s
LOOK_SECONDS = 0.5  # between two looks at another's counter
BEAT, RELEASED = "beat {:012d}\n", "released         \n"  # of one length: written in place, also on a full disk


class ClaimLostError(BlockingIOError):
    """Another worker has taken the record over."""


class Claim:
    """A record that this process has. Made by `claim`."""

    def __init__(self, folder: Path, number: int, header: str):
        self._folder, self._number, self._header = folder, number, header
        self._file = os.open(_path(folder, number), os.O_RDWR)
        self._beats, self._lost = 0, False
        self._good_at = _clock()
        self._lock, self._over = Lock(), Event()
        self._thread = Thread(target=self._keep_beating, name="claim", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Before each write. Raises ClaimLostError when the record is another's, OSError when nobody can tell."""
        if _clock() - self._good_at > LEASE_SECONDS:
            self._beat()
        if self._lost:
            raise ClaimLostError(f"{self._folder}: another worker has taken this record over")

    def release(self) -> None:
        """Let the next one have the record. What cannot be written is learned from the end of this process."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self._write(RELEASED)
        os.close(self._file)

    def _keep_beating(self) -> None:
        while not self._lost and not self._over.wait(BEAT_SECONDS):
            with suppress(OSError):  # a beat that cannot be written: the lease runs out, and `check` tells
                self._beat()

    def _beat(self) -> None:
        with self._lock:
            began = _clock()
            self._beats += 1
            self._write(BEAT.format(self._beats))
            self._lost = self._lost or not self._is_newest()
            if not self._lost:
                self._good_at = began

    def _write(self, line: str) -> None:
        os.pwrite(self._file, line.encode(), len(self._header))
        os.fsync(self._file)  # to the server: the others are there

    def _is_newest(self) -> bool:
        return _newest(self._folder) == self._number and _read(self._folder, self._number).startswith(self._header)


@contextmanager
def claim(folder: Path) -> Iterator[Claim]:
    """Hold the record against all other workers. Raises BlockingIOError when a living one has it; where only its
    counter can tell, that takes one beat, and SILENT_SECONDS to take the record from a dead one."""
    held = _take(folder)
    try:
        yield held
    finally:
        held.release()


def holder(folder: Path) -> str:
    """Where the worker is that has the record: `nowhere`, `here` on this machine, or `elsewhere`, alive or not."""
    number = _newest(folder)
    return "nowhere" if number is None else _holder(_read(folder, number))


def is_claimed(folder: Path) -> bool:
    return holder(folder) != "nowhere"


def _take(folder: Path) -> Claim:
    while True:
        newest = _newest(folder)
        if newest is not None:
            _wait_until_free(folder, newest)
        number = 0 if newest is None else newest + 1
        header = json.dumps({"token": os.urandom(8).hex(), **_this_process()}) + "\n"
        try:
            create(_path(folder, number), header + BEAT.format(0))
        except FileExistsError:
            continue  # another was quicker
        if _newest(folder) != number:  # more than one other was: the older claims, and their numbers, are gone
            _path(folder, number).unlink(missing_ok=True)
            continue
        for old in _numbers(folder):
            if old < number:
                _path(folder, old).unlink(missing_ok=True)
        return Claim(folder, number, header)


def _wait_until_free(folder: Path, number: int) -> None:
    """Return once the holder is gone. Raises BlockingIOError as soon as it is known to live."""
    first, deadline = _read(folder, number), _clock() + SILENT_SECONDS
    while (where := _holder(content := _read(folder, number))) != "nowhere":
        if where == "here" or content != first:
            raise BlockingIOError(f"{folder}: another worker has this record")
        if _clock() > deadline:
            return
        time.sleep(LOOK_SECONDS)


def _holder(content: str) -> str:
    """As `holder`. A claim that is being removed, because there is a newer one, is no longer anybody's."""
    header, _, line = content.partition("\n")
    if not content or line == RELEASED:
        return "nowhere"
    try:
        named = json.loads(header)
        this = _this_process()
        if any(named[key] != this[key] for key in ("boot_id", "pid_namespace")):
            return "elsewhere"
        return "here" if _started_ticks(named["pid"]) == named["started_ticks"] else "nowhere"
    except (ValueError, KeyError):
        return "elsewhere"


def _this_process() -> dict[str, str | int | None]:
    """What tells this process from any other: no pid means anything in another boot or another container."""
    return {
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "pid": os.getpid(),
        "started_ticks": _started_ticks(os.getpid()),
    }


def _started_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None when it is gone or a zombie. See proc(5)."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])


def _numbers(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("claim.")) for path in folder.glob("claim.*")]


def _newest(folder: Path) -> int | None:
    return max(_numbers(folder), default=None)


def _path(folder: Path, number: int) -> Path:
    return folder / f"claim.{number}"


def _read(folder: Path, number: int) -> str:
    """Opened anew each time: that is when NFS looks at the server."""
    try:
        return _path(folder, number).read_text()
    except FileNotFoundError:
        return ""


def _clock() -> float:
    """Seconds that nobody can set, and that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
