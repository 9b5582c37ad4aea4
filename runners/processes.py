"""The processes of a run whose layout has several (`-d2`): how they find each other, and how they end together.

Process 0 keeps the record. On one machine it starts the others itself; under Slurm, `srun` has started all of them.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.options import Options
from runners.spec import RunSpec

POLL_SECONDS = 0.2
JOIN_SECONDS = 120  # for all processes to start: each imports JAX
HEARTBEAT_SECONDS = 30  # a process that says nothing for so long is taken for dead
NOTICE_SECONDS = 2.0  # between the end of a process and the news of it
GRACE_SECONDS = 15.0  # for this process to notice that another is gone; then it is ended
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def process_of(spec: RunSpec, options: Options) -> int:
    """Which process of its run this is."""
    return int(os.environ["SLURM_PROCID"]) if started_by_slurm(spec) else options.process


def own_cpus(spec: RunSpec, options: Options) -> Sequence[int]:
    """The CPUs of this process: its profile's number of those set aside for the run, or all where there are fewer."""
    size = spec.profile.cpus
    ids = options.cpu_ids or sorted(os.sched_getaffinity(0))[: size * spec.layout().num_processes]
    return ids[options.process * size : (options.process + 1) * size] or ids


def too_few_cpus(spec: RunSpec, options: Options) -> list[str]:
    """What the machine lacks for all processes of a run that start here; one process is the profile's own affair."""
    needed = spec.profile.cpus * spec.layout().num_processes
    found = len(options.cpu_ids or os.sched_getaffinity(0))
    if spec.layout().num_processes == 1 or started_by_slurm(spec) or found >= needed:
        return []
    return [f"{needed} usable CPUs declared for {spec.layout().num_processes} processes, {found} found"]


@contextmanager
def joined(spec: RunSpec, folder: Path, options: Options) -> Iterator[None]:
    """Be process 0 of a run's processes, and end them with this one. JAX may start inside of it, not before.

    Raises RuntimeError, within a minute, when another process has ended before its time.
    """
    count = spec.layout().num_processes
    if count == 1:
        yield
    elif started_by_slurm(spec):
        _join()
        yield
        leave()
    else:
        options = replace(options, coordinator=f"127.0.0.1:{_free_port()}")
        watch = _Watch([_start(folder, replace(options, process=process)) for process in range(1, count)])
        try:
            with watch.raising():
                _join_here(spec, options)
                yield
                leave()
        finally:
            watch.end()


def be_peer(spec: RunSpec, options: Options) -> None:
    """Join as a process that keeps no record. It does not outlive process 0 where that has started it."""
    if started_by_slurm(spec):
        _join()
    else:
        end_with_parent(signal.SIGKILL)
        _join_here(spec, options)


def _join_here(spec: RunSpec, options: Options) -> None:
    layout = spec.layout()
    own = range(options.process * layout.devices_per_process, (options.process + 1) * layout.devices_per_process)
    _join(
        coordinator_address=options.coordinator,
        num_processes=layout.num_processes,
        process_id=options.process,
        local_device_ids=list(own) if spec.profile.platform == "gpu" else None,
    )


def _join(**where: Any) -> None:
    """Of Slurm's processes JAX finds address, number, rank and devices itself."""
    import jax

    jax.distributed.initialize(
        **where, initialization_timeout=JOIN_SECONDS, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
    )


def end_with_parent(number: signal.Signals) -> None:
    """The kernel sends this process a signal when its parent is gone. Linux only."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def leave() -> None:
    """Wait for the others to be through as well."""
    import jax

    jax.distributed.shutdown()


def started_by_slurm(spec: RunSpec) -> bool:
    """Whether `srun` has started all processes of a run that has several."""
    count = spec.layout().num_processes
    return count > 1 and int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) == count


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _start(folder: Path, options: Options) -> subprocess.Popen:
    """A peer; what it prints goes where this process' output goes."""
    command = [sys.executable, "-m", "runners.worker", str(folder), options.to_json()]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


class _Watch:
    """Looks after the peers from a thread. One that ends early ends this process: by an exception where Python gets to
    it, by force where the main thread waits for a peer that is gone."""

    def __init__(self, peers: Sequence[subprocess.Popen]):
        self._peers = peers
        self._lost = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="peers", daemon=True)

    @contextmanager
    def raising(self) -> Iterator[None]:
        def lost(number, frame):
            raise RuntimeError(self._lost)

        before = signal.signal(signal.SIGUSR1, lost)
        self._thread.start()
        try:
            yield
        except Exception as error:  # what JAX says of a peer that is gone names a socket
            self._thread.join(NOTICE_SECONDS)
            if self._lost and str(error) != self._lost:
                raise RuntimeError(self._lost) from error
            raise
        finally:
            self._over.set()
            signal.signal(signal.SIGUSR1, before)

    def end(self) -> None:
        for peer in self._peers:
            if peer.poll() is None:
                peer.kill()
            peer.wait()

    def _look(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            gone = [(p, peer.returncode) for p, peer in enumerate(self._peers, start=1) if peer.poll()]
            if not gone:
                continue
            process, code = gone[0]
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._lost = f"process {process} of {len(self._peers) + 1} {how}; what it said is in the log"
            print(self._lost, file=sys.stderr, flush=True)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            threading.Thread(target=self._end_by_force, daemon=True).start()
            return

    def _end_by_force(self) -> None:
        if not self._over.wait(GRACE_SECONDS):
            print(self._lost, file=sys.stderr, flush=True)  # the log's last line, which the launcher quotes
            os._exit(1)
