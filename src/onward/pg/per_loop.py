"""What there is one of for each event loop: an engine belongs to none, and what it keeps for one goes with the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, ref

T = TypeVar("T")


class PerLoop(Generic[T]):
    """One of something for each event loop on which it is asked for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._all: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
        self._last: tuple[ref[asyncio.AbstractEventLoop], T] | None = None
        """Most processes have one loop: it is known again without being looked up."""
        self._lock = threading.Lock()

    def current(self) -> T:
        """Give the one of the loop that is running."""
        loop = asyncio.get_running_loop()
        if (last := self._last) is not None and last[0]() is loop:
            return last[1]
        with self._lock:
            if (value := self._all.get(loop)) is None:
                value = self._all[loop] = self._make()
            self._last = ref(loop), value
        return value

    def all(self) -> list[T]:
        """Give all that there are."""
        with self._lock:
            return list(self._all.values())

    def take_all(self) -> list[T]:
        """Give all that there are, and forget them."""
        with self._lock:
            taken, self._all, self._last = list(self._all.values()), WeakKeyDictionary(), None
        return taken
