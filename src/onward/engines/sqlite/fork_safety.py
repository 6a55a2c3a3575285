"""Lets go of every connection while the process forks.

SQLite notes in the memory of a process which locks that process holds. A child inherits the notes but not the locks: a
connection that it opens to the same file finds them "held" and takes none. So the parent, when it closes, believes
itself alone and removes the write-ahead log, and what the child commits from then on is lost. Nothing of ours is
therefore open at the moment of a fork; parent and child each connect anew with their next request. A program that forks
with connections of its own to the file open breaks its child in the same way.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class ForkParticipant(Protocol):
    """Something that has a thread and a connection."""

    def suspend_before_fork(self) -> None:
        """End the thread and close the connection, and begin nothing new until told to."""
        ...

    def resume_after_fork(self) -> None:
        """Be again as before, in the process that forked."""
        ...

    def reset_after_fork(self) -> None:
        """Forget what belongs to the parent, in its child."""
        ...


_participants: WeakSet[ForkParticipant] = WeakSet()
_lock = threading.Lock()


def register(participant: ForkParticipant) -> None:
    """Have a holder told of forks for as long as it lives."""
    with _lock:
        _participants.add(participant)


def _before() -> None:
    _lock.acquire()
    for participant in list(_participants):
        participant.suspend_before_fork()


def _after_in_parent() -> None:
    for participant in list(_participants):
        participant.resume_after_fork()
    _lock.release()


def _after_in_child() -> None:
    global _lock  # noqa: PLW0603 - the old one may be held by a thread that is not here
    _lock = threading.Lock()
    for participant in list(_participants):
        participant.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
