"""Other processes on the same file, started afresh (``spawn``): they share nothing with the test but the file."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

DEADLINE = 60.0
"""Seconds after which a process that should have answered is given up; never reached where all is well."""


class Process:
    """One other process, seen from the test."""

    def __init__(self, role: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=role, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        """Its id."""
        return self._process.pid

    def send(self, word: object) -> None:
        """Tell it something."""
        self._pipe.send(word)

    def receive(self) -> Any:
        """Wait for what it has to say."""
        assert self._pipe.poll(DEADLINE), "the process does not answer"
        return self._pipe.recv()

    def kill(self) -> None:
        """End it as a power cut would, and wait until it is gone."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()
        self._pipe.close()


@contextmanager
def processes(role: Callable[..., None], *arguments: Any, count: int) -> Iterator[list[Process]]:
    """Start processes in a role, wait until each has said that it is ready, and end them with the block."""
    started = [Process(role, *arguments) for _ in range(count)]
    try:
        for process in started:
            assert process.receive() == "ready"
        yield started
    finally:
        for process in started:
            process.end()


def ready(pipe: Connection) -> None:
    """Say that one is ready, and wait for the word to begin."""
    pipe.send("ready")
    pipe.recv()
