"""A worker process with a handler that holds the global interpreter lock (GIL) for as long as a test wants."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from onward.app import App
from onward.engine.values import Settlement, Token
from onward.engines.sqlite import settle
from onward.engines.sqlite.engine import SQLiteEngine
from onward.engines.sqlite.transaction import Transaction
from onward.worker_options import WriteProcessPolicy
from tests.engines.sqlite.processes import DEADLINE


def hold_gil_until_readable(gate: Path) -> None:
    """Wait for a byte in a named pipe, in one call into C that keeps the GIL, as a long regular expression does."""
    descriptor = os.open(gate, os.O_RDWR)
    waited_for = ctypes.c_ulonglong(descriptor | select.POLLIN << 32)  # a struct pollfd: descriptor, events, results
    ctypes.PyDLL(None).poll(ctypes.byref(waited_for), 1, int(DEADLINE * 1000))
    os.close(descriptor)


def open_gate(gate: Path) -> None:
    """End that wait."""
    descriptor = os.open(gate, os.O_RDWR)
    os.write(descriptor, b"!")
    assert select.select([], [descriptor], [], DEADLINE)
    # Kept open until the other end has seen the byte: a pipe that nobody has open forgets what was written to it.
    _open_gates.append(descriptor)


_open_gates: list[int] = []


def work(pipe: Connection, path: Path, gate: Path, policy: WriteProcessPolicy) -> None:
    """Run a worker until a word comes. Its task ``hold`` holds the GIL until the gate is open.

    With the policy "never" the GIL is taken while a transaction of this process is open. What is sent at the end is
    whether this process has settled a job by itself.
    """
    app = App(engine=SQLiteEngine(path))
    is_armed, in_transaction, is_holding = threading.Event(), threading.Event(), threading.Event()
    settle_jobs = settle.settle

    def stopped_settle(transaction: Transaction, settlements: Sequence[Settlement]) -> frozenset[Token]:
        lost = settle_jobs(transaction, settlements)
        if is_armed.is_set():
            in_transaction.set()
            is_holding.wait(DEADLINE)
        return lost

    settle.settle = stopped_settle

    @app.task(name="quick")
    async def quick() -> None: ...

    @app.task(name="hold", executor="thread")
    def hold() -> None:
        is_armed.set()
        pipe.send("started")
        if policy == "never":
            assert in_transaction.wait(DEADLINE)
        pipe.send("holding")
        sys.setswitchinterval(DEADLINE)  # nothing takes the GIL between the next two calls
        is_holding.set()
        hold_gil_until_readable(gate)
        sys.setswitchinterval(0.005)
        pipe.send("released")

    async def run() -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        async with app, app.worker(write_process=policy):
            loop.add_reader(pipe.fileno(), told.set)
            pipe.send("ready")
            await told.wait()
            loop.remove_reader(pipe.fileno())
        pipe.send(in_transaction.is_set())

    asyncio.run(run())
