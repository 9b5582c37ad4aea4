"""Short queues between threads that stop together: no thread waits for one that is dead, or for one that hangs."""

import math
import queue
import threading
from typing import Generic, TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.2  # how late a waiting thread may notice a stop


class Stopped(Exception):
    """The run is ending; whoever waits on a channel gets this instead of waiting for ever."""


class Channel(Generic[T]):
    """At most `capacity` items in flight, so that a producer is never further ahead of its consumer.

    A consumer waits `patience_seconds` for one. They are counted while it waits: a process that is stopped for a while
    and goes on has lost none of them.
    """

    def __init__(self, stop: threading.Event, capacity: int = 1, patience_seconds: float = math.inf):
        self._queue: queue.Queue[T] = queue.Queue(maxsize=capacity)
        self._stop = stop
        self._patience_seconds = patience_seconds

    def put(self, item: T) -> None:
        """Raises Stopped once the run is ending."""
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
        raise Stopped

    def get(self) -> T:
        """Raises Stopped once the run is ending, TimeoutError when patience is."""
        waited = 0.0
        while not self._stop.is_set():
            try:
                return self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                waited += _POLL_SECONDS
            if waited >= self._patience_seconds:
                raise TimeoutError
        raise Stopped
