"""The tasks of ``bench.gil_wait``; the store is that of ``ONWARD_URL``."""

from __future__ import annotations

import ctypes

from onward import App

app = App()


def _hold_gil(seconds: float) -> None:
    """Sleep without releasing Python's global interpreter lock, as a long regular expression would."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@app.task(executor="thread")
def hold_on_thread(seconds: float) -> None:
    """Hold the lock of the worker's own process."""
    _hold_gil(seconds)


@app.task(executor="process")
def hold_in_process(seconds: float) -> None:
    """Hold the lock of another process."""
    _hold_gil(seconds)


@app.task
async def quick() -> None:
    """Do nothing."""
