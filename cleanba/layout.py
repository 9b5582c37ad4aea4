"""Where a run's logical parts sit: actor groups on threads and devices, learner shards on devices.

Nothing here changes a run's result. Imports nothing outside the standard library.
"""

import re
from dataclasses import dataclass

_NOTATION = re.compile(r"a(\d+(?:,\d+)*)-l(\d+(?:,\d+)*)-d(\d+)")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Cleanba's notation: `a0-l1,2-d2` has actors on device 0 and learners on devices 1 and 2 of each of 2 processes.

    Device ids count within one process. `threads_per_actor_device` actor threads serve each actor device's groups.
    """

    actor_device_ids: tuple[int, ...]
    learner_device_ids: tuple[int, ...]
    num_processes: int = 1
    threads_per_actor_device: int = 2  # as the original's --num-actor-threads

    def __post_init__(self):
        for role, ids in (("actor", self.actor_device_ids), ("learner", self.learner_device_ids)):
            if not ids:
                raise ValueError(f"layout: it names no {role} device; name at least one")
            if len(set(ids)) != len(ids):
                raise ValueError(f"layout: {role} devices {list(ids)} name a device twice; name each once")
        if self.num_processes < 1:
            raise ValueError(f"layout: num_processes is {self.num_processes}; allowed: 1 or more")
        if self.threads_per_actor_device < 1:
            raise ValueError(f"layout: threads_per_actor_device is {self.threads_per_actor_device}; allowed: 1 or more")

    @classmethod
    def parse(cls, notation: str, *, threads_per_actor_device: int = 2) -> "Layout":
        """`a0,1-l2,3-d1` -> Layout. Raises ValueError that says the allowed form."""
        match = _NOTATION.fullmatch(notation)
        if not match:
            raise ValueError(f"layout: {notation!r} is not of the form a<ids>-l<ids>-d<processes>, such as a0-l1,2-d1")
        actors, learners, processes = match.groups()
        return cls(
            actor_device_ids=tuple(int(i) for i in actors.split(",")),
            learner_device_ids=tuple(int(i) for i in learners.split(",")),
            num_processes=int(processes),
            threads_per_actor_device=threads_per_actor_device,
        )

    def __str__(self) -> str:
        actors = ",".join(str(i) for i in self.actor_device_ids)
        learners = ",".join(str(i) for i in self.learner_device_ids)
        return f"a{actors}-l{learners}-d{self.num_processes}"

    @property
    def devices_per_process(self) -> int:
        """How many local devices a process must have for this layout."""
        return max(self.actor_device_ids + self.learner_device_ids) + 1

    def check(self, *, num_actor_groups: int, num_shards: int) -> None:
        """Raise ValueError if the logical parts do not divide evenly over this layout."""
        learners = len(self.learner_device_ids) * self.num_processes
        if num_shards % learners:
            raise ValueError(
                f"layout: num_shards {num_shards} does not divide over the {learners} learner devices of {self}; "
                f"allowed: a multiple of {learners}"
            )
        actors = len(self.actor_device_ids) * self.num_processes
        if num_actor_groups % actors:
            raise ValueError(
                f"layout: num_actor_groups {num_actor_groups} does not divide over the {actors} actor devices of "
                f"{self}; allowed: a multiple of {actors}"
            )
