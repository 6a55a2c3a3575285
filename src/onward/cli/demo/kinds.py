"""The kinds of jobs in the demo: what each does, how many of it there are, and how it must end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onward.lifecycle import JobStatus

ATTEMPTS: Final = 3
"""How many runs a poisoned job has."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. Its name is that of its task and of its queue."""

    name: str
    description: str
    share: float
    """Of all jobs."""
    final_status: JobStatus = JobStatus.COMPLETED

    def number(self, jobs: int) -> int:
        """Say how many there are, if there are about so many jobs in all."""
        return max(1, round(self.share * jobs))


CRASHER: Final = Kind("crasher", "kills the process it runs in", 0.0, JobStatus.DEAD_LETTER)
POISON: Final = Kind("poison", f"fails {ATTEMPTS} times out of {ATTEMPTS}", 0.02, JobStatus.DEAD_LETTER)

KINDS: Final = (
    Kind("quick", "takes a moment on the event loop", 0.61),
    Kind("slow", "blocks a thread for a while", 0.05),
    Kind("flaky", "fails once or twice, then succeeds", 0.13),
    Kind("delayed", "is due in a second or two", 0.08),
    Kind("limited", "ten a second over all workers", 0.10),
    Kind("progress", "says how far it is", 0.01),
    POISON,
    CRASHER,
)
