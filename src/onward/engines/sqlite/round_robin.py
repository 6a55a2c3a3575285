"""A claim's way round the queues."""

from __future__ import annotations


def successor(name: str) -> str:
    """Give a text that sorts right after a queue's name: no name has a character as low as this."""
    return f"{name}!"


class RoundRobin:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    def __init__(self) -> None:
        self.next_name = ""
        self._turn_left = 0
        """What the queue at ``next_name`` may still have of its turn; 0: its whole turn."""
        self.row_limits: dict[str, int] = {}
        """Of queues with long payloads: how many rows to look at, since SQLite reads a payload to skip it."""

    def turn_size(self, name: str, whole: int) -> int:
        """Say how many jobs a queue may give in its turn, or in what is left of it."""
        return self._turn_left if self._turn_left and name == self.next_name else whole

    def advance_past(self, name: str) -> None:
        """A queue has had its turn."""
        self.next_name, self._turn_left = successor(name), 0

    def resume_at(self, name: str, left: int) -> None:
        """A queue has had a part of its turn."""
        self.next_name, self._turn_left = name, left
