"""Delays on purpose: a slow actor or learner on any machine. Under `sync` and `cleanba` they change time alone (D3)."""

import time
from enum import IntEnum

import numpy as np

from cleanba import streams
from cleanba.config import Config


class Who(IntEnum):
    """Whose delays a stream is for. The numbers are part of an address: never renumber."""

    ACTOR = 0
    LEARNER = 1


class Delays:
    """The delays of one actor group or of the learner: `seconds` each, or uniform from 0 to it if they are random."""

    def __init__(self, config: Config, seconds: float, who: Who, number: int = 0):
        self._seconds = seconds
        self._random = (
            np.random.default_rng([config.seed, streams.Role.DELAYS, who, number])
            if config.delay_kind == "random"
            else None
        )

    def sleep(self) -> None:
        if self._seconds > 0:
            time.sleep(self._seconds if self._random is None else self._random.uniform(0, self._seconds))
