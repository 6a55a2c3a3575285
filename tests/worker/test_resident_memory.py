"""How much memory a process holds."""

from __future__ import annotations

from onward.worker.resident_memory import resident_memory


def test_what_is_allocated_shows():
    before = resident_memory()
    held = bytearray(64 * 1024 * 1024)
    for page in range(0, len(held), 4096):
        held[page] = 1
    assert resident_memory() - before > 32 * 1024 * 1024
