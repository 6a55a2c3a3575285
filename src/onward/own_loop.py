"""Runs async work from plain code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

R = TypeVar("R")


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run async work to its end on a thread and an event loop of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="onward-sync") as thread:
        return thread.submit(copy_context().run, asyncio.run, work()).result()
