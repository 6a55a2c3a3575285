"""Processes for functions that need a processor to themselves (``executor="process"``).

Each child runs one call at a time. It is started by *spawn*, never by fork, so it shares no connection, lock or thread
with the worker; it imports the module that defines the task and is kept for the next call. Nothing but JSON goes
through the pipe. A child that dies takes one run with it, which fails as :class:`ProcessDied`; the worker and its
other jobs do not notice. A call that is given up on (cancelled, out of time) is really stopped: its child is killed.

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
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec

from onward import validation
from onward.context import JobContext, RunState
from onward.control_flow import Cancel, DoNotRetry, Snooze
from onward.engine.values import Claim
from onward.errors import OnwardError
from onward.worker.threads import Threads

_spawn = multiprocessing.get_context("spawn")


class ProcessDied(OnwardError):
    """The process that ran a job died under it: killed, out of memory, or crashed in C code."""


class Asked(msgspec.Struct, frozen=True):
    """A call, as it goes to the child."""

    module: str
    name: str
    claim: Claim


class Said(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the function says of its job while it runs."""

    progress: int | None = None
    message: str | None = None
    lines: list[str] = []


class Answered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What came of it."""

    result: str | None = None
    """As JSON."""
    error: RemoteError | None = None


class RemoteError(msgspec.Struct, frozen=True, kw_only=True):
    """An exception, as text."""

    module: str
    name: str
    message: str
    traceback: str
    delay: float | None = None
    """Seconds, of a Snooze."""


_words: Final = msgspec.json.Decoder(Said | Answered)


class Processes:
    """Runs plain functions in child processes, at most ``size`` at a time."""

    def __init__(self, size: int) -> None:
        self._threads = Threads(size, name="onward-process-keeper")
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._lock = threading.Lock()

    async def call(self, module: str, name: str, run: RunState) -> Any:
        """Run the task that ``name`` is in ``module``, in a child; what it says of its job goes to ``run``.

        Raises:
            ProcessDied: the child died under it.
        """
        child: _Child | None = None
        given_up = False
        asked = msgspec.json.encode(Asked(module, name, run.claim))

        def converse() -> Answered:
            nonlocal child
            child = self._hire()
            if given_up:  # while the child was being started
                child.kill()
            try:
                answer = child.ask(asked, run)
            except ProcessDied:
                self._bury(child)
                raise
            self._rest(child)
            return answer

        try:
            answer = await self._threads.call(converse)
        except asyncio.CancelledError:
            given_up = True
            if child is not None:
                child.kill()
            raise
        if answer.error is not None:
            raise _rebuilt(answer.error)
        return None if answer.result is None else msgspec.json.decode(answer.result)

    def close(self) -> None:
        """End the children, idle or not."""
        with self._lock:
            children, self._idle = list(self._children), []
            self._children.clear()
        for child in children:
            child.kill()
        self._threads.close()

    def _hire(self) -> _Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.is_alive:
                    return child
                self._children.discard(child)
            child = _Child()
            self._children.add(child)
        child.start()
        return child

    def _bury(self, child: _Child) -> None:
        with self._lock:
            self._children.discard(child)

    def _rest(self, child: _Child) -> None:
        with self._lock:
            self._idle.append(child)


class _Child:
    """One child, as its parent sees it."""

    def __init__(self) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._theirs = theirs
        self._process = _spawn.Process(target=_live, args=(theirs,), name="onward-child", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def start(self) -> None:
        self._process.start()
        self._theirs.close()

    def ask(self, asked: bytes, run: RunState) -> Answered:
        try:
            self._pipe.send_bytes(asked)
            while True:
                heard: Said | Answered = _words.decode(self._pipe.recv_bytes())
                if isinstance(heard, Answered):
                    return heard
                _take_down(heard, run)
        except (EOFError, OSError):
            self._process.join()
            raise ProcessDied(f"the process that ran the job died: {_how(self._process.exitcode)}") from None

    def kill(self) -> None:
        with contextlib.suppress(ValueError, AttributeError):
            self._process.kill()


def _take_down(said: Said, run: RunState) -> None:
    """Pass on what a child says, as if it had been said here."""
    if said.progress is not None:
        run.note(progress=(said.progress, said.message))
    for line in said.lines:
        run.note(line=line)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _rebuilt(error: RemoteError) -> BaseException:
    """Raise here what was raised there: the same class if it is known here, with the child's traceback as a note."""
    kind = _found(sys.modules.get(error.module), error.name)
    rebuilt: BaseException
    if kind is Snooze:
        rebuilt = Snooze(error.delay or 0.0)
    elif kind is Cancel or kind is DoNotRetry:
        rebuilt = kind(error.message)
    elif isinstance(kind, type) and issubclass(kind, Exception):
        rebuilt = kind.__new__(kind)
        rebuilt.args = (error.message,)
    else:
        rebuilt = RuntimeError(f"{error.name}: {error.message}")
    rebuilt.add_note(f"In the child process:\n{error.traceback}")
    return rebuilt


def _found(module: object, path: str) -> Any:
    found = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


# What the child does --------------------------------------------------------------------------------------------------


def _live(pipe: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, asked.put), daemon=True).start()
    speaking = threading.Lock()

    def say(word: Said | Answered) -> None:
        with speaking:  # a function may report from threads of its own
            pipe.send_bytes(msgspec.json.encode(word))

    while True:
        say(_answer(msgspec.json.decode(asked.get(), type=Asked), say))


def _listen(pipe: Connection, put: Callable[[bytes], None]) -> None:
    """Listen on a thread, so that a child notices the end of its worker even in the middle of a call."""
    try:
        while True:
            put(pipe.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _answer(asked: Asked, say: Callable[[Said], None]) -> Answered:
    def pass_on(run: RunState) -> None:
        progress, message, lines = run.take_notes()
        say(Said(progress=progress, message=message, lines=lines))

    try:
        task = _found(importlib.import_module(asked.module), asked.name)
        if not callable(getattr(task, "bind", None)):
            message = (
                f"{asked.module}.{asked.name} is not a task there: define it at the top level of an importable module"
            )
            raise TypeError(message)
        result = task.bind(asked.claim.payload)(JobContext(RunState(asked.claim, on_note=pass_on)))
        return Answered(result=validation.encode_json(result, field="result"))
    except BaseException as error:  # noqa: BLE001 - the worker is told whatever it was
        kind = type(error)
        return Answered(
            error=RemoteError(
                module=kind.__module__,
                name=kind.__qualname__,
                message=str(error),
                traceback="".join(traceback.format_exception(error)),
                delay=error.delay.total_seconds() if isinstance(error, Snooze) and error.delay is not None else None,
            )
        )
