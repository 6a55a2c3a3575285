"""Ids of native jobs."""

from __future__ import annotations

import os
from uuid import RFC_4122, UUID

import pytest

from onward.ids import new_ids


@pytest.mark.parametrize("count", [1, 2, 4096, 10_000])
def test_ids_are_uuids_of_version_7_that_rise_and_differ(count):  # O2
    ids = new_ids(count)
    assert len(ids) == len(set(ids)) == count
    assert ids == sorted(ids)
    for id in ids:
        assert str(UUID(id)) == id
        assert (UUID(id).version, UUID(id).variant) == (7, RFC_4122)


def test_no_ids_are_asked_for_and_none_are_made():
    assert new_ids(0) == []


def test_two_calls_at_the_same_moment_do_not_make_the_same_ids(monkeypatch):  # O2
    monkeypatch.setattr("time.time_ns", lambda: 1_900_000_000_000_000_000)
    made = [id for _ in range(200) for id in new_ids(5)] + [id for _ in range(1000) for id in new_ids(1)]
    assert len(set(made)) == 2000


def test_ids_made_in_a_later_millisecond_sort_later(monkeypatch):  # O2
    now = 1_900_000_000_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: now)
    earlier = new_ids(1) + new_ids(100)
    now += 1_000_000
    assert max(earlier) < min(new_ids(1) + new_ids(100))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_and_its_child_do_not_make_the_same_ids(monkeypatch):  # O2
    monkeypatch.setattr("time.time_ns", lambda: 1_900_000_000_000_000_000)
    new_ids(1)  # some are drawn ahead
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, "".join(new_ids(1)[0] for _ in range(50)).encode())
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as pipe:
        theirs = pipe.read()
    assert len(theirs) == 50 * 36
    assert not {theirs[at : at + 36] for at in range(0, len(theirs), 36)} & {new_ids(1)[0] for _ in range(50)}
