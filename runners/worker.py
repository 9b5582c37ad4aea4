"""One process, one run: read the spec, set the environment, check the machine, train, keep the record.

    python -m runners.worker RUN_FOLDER [OPTIONS_AS_JSON]

JAX is imported after the environment is set, and in this process only.
"""

import importlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from runners import machine, processes
from runners.mirror import start_mirror
from runners.options import BUSY, Options
from runners.profiles import mismatches
from runners.record import RecordWriter, next_segment, read_spec, read_status, write_machine
from runners.record_claim import Claim, claim
from runners.spec import RunSpec

COMPILATION_CACHE = Path.home() / ".cache" / "cleanba-bench" / "xla"  # most of a short run is compilation
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # the last is Slurm's before the time limit
SAVE_SECONDS = 10  # for a run that is asked to end: less than the launcher's grace
STATE = "checkpoints/state"

Train = Callable[[RunSpec, RecordWriter], None]


class Ended(BaseException):
    """A signal, or the end of its launcher, asked the worker to end."""


def main(arguments: Sequence[str] | None = None) -> int:
    folder, *rest = sys.argv[1:] if arguments is None else arguments
    options = Options.from_json(rest[0]) if rest else Options()
    spec = read_spec(Path(folder))
    set_environment(spec)
    machine.keep_memory()
    if processes.process_of(spec, options) > 0:
        return run_peer(spec, Path(folder), options)
    if options.replay_of:
        return run_cell(spec, Path(folder), partial(train_again, Path(options.replay_of)), options)
    return run_cell(spec, Path(folder), train_and_save if options.save_policy else train, options)


def run_cell(
    spec: RunSpec,
    folder: Path,
    train: Train,
    options: Options,
    *,
    measure: Callable[[], dict[str, Any]] = machine.measure,
) -> int:
    """Carry out one run and keep its record. Returns the exit code: 0, 1 when it failed, BUSY when another has it."""
    try:
        with claim(folder) as held, _end_on_signal():
            if (found := read_status(folder)) and found.state == "complete":
                print(f"{folder}: another worker has completed this record", file=sys.stderr)
                return 0
            return _run_claimed(spec, folder, held, train, options, measure)
    except BlockingIOError:
        print(f"{folder}: another worker has this record", file=sys.stderr)
        return BUSY


def run_peer(spec: RunSpec, folder: Path, options: Options) -> int:
    """Train as one of several processes; what it makes is recorded by process 0. Returns the exit code."""
    from cleanba.checkpoints import Checkpoints
    from cleanba.recorder import ListRecorder

    try:
        machine.confine(spec.profile.cpus, processes.own_cpus(spec, options))
        processes.be_peer(spec, options)
        _trainer(spec)(ListRecorder(), checkpoints=Checkpoints(folder / STATE, spec.config()))
        processes.leave()
    except BaseException:  # raised further, it would have JAX wait, at exit, for a process 0 that waits for this one
        traceback.print_exc()
        return 1
    return 0


def set_environment(spec: RunSpec) -> None:
    """Numerics and device settings, which JAX reads once, when it is imported."""
    from cleanba import numerics

    if "jax" in sys.modules:
        raise RuntimeError("jax is imported already: the environment variables that it reads would come too late")
    profile = spec.profile
    os.environ.update(numerics.environment(profile.platform, spec.layout().devices_per_process, profile.cpus))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILATION_CACHE))


def train(spec: RunSpec, recorder: RecordWriter):
    """The trainer that the spec names, from the newest checkpoint on. Returns the trained parameters."""
    from cleanba.checkpoints import Checkpoints

    folder, exact = recorder.folder / STATE, spec.settings["segment_updates"] > 0
    checkpoints = Checkpoints(folder, spec.config(), warn=recorder.warn, resumed=partial(recorder.resumed, exact=exact))
    with nullcontext() if exact else _saved_on_signal(checkpoints):
        return _trainer(spec)(recorder, checkpoints=checkpoints)


def _trainer(spec: RunSpec) -> Callable[..., Any]:
    trainer = importlib.import_module(f"cleanba.{spec.algo}")
    return partial(trainer.train, spec.config(), spec.layout(), envpool_threads=spec.profile.envpool_threads)


def train_again(recorded: Path, spec: RunSpec, recorder: RecordWriter) -> None:
    from runners.replay import Replay

    _trainer(spec)(Replay(recorder, recorded))


def train_and_save(spec: RunSpec, recorder: RecordWriter) -> None:
    from cleanba import policy

    params = train(spec, recorder)
    path = recorder.folder / "checkpoints" / "policy.msgpack"
    path.parent.mkdir(exist_ok=True)
    policy.save(path, spec.config(), params)


def _run_claimed(spec: RunSpec, folder: Path, held: Claim, train: Train, options: Options, measure) -> int:
    writer, mirror = RecordWriter(folder, segment=next_segment(folder), claim=held), None
    try:
        _end_with(options.launcher_pid)
        wrong = processes.too_few_cpus(spec, options)
        machine.confine(spec.profile.cpus, processes.own_cpus(spec, options))
        with processes.joined(spec, folder, options):
            facts = measure() | {"cpus_shared": options.cpus_shared}
            write_machine(folder, writer.status.segment, facts)
            describe = facts.get("git", {}).get("describe")
            mirror = start_mirror(spec, folder, options, describe=describe, warn=writer.warn)
            writer.on_metrics = mirror.metrics
            _train_checked(spec, train, writer, wrong + mismatches(spec.profile, facts), options)
    except BaseException as error:  # whatever ended the run, its record must say so
        with suppress(OSError):  # the log may be on the disk that is full
            traceback.print_exc()
        if writer.status.state == "running":
            writer.close("interrupted" if isinstance(error, Ended) else "failed", _sentence(error))
        if mirror:
            mirror.finish(1)
        return 1
    with suppress(Ended):  # the record is closed: what W&B has still to send changes nothing of it
        mirror.finish(0)
    return 0


def _train_checked(spec: RunSpec, train: Train, writer: RecordWriter, wrong: list[str], options: Options) -> None:
    """Train on the machine that the profile declares, or file the run as invalid; nothing less than all env steps."""
    if wrong and not options.allow_mismatch:
        raise ValueError(f"the machine is not profile {spec.profile.name}: {'; '.join(wrong)}")
    train(spec, writer)
    if writer.status.env_steps < spec.planned_env_steps:
        raise RuntimeError(f"training ended after {writer.status.env_steps} of {spec.planned_env_steps} env steps")
    writer.close("invalid" if wrong else "complete", "; ".join(wrong))
    shutil.rmtree(writer.folder / STATE, ignore_errors=True)  # nothing goes on from it any more


@contextmanager
def _saved_on_signal(checkpoints: Any) -> Iterator[None]:
    """The signals that end a run let an old one finish its update and save, for as long as its launcher waits."""
    from cleanba.checkpoints import Stopped

    asked: list[str] = []

    def at_once(number, frame):
        raise _ended(f"by {asked[0]}; its update took too long to be saved")

    def save_first(number, frame):
        asked.append(signal.Signals(number).name)
        if not checkpoints.stop():
            raise _ended(f"by {asked[0]}")
        signal.alarm(SAVE_SECONDS)

    handlers = dict.fromkeys(END_SIGNALS, save_first) | {signal.SIGALRM: at_once}
    before = {name: signal.signal(name, handler) for name, handler in handlers.items()}
    try:
        yield
    except Stopped as stopped:
        raise _ended(f"by {asked[0]}, {stopped}") from stopped
    finally:
        signal.alarm(0)
        for name, handler in before.items():
            if signal.getsignal(name) != signal.SIG_IGN:  # as it is while the record of an ended run is closed
                signal.signal(name, handler)


def _ended(reason: str) -> Ended:
    """What ends the worker, from now on without another signal: one would leave the record as running."""
    for name in END_SIGNALS:
        signal.signal(name, signal.SIG_IGN)
    return Ended(reason)


def _sentence(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _end_with(launcher_pid: int) -> None:
    """SIGTERM when the launcher is gone, killed perhaps: nobody would know of a worker that goes on. Linux only."""
    if launcher_pid:
        processes.end_with_parent(signal.SIGTERM)
        if os.getppid() != launcher_pid:  # it was gone before
            raise Ended("its launcher is gone")


@contextmanager
def _end_on_signal() -> Iterator[None]:
    """The signals that ask a worker to end raise Ended in the main thread, once."""

    def end(number, frame):
        raise _ended(f"by {signal.Signals(number).name}")

    before = {name: signal.signal(name, end) for name in END_SIGNALS}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # an actor thread that hangs in an environment must not keep a finished run's process
