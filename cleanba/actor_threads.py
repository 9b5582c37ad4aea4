"""Threads that end together: what one of them raises is raised in the thread that waits for their work."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from cleanba.channel import Stopped

T = TypeVar("T")

HUNG_SECONDS = 1800.0  # without a rollout, after which an actor is not slow: the longest take minutes
_JOIN_SECONDS = 10.0  # for a thread to finish the env step that it is in


class ActorThreads:
    """Start with `start`, end with `end`. Channels that wait on `stop` let go when one thread failed."""

    def __init__(self):
        self.stop = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, lives: Sequence[Callable[[], None]]) -> None:
        """One thread for each function, which returns or raises Stopped when the run ends."""
        for number, life in enumerate(lives):
            thread = threading.Thread(target=self._run, args=(life,), name=f"actor-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> list[bool]:
        """Stop the threads; whether each has ended. One that hangs in an emulator is left behind."""
        self.stop.set()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
        return [not thread.is_alive() for thread in self._threads]

    def unless_failed(self, action: Callable[[], T]) -> T:
        """The result of `action`, which waits for the threads. Raises RuntimeError if one of them failed or hangs."""
        try:
            return action()
        except TimeoutError:
            raise RuntimeError(
                f"no rollout for {HUNG_SECONDS:,.0f} s: an actor thread hangs in its environment"
            ) from None
        except Stopped:
            error = self._failures[0]
            raise RuntimeError(f"an actor thread failed: {type(error).__name__}: {error}") from error

    def _run(self, life: Callable[[], None]) -> None:
        """An actor thread's life. Any exception ends the run."""
        try:
            life()
        except Stopped:
            pass
        except BaseException as error:
            self._failures.append(error)
            self.stop.set()
