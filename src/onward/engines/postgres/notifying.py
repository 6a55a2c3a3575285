"""Tells whoever listens that work has come, and does so seldom: each NOTIFY makes commits wait for each other.

Told with every commit, thirty-two producers fell from 11 500 jobs a second to 3 800. So an enqueue tells at most every
few milliseconds. One that comes sooner only leaves word, once it has committed, and the next that may tell takes the
word along. Where none comes soon a thread tells: the last job of a burst is told of too. A worker that was not told
looks by itself, so nothing is lost with a notice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from onward.errors import OnwardError
from onward.postgresql import forking
from onward.postgresql.listening import DUE, EVERYTHING

log = logging.getLogger("onward.engines.postgres")

_APART: Final = 0.005
"""Seconds between two notices of one engine."""
_OWED: Final = 0.005
"""Seconds after which word that was left is told by a notice of its own, if no other could take it along."""
_MOST_NAMES: Final = 20
"""Queues that a notice lists; beyond that it says that there is work somewhere."""


class Bell:
    """Rung for new work, at most so often."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._begin()
        forking.register(self)

    def _begin(self) -> None:
        self._lock = threading.Condition()
        self._owed: set[str] = set()
        self._last = -_APART
        self._thread: threading.Thread | None = None
        self._is_asleep = False
        self._is_closing = False

    def begin_anew(self) -> None:
        """Forget what is the parent's, in a forked child."""
        self._begin()

    def notice_for(self, queues: Iterable[str]) -> str | None:
        """Give the notice that an enqueue is to send with its commit; None: leave word when it has committed.

        It may tell of what others left word of: if the commit fails, leave word of all that it was to tell.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._last < _APART:
                return None
            self._last = now
            owed, self._owed = self._owed, set()
        return _written(owed.union(queues))

    def leave_word(self, queues: Iterable[str]) -> None:
        """Have it told a moment later that work has come."""
        with self._lock:
            self._owed.update(queues)
            if self._thread is None:
                self._is_closing = False
                self._thread = threading.Thread(target=self._run, name="onward-postgres-bell", daemon=True)
                self._thread.start()
            elif self._is_asleep:  # else it waits for its moment: to wake it would cost each enqueue
                self._is_asleep = False
                self._lock.notify_all()

    def close(self) -> None:
        """Tell of what is owed, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._is_closing = True
            self._lock.notify_all()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._owed and not self._is_closing:
                    self._is_asleep = True
                    self._lock.wait()
                if not self._owed:
                    return
                if (left := self._last + _APART + _OWED - time.monotonic()) > 0 and not self._is_closing:
                    self._lock.wait(left)
                    continue
                self._last = time.monotonic()
                owed, self._owed = self._owed, set()
            try:
                self._send(_written(owed))
            except OnwardError as error:
                log.warning("nobody was told of new work, workers find it by polling: %s", error)


def _written(queues: Iterable[str]) -> str:
    """Write what is to be told; DUE may be among the names of queues."""
    names = set(queues)
    if len(names) > _MOST_NAMES:
        names = {EVERYTHING} | names & {DUE}
    return ",".join(sorted(names))
