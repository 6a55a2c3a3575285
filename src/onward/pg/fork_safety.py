"""A forked child begins anew: connections, threads and locks are the parent's, and are left alone."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """Something that must not cross a fork."""

    def reset_after_fork(self) -> None:
        """Forget what is the parent's, in the child. Close nothing: the parent goes on using it."""
        ...


_registered: WeakSet[ForkAware] = WeakSet()


def register(resource: ForkAware) -> None:
    """Be told of forks from now on."""
    _registered.add(resource)


def _after_fork() -> None:
    for resource in list(_registered):
        resource.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)
