"""The words of events, which are the same on every engine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest

from onward.events import (
    Active,
    AnyEvent,
    Completed,
    Event,
    Failed,
    Progress,
    Retry,
    Stalled,
    Waiting,
)
from onward.job import JobRef

ABOUT: dict[str, Any] = {"ref": JobRef("mail", "7"), "at": datetime(2030, 1, 1, tzinfo=UTC), "attempts": 2}

EVENTS: list[tuple[str, Event]] = [
    ("waiting", Waiting(**ABOUT)),
    ("active", Active(**ABOUT, worker_id="host-1-abc")),
    ("progress", Progress(**ABOUT, progress=40, message="halfway")),
    ("completed", Completed(**ABOUT, result={"sent": True})),
    ("failed", Failed(**ABOUT, error="ValueError: no", traceback=("line 1",))),
    ("stalled", Stalled(**ABOUT)),
    ("retry", Retry(**ABOUT, delay=2.0)),
]


def test_the_vocabulary_is_these_seven_words():  # B7
    assert {word for word, _ in EVENTS} == {
        "waiting",
        "active",
        "progress",
        "completed",
        "failed",
        "stalled",
        "retry",
    }
    assert {type(event) for _, event in EVENTS} == set(get_args(AnyEvent))


@pytest.mark.parametrize(("word", "event"), EVENTS)
def test_every_event_says_its_word_its_job_its_moment_and_its_attempts(word, event):  # B7
    assert event.name == word
    written = msgspec.json.decode(msgspec.json.encode(event))
    assert written["event"] == word
    assert written["ref"] == {"queue": "mail", "id": "7"}
    assert written["at"] == "2030-01-01T00:00:00Z"
    assert written["attempts"] == 2


@pytest.mark.parametrize(("word", "event"), EVENTS)
def test_every_event_can_be_read_back_by_its_word(word, event):  # B7
    assert msgspec.json.decode(msgspec.json.encode(event), type=AnyEvent) == event


def test_attempts_are_none_where_the_store_does_not_say():  # B7
    assert Waiting(ref=ABOUT["ref"], at=ABOUT["at"]).attempts is None
