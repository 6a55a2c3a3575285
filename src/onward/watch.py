"""Tells how something in the store stands, now and whenever that has changed, until it has come to its end.

Woken by the store's signals, with a look now and then behind them: a signal is only a hint.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeVar

from onward.engine.capabilities import Feature
from onward.engine.checked import CheckedEngine
from onward.errors import StoreUnavailable

T = TypeVar("T")

_SHORT: Final = 0.02
"""Seconds between two looks at least, however much is heard."""
_LONG: Final = 0.5
"""Seconds between two looks where nothing is heard."""


async def watch(
    engine: CheckedEngine, queues: tuple[str, ...], look: Callable[[], Awaitable[T]], is_over: Callable[[T], bool]
) -> AsyncGenerator[T, None]:
    """Tell what ``look`` sees, each time that it sees something else."""
    bell = asyncio.Event()

    async def listen() -> None:
        with contextlib.suppress(StoreUnavailable):  # then it is looked at now and then
            async with contextlib.aclosing(engine.signals(queues)) as signals:  # type: ignore[type-var]
                async for _ in signals:
                    bell.set()

    listener = asyncio.create_task(listen(), name="onward-follow") if engine.capabilities.has(Feature.PUSH) else None
    try:
        told = await look()
        yield told
        while not is_over(told):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LONG):
                    await bell.wait()
            bell.clear()
            await asyncio.sleep(_SHORT)
            seen = await look()
            if seen != told:
                told = seen
                yield told
    finally:
        if listener is not None:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener
