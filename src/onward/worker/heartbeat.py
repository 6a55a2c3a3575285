"""The worker's sign of life, on a thread of its own.

A beat registers the worker, extends the leases of all it holds, and learns which of them it has lost. It must not
depend on the event loop: a handler that blocks the loop for minutes is slow, not dead, and keeps its jobs. (A handler
that holds the interpreter's global lock in C code for longer than the lease does lose them; nothing in the process
could beat then. The log names that cause, and what to do.)
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from onward.engine.contract import Consumer
from onward.engine.values import HeartbeatReply, WorkerInfo
from onward.worker.inflight import Inflight
from onward.worker.periodic import STORE_RETRY_BACKOFF, log_failure

log = logging.getLogger("onward.worker")

HEARTBEATS_PER_LEASE: Final = 4
"""Three beats may fail or come late before a lease runs out."""
_MIN_INTERVAL: Final = 0.05
"""Seconds between two beats at least: a burst of cancellations is answered by one."""


class Heartbeat:
    """Beats until stopped. What a beat learns goes to ``on_reply``, on the heartbeat's own thread."""

    def __init__(
        self,
        engine: Consumer,
        inflight: Inflight,
        *,
        info: WorkerInfo,
        lease: timedelta,
        on_reply: Callable[[HeartbeatReply], None],
    ) -> None:
        self._engine = engine
        self._inflight = inflight
        self._info = info
        self._interval = lease.total_seconds() / HEARTBEATS_PER_LEASE
        self._on_reply = on_reply
        self._confirmed_at: float | None = None
        self._beat_requested = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to beat, the first time at once."""
        self._thread = threading.Thread(target=self._run, name="onward-heartbeat", daemon=True)
        self._thread.start()

    def confirmed_at(self) -> float:
        """Say when, by the monotonic clock, the last beat was sent that the store has answered."""
        return -math.inf if self._confirmed_at is None else self._confirmed_at

    def set_interval(self, seconds: float) -> None:
        """Beat that often from now on."""
        is_shorter, self._interval = seconds < self._interval, seconds
        if is_shorter:
            self._beat_requested.set()

    def wake(self) -> None:
        """Beat now: something has told that a job of ours may have been taken back."""
        self._beat_requested.set()

    def stop(self) -> None:
        """Beat no more. Does not wait for a beat that is under way."""
        self._stopped.set()
        self._beat_requested.set()

    def join(self, timeout: float) -> None:
        """Wait for a beat that is under way, after :meth:`stop`."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _warn_if_late(self, now: float) -> None:
        """Name the cause of leases that have run out though this process lives: nothing of it has run meanwhile."""
        lease = self._interval * HEARTBEATS_PER_LEASE
        if self._confirmed_at is None or now - self._confirmed_at <= lease:
            return
        log.warning(
            "heartbeat late, leases have run out: a handler held the interpreter's lock, or this process was stopped; "
            'use executor="process" for such a task, or a longer lease',
            extra={"worker_id": self._info.id, "silent_seconds": round(now - self._confirmed_at, 1), "lease": lease},
        )

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._beat_requested.clear()
            sent_at = time.monotonic()
            if not failures:
                self._warn_if_late(sent_at)
            try:
                reply = self._engine.heartbeat_sync(self._info, self._inflight.claims())
                self._confirmed_at = sent_at
                self._on_reply(reply)
            except Exception as error:  # noqa: BLE001 - the heartbeat goes on whatever happens
                failures += 1
                log_failure("heartbeat", error, failures)
                self._beat_requested.wait(min(STORE_RETRY_BACKOFF.delay(failures).total_seconds(), self._interval))
                continue
            failures = 0
            self._stopped.wait(_MIN_INTERVAL)
            self._beat_requested.wait(self._interval)
