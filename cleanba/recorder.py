"""What a trainer hands out while it runs: one method per kind of row.

Every row states `update` (1 is the first) and `env_steps` (agent steps over all envs up to the end of that update, or
up to the row itself for episodes). Rows arrive in the order of updates; the same spec and seed give the same rows in
the same order, but for `wall_seconds` and the timing rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Row = Mapping[str, Any]

EPISODE_COLUMNS = (
    "update", "env_steps", "wall_seconds", "group", "env",
    "episode_return", "clipped_return", "episode_length", "truncated",
)  # fmt: skip
FINGERPRINT_COLUMNS = ("update", "stage", "shard", "digest", "step_digests")
TIMING_COLUMNS = (
    "update", "env_steps", "wall_seconds", "rollout_seconds", "params_wait_seconds", "env_seconds",
    "inference_seconds", "rollout_wait_seconds", "learn_seconds",
)  # fmt: skip


class Recorder(Protocol):
    """Where the rows go. The worker's writes them to the run's record; tests collect them in lists."""

    def metrics(self, row: Row) -> None:
        """One per update: losses, statistics, learning rate, policy versions and lag."""
        ...

    def episodes(self, rows: Sequence[Row]) -> None:
        """The episodes that ended during an update, in the order (time, group, env). Columns: EPISODE_COLUMNS."""
        ...

    def fingerprints(self, rows: Sequence[Row]) -> None:
        """Digests of an update's stages in causal order. Columns: FINGERPRINT_COLUMNS; `shard` is -1 for the whole."""
        ...

    def timing(self, row: Row) -> None:
        """Where an update's time went, in seconds. Columns: TIMING_COLUMNS."""
        ...


class ListRecorder:
    """Keeps every row in memory."""

    def __init__(self):
        self.rows: dict[str, list[Row]] = {"metrics": [], "episodes": [], "fingerprints": [], "timing": []}

    def metrics(self, row: Row) -> None:
        self.rows["metrics"].append(row)

    def episodes(self, rows: Sequence[Row]) -> None:
        self.rows["episodes"].extend(rows)

    def fingerprints(self, rows: Sequence[Row]) -> None:
        self.rows["fingerprints"].extend(rows)

    def timing(self, row: Row) -> None:
        self.rows["timing"].append(row)
