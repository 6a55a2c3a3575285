"""A forked child begins anew: connections, threads and locks are the parent's, and are left alone."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Holder(Protocol):
    """Something that must not cross a fork."""

    def reset_after_fork(self) -> None:
        """Forget what is the parent's, in the child. Close nothing: the parent goes on using it."""
        ...


_holders: WeakSet[Holder] = WeakSet()


def register(holder: Holder) -> None:
    """Be told of forks from now on."""
    _holders.add(holder)


def _after_fork() -> None:
    for holder in list(_holders):
        holder.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)
