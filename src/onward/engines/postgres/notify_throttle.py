"""Tells whoever listens that work has come, and does so seldom: each NOTIFY makes commits wait for each other.

Told with every commit, thirty-two producers fell from 11 500 jobs a second to 3 800. So an enqueue tells at most
every few milliseconds, and the store passes it on only if somebody listens. One that comes sooner only leaves word,
once it has committed, and the next that may tell takes the word along. Where none comes soon a thread tells: the last
job of a burst is told of too. A worker that was not told looks by itself, so nothing is lost with a notice.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from onward.engines.postgres.enqueue_cache import TTL, EnqueueCache
from onward.errors import OnwardError
from onward.pg import fork_safety
from onward.pg.listener import ALL_QUEUES, DUE

log = logging.getLogger("onward.engines.postgres")

_MIN_INTERVAL: Final = 0.005
"""Seconds between two notices of one engine. After as many again, word that was left is told by a notice of its own, if
no other could take it along."""
_COMMIT_TIME_FACTOR: Final = 4
"""If that is longer: so many times as long as the quicker of the last two commits took that told of work. Where many
tell, each waits for the others; and if each took longer than the time between two notices, all would tell with every
commit. One that is slow now and then is the disk's doing, and the next job should not have to wait for that."""
_MAX_INTERVAL: Final = 0.1
"""Seconds between two notices at most, where somebody listens; else it is looked for that as for all that is seen."""
_IDLE_CHECKS: Final = 10
"""How often the thread looks for word in vain before it sleeps until it is woken."""
_MAX_NOTICE_LENGTH: Final = 4000
"""Characters of a notice; the store takes 8 000 bytes. Where names need more, it says that there is work somewhere."""


class NotifyThrottle:
    """Rung for new work, at most so often."""

    def __init__(self, send: Callable[[str], None], cache: EnqueueCache) -> None:
        self._send = send
        self._cache = cache
        self._reset()
        fork_safety.register(self)

    def _reset(self) -> None:
        self._lock = threading.Condition()
        self._pending: set[str] = set()
        self._last_notice_at = -math.inf
        self._interval = _MIN_INTERVAL
        self._commit_time = 0.0
        """Seconds that the last commit took that told of work."""
        self._thread: threading.Thread | None = None
        self._is_asleep = False
        self._idle_checks = 0
        self._is_closing = False

    def reset_after_fork(self) -> None:
        """Forget what is the parent's, in a forked child."""
        self._reset()

    def notice_for(self, queues: Iterable[str]) -> str | None:
        """Give the notice that an enqueue is to send with its commit; None: none, it has told or will be told in time.

        It may tell of what others left word of. :meth:`committed` or :meth:`failed` is to be called when it has.
        """
        now = time.monotonic()
        if now - self._last_notice_at < self._interval or not queues:
            return None
        with self._lock:
            self._last_notice_at = now
            pending, self._pending = self._pending, set()
        return _notice_text(pending.union(queues))

    def next_notice_at(self, queues: Iterable[str]) -> float:
        """Say from when on an enqueue has to tell of these."""
        return self._last_notice_at + self._interval if queues else math.inf

    def committed(self, notice: str | None, queues: Iterable[str]) -> None:
        """Note that new work is there; if it came without a notice, have it told a moment later."""
        if notice is not None:
            before, self._commit_time = self._commit_time, time.monotonic() - self._last_notice_at
            interval = _COMMIT_TIME_FACTOR * min(before, self._commit_time)
            self._interval = min(max(_MIN_INTERVAL, interval), _MAX_INTERVAL) if self._cache.has_listener else TTL
        elif not self._pending.issuperset(queues):  # else whoever takes that word will tell of this work too
            self._defer(queues)

    def failed(self, notice: str | None) -> None:
        """See to it that what was to be told with a commit that failed is told all the same."""
        if notice is not None:
            self._defer(notice.split(","))

    def not_sent(self, notice: str | None) -> None:
        """Have the next enqueue tell, and tell of this too: what was to be sent with it has not been tried."""
        with self._lock:
            self._last_notice_at = -math.inf
            if notice is not None:
                self._pending.update(notice.split(","))

    def _defer(self, queues: Iterable[str]) -> None:
        with self._lock:
            self._pending.update(queues)
            if self._thread is None:
                self._is_closing = False
                self._thread = threading.Thread(target=self._run, name="onward-postgres-notify", daemon=True)
                self._thread.start()
            elif self._is_asleep:  # else it looks by itself, and in time: to wake it would cost each enqueue
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
        while (pending := self._wait()) is not None:
            try:
                self._send(_notice_text(pending))
            except Exception as error:  # whatever it is, there will be more to tell
                is_known = isinstance(error, OnwardError)
                log.warning("nobody was told of new work, workers find it by polling: %s", error, exc_info=not is_known)

    def _wait(self) -> set[str] | None:
        """Wait until something is owed that nobody else has told of in time; None: that is all.

        Word can be left only soon after a notice, and is due so long after that one. So if none is owed now, the next
        one is not due any sooner than that from now on: who looks again then is in time, and need not be woken.
        """
        with self._lock:
            while True:
                now, due = time.monotonic(), self._last_notice_at + 2 * self._interval
                if self._pending and (due <= now or self._is_closing):
                    self._last_notice_at, self._idle_checks = now, 0
                    pending, self._pending = self._pending, set()
                    return pending
                if self._is_closing:
                    return None
                if due > now:
                    self._idle_checks = 0
                    self._lock.wait(due - now)
                    continue
                self._idle_checks += 1
                self._is_asleep = self._idle_checks > _IDLE_CHECKS
                self._lock.wait(None if self._is_asleep else 2 * self._interval)


class NotifyOnCommit:
    """A block that commits new work to some queues: gives the notice to be sent with it, or leaves word of it."""

    __slots__ = ("_notice", "_queues", "_throttle")

    def __init__(self, throttle: NotifyThrottle, queues: Collection[str]) -> None:
        self._throttle = throttle
        self._queues = queues
        self._notice: str | None = None

    def __enter__(self) -> str | None:
        """Say what to tell with the commit, if anything."""
        self._notice = self._throttle.notice_for(self._queues)
        return self._notice

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """See to it that what was not told will be."""
        if kind is None:
            self._throttle.committed(self._notice, self._queues)
        else:
            self._throttle.failed(self._notice)


def _notice_text(queues: Iterable[str]) -> str:
    """Write what is to be told; DUE may be among the names of queues."""
    names = set(queues)
    notice = ",".join(sorted(names))
    return notice if len(notice) <= _MAX_NOTICE_LENGTH else ",".join(sorted({ALL_QUEUES} | names & {DUE}))
