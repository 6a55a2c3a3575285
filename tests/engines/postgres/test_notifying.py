"""Who tells of new work: an enqueue with its commit, or a thread for those that came too soon after another."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from onward.engines.postgres import notifying
from onward.engines.postgres.engine import PostgresEngine
from onward.engines.postgres.notifying import Bell
from tests.conformance.desk import new_job

Told = queue.SimpleQueue[str]


@pytest.fixture
def told() -> Told:
    return queue.SimpleQueue()


@pytest.fixture
def bell(told: Told) -> Iterator[Bell]:
    bell = Bell(told.put)
    yield bell
    bell.close()


def test_an_enqueue_that_may_tell_takes_along_what_was_left_word_of(bell: Bell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notifying, "_OWED", 60)  # the thread keeps out of it
    assert bell.notice_for({"a"}) == "a"
    assert bell.notice_for({"b"}) is None  # too soon
    bell.leave_word({"b"})
    monkeypatch.setattr(notifying, "_APART", 0)
    assert bell.notice_for({"c"}) == "b,c"
    assert bell.notice_for({"d"}) == "d"  # and tells of it once


def test_the_last_of_a_burst_is_told_of_though_no_other_comes(bell: Bell, told: Told):
    for _ in range(3):  # asleep and awake again
        bell.notice_for({"a"})
        bell.leave_word({"b"})
        assert told.get(timeout=30) == "b"


def test_what_is_owed_is_told_before_the_bell_is_put_away(bell: Bell, told: Told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notifying, "_OWED", 60)
    bell.notice_for({"a"})
    bell.leave_word({"b"})
    bell.close()
    assert told.get(timeout=30) == "b"


def test_what_an_enqueue_was_to_tell_of_is_told_though_it_fails(told: Told, monkeypatch: pytest.MonkeyPatch):
    engine = PostgresEngine("postgresql://nowhere")
    engine._bell = Bell(told.put)
    monkeypatch.setattr(notifying, "_APART", 0)
    engine._bell._owed = {"left"}
    with pytest.raises(RuntimeError), engine._telling([new_job(queue="mine")]) as notice:
        assert notice == "left,mine"
        raise RuntimeError
    assert told.get(timeout=30) == "left,mine"
    engine._bell.close()
