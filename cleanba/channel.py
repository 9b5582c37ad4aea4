"""Short queues between threads that stop together: no thread waits for one that is dead."""

import queue
import threading
from typing import Generic, TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.2  # how late a waiting thread may notice a stop


class Stopped(Exception):
    """The run is ending; whoever waits on a channel gets this instead of waiting for ever."""


class Channel(Generic[T]):
    """At most `capacity` items in flight, so that a producer is never further ahead of its consumer."""

    def __init__(self, stop: threading.Event, capacity: int = 1):
        self._queue: queue.Queue[T] = queue.Queue(maxsize=capacity)
        self._stop = stop

    def put(self, item: T) -> None:
        """Raises Stopped once the run is ending."""
        while not self._stop.is_set():
            try:
                return self._queue.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
        raise Stopped

    def get(self) -> T:
        """Raises Stopped once the run is ending."""
        while not self._stop.is_set():
            try:
                return self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
        raise Stopped
