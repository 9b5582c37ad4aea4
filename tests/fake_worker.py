"""A worker like the real one, with a trainer that counts instead of learning. What becomes of a run is in its seed."""

import os
import signal
import sys
import time
from pathlib import Path

from cells import episode_row, metrics_row

from runners.machine import host_facts
from runners.options import Options
from runners.record import RecordWriter, read_spec
from runners.spec import RunSpec
from runners.worker import run_cell

GOOD, RAISES, KILLED, HANGS, STOPS_EARLY, PRINTS_CPUS, HANGS_ONCE, ENDS_BADLY = 1, 2, 3, 4, 5, 6, 98, 99


def count(spec: RunSpec, recorder: RecordWriter) -> None:
    for update in range(1, spec.derived["num_updates"] + 1):
        recorder.episodes([episode_row(update)])
        recorder.metrics(metrics_row(update, **{"charts/avg_episodic_return": float(update), "charts/SPS": 200.0}))
        if update == 3:
            misbehave(spec.seed, recorder.status.segment)
            if spec.seed == STOPS_EARLY:
                return


def misbehave(seed: int, segment: int) -> None:
    if seed == RAISES:
        raise RuntimeError("actor 1 died: no such game")
    if seed == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == HANGS or (seed == HANGS_ONCE and segment == 0):
        time.sleep(60)
    if seed >= PRINTS_CPUS:
        print(f"cpus {sorted(os.sched_getaffinity(0))}")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    spec = read_spec(folder)
    code = run_cell(spec, folder, count, Options.from_json(sys.argv[2]), measure=host_facts)
    sys.exit(9 if spec.seed == ENDS_BADLY else code)
