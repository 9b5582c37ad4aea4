"""A worker whose trainer counts: it saves where it is, goes on from there, and its rows follow from (seed, update)."""

import json
import sys
import time
from pathlib import Path

from cells import episode_row, metrics_row

from runners.files import write_atomically
from runners.machine import host_facts
from runners.options import Options
from runners.record import RecordWriter, read_spec
from runners.spec import RunSpec
from runners.worker import run_cell

UPDATE_SECONDS = 0.03
SAVED_EVERY = 4  # updates


def count(spec: RunSpec, recorder: RecordWriter) -> None:
    saved = recorder.folder / "saved.json"
    first = 1 + (json.loads(saved.read_text())["update"] if saved.exists() else 0)
    for update in range(first, spec.derived["num_updates"] + 1):
        time.sleep(UPDATE_SECONDS)
        episodes = [episode_row(update, env=env, episode_return=1000.0 * spec.seed + update) for env in (0, 1)]
        recorder.episodes(episodes)
        digest = f"{spec.seed:08x}{update:08x}"
        recorder.fingerprints(
            [{"update": update, "stage": "params", "shard": -1, "digest": digest, "step_digests": ""}]
        )
        recorder.metrics(metrics_row(update, **{"charts/SPS": 20 / UPDATE_SECONDS}))
        if update % SAVED_EVERY == 0:
            write_atomically(saved, {"update": update})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.exit(run_cell(read_spec(folder), folder, count, Options.from_json(sys.argv[2]), measure=host_facts))
