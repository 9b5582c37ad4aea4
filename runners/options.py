"""What a launcher tells a worker besides the run's spec."""

import json
from dataclasses import asdict, dataclass

BUSY = 75  # exit code of a worker that finds another at the record (EX_TEMPFAIL of sysexits.h)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is carried out. Nothing here is part of its meaning."""

    allow_mismatch: bool = False
    save_policy: bool = True
    cpu_ids: tuple[int, ...] = ()  # that the launcher has set aside; none: the first usable ones
    replay_of: str = ""  # a record's folder: train its run again, as far as the first fingerprint that differs
    launcher_pid: int = 0  # whose end ends the worker; 0: a worker that a person started
    process: int = 0  # of a run with several; process 0 starts the others
    coordinator: str = ""  # address at which they meet
    cpus_shared: bool = False  # with other runs of the same launcher; their speed is then not the profile's
    mirror: bool = True  # in W&B; not of a run made again, whose id is that of the first one's W&B run
    track: bool = False  # W&B online
    wandb_project: str = "cleanba-bench"
    wandb_entity: str | None = None
    log_frequency: int = 1  # in updates between two rows of W&B

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Options":
        return cls(**json.loads(text))
