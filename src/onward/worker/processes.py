"""Processes for functions that need a processor to themselves (``executor="process"``).

Each child runs one call at a time. It is started by *spawn*, never by fork, so it shares no connection, lock or thread
with the worker; it imports the module that defines the task and is kept for the next call. Nothing but JSON goes
through the pipe. A child that dies takes one run with it, which fails as :class:`ProcessDied`; the worker and its
other jobs do not notice. A child that cannot be started, or dies before it is ready for a call, has run nothing:
:class:`StartFailed`. A call that is given up on (cancelled, out of time) is really stopped: its child is killed.

Children ignore the signals that are meant for the worker, and end when the pipe to it closes, however it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec

from onward import validation
from onward.context import ELSEWHERE, JobContext, RunState
from onward.engine.values import Claim
from onward.errors import OnwardError
from onward.task import Task, handler_of
from onward.worker.remote_error import RemoteError, describe, rebuild
from onward.worker.threads import StartFailed, Threads

_spawn = multiprocessing.get_context("spawn")


class ProcessDied(OnwardError):
    """The process that ran a job died under it: killed, out of memory, or crashed in C code."""


class CallRequest(msgspec.Struct, frozen=True):
    """A call, as it goes to the child."""

    module: str
    name: str
    claim: Claim
    ignores_unknown: bool = False
    """Whether keys of the payload that no argument has are ignored."""


class ChildReady(msgspec.Struct, frozen=True, tag=True):
    """Sent once, when the child has started and takes calls."""


class JobReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the function says of its job while it runs."""

    progress: int | None = None
    message: str | None = None
    lines: list[str] = []


class CallResponse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What came of it."""

    result: str | None = None
    """As JSON."""
    error: RemoteError | None = None


Execute = Callable[[bytes, Callable[[JobReport], None]], CallResponse]
"""Serves one request in a child; may send reports meanwhile."""
_Message = ChildReady | JobReport | CallResponse
_decoder: Final = msgspec.json.Decoder(_Message)


class Processes:
    """Runs plain functions in child processes, at most ``size`` at a time."""

    def __init__(
        self, size: int, *, main: Callable[[Connection], None] | None = None, reuses_children: bool = True
    ) -> None:
        """``main`` is what a child runs, if not calls of tasks; see :func:`serve_requests`."""
        self._main = main or _child_main
        self._reuses_children = reuses_children
        self._threads = Threads(size, name="onward-process-io")
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._lock = threading.Lock()

    async def call(self, module: str, name: str, run: RunState, *, ignores_unknown: bool = False) -> Any:
        """Run the task that ``name`` is in ``module``, in a child; what it says of its job goes to ``run``.

        ``ignores_unknown``: whether keys of the payload that no argument has are ignored.

        Raises:
            ProcessDied: the child died under it.
            StartFailed: no child can be started now; the task was not called.
        """
        response = await self.request(msgspec.json.encode(CallRequest(module, name, run.claim, ignores_unknown)), run)
        if response.error is not None:
            raise rebuild(response.error)
        return None if response.result is None else msgspec.json.decode(response.result)

    async def request(self, request: bytes, run: RunState | None = None) -> CallResponse:
        """Send a request to a child and wait for the response; what the child reports meanwhile goes to ``run``.

        Raises:
            ProcessDied: the child died under it.
            StartFailed: no child can be started now; the request was not served.
        """
        child: _Child | None = None
        is_abandoned = False

        def call_child() -> CallResponse:
            nonlocal child
            acquired = self._acquire()
            with self._lock:
                child = acquired
                if is_abandoned:  # while the child was being started
                    acquired.kill()
            try:
                return acquired.call(request, run)
            finally:
                # With the lock: from here on the child may serve another call, which this one must not kill.
                with self._lock:
                    child = None
                    self._put_back(acquired)

        try:
            return await self._threads.call(call_child)
        except asyncio.CancelledError:
            with self._lock:
                is_abandoned = True
                if child is not None:
                    child.kill()
            raise

    def close(self) -> None:
        """End the children, idle or not."""
        with self._lock:
            children, self._idle = list(self._children), []
            self._children.clear()
        for child in children:
            child.kill()
        self._threads.close()

    def _acquire(self) -> _Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.is_alive:
                    return child
                self._children.discard(child)
            try:
                child = _Child(self._main)
            except OSError as error:  # no file descriptor for its pipe
                raise StartFailed(f"no process can be started now: {error}") from error
            self._children.add(child)
        try:
            child.start()
        except OSError as error:  # the system's limit of processes or open files, or no memory
            with self._lock:
                self._children.discard(child)
            raise StartFailed(f"no process can be started now: {error}") from error
        return child

    def _put_back(self, child: _Child) -> None:
        """Keep a child for the next call, unless it has died or is about to. With the lock held."""
        if child.is_usable and self._reuses_children:
            self._idle.append(child)
        else:
            child.kill()
            self._children.discard(child)


class _Child:
    """One child, as its parent sees it."""

    def __init__(self, main: Callable[[Connection], None]) -> None:
        self._pipe, child_end = _spawn.Pipe()
        self._child_end = child_end
        self._is_killed = False
        self._is_calling = False
        self._is_ready = False
        self._process = _spawn.Process(target=main, args=(child_end,), name="onward-child", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    @property
    def is_usable(self) -> bool:
        """Whether it can serve another call: it has answered the last one, and has not been killed."""
        return not self._is_killed and not self._is_calling

    def start(self) -> None:
        self._process.start()
        self._child_end.close()

    def call(self, request: bytes, run: RunState | None) -> CallResponse:
        self._is_calling = True
        try:
            self._pipe.send_bytes(request)
            while True:
                match _decoder.decode(self._pipe.recv_bytes()):
                    case ChildReady():
                        self._is_ready = True
                    case JobReport() as report:
                        _apply_report(report, run)
                    case CallResponse() as response:
                        self._is_calling = False
                        return response
        except (EOFError, OSError):
            self._process.join()
            reason = _exit_reason(self._process.exitcode)
            if not self._is_ready and not self._is_killed:
                raise StartFailed(f"the process for the job ended before it was ready: {reason}") from None
            raise ProcessDied(f"the process that ran the job died: {reason}") from None

    def kill(self) -> None:
        self._is_killed = True
        with contextlib.suppress(ValueError, AttributeError):
            self._process.kill()


def _apply_report(report: JobReport, run: RunState | None) -> None:
    """Pass on what a child says, as if it had been said here."""
    if run is None:
        return
    if report.progress is not None:
        run.note(progress=(report.progress, report.message))
    for line in report.lines:
        run.note(line=line)


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _resolve(module: object, path: str) -> Any:
    found = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


# What the child does --------------------------------------------------------------------------------------------------


def _child_main(pipe: Connection) -> None:
    serve_requests(pipe, _execute)


def serve_requests(pipe: Connection, execute: Execute) -> None:
    """Serve requests, one at a time, until the pipe to the worker closes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive_requests, args=(pipe, requests.put), daemon=True).start()
    send_lock = threading.Lock()

    def send(message: _Message) -> None:
        with send_lock:  # a function may report from threads of its own
            pipe.send_bytes(msgspec.json.encode(message))

    send(ChildReady())
    while True:
        send(execute(requests.get(), send))


def _receive_requests(pipe: Connection, put: Callable[[bytes], None]) -> None:
    """Listen on a thread, so that a child notices the end of its worker even in the middle of a call."""
    try:
        while True:
            put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _execute(encoded: bytes, send: Callable[[JobReport], None]) -> CallResponse:
    request = msgspec.json.decode(encoded, type=CallRequest)

    def send_report(run: RunState) -> None:
        progress, message, lines = run.take_notes()
        send(JobReport(progress=progress, message=message, lines=lines))

    try:
        task = _resolve(importlib.import_module(request.module), request.name)
        if not isinstance(task, Task):
            message = (
                f"{request.module}.{request.name} is not a task there: "
                "define it at the top level of an importable module"
            )
            raise TypeError(message)
        handler = handler_of(task)
        handler.arguments.ignore_unknown(on=request.ignores_unknown)
        run = RunState(request.claim, on_note=send_report, state=ELSEWHERE)
        result = handler.bind(request.claim.payload)(JobContext(run))
        return CallResponse(result=validation.encode_json(result, field="result"))
    except BaseException as error:  # noqa: BLE001 - the worker is told whatever it was
        return CallResponse(error=describe(error))
