"""What a job, a queue name and a payload must be like."""

from __future__ import annotations

import uuid
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import validation
from onward.backoff import Backoff
from onward.errors import InvalidValue, PayloadTooLarge
from onward.job import NewJob
from tests.unit.strategies import json_values, texts

MEBI = 1024 * 1024
SOON = datetime(2030, 1, 1, tzinfo=UTC)
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - what the rule is about


def refused(field: str, call: Any, /, *args: Any, **kwargs: Any) -> InvalidValue:
    with pytest.raises(InvalidValue) as caught:
        call(*args, **kwargs)
    assert caught.value.field == field
    return caught.value


# Jobs


def test_a_job_that_keeps_the_rules_is_handed_back_as_it_is():  # B3
    job = NewJob(
        type="send-mail",
        payload='{"to":"é"}',
        queue="mail/acme",
        org_id="acme",
        priority=1_000_000,
        idempotency_key="order-7",
        dedupe_key="send::acme::{}",
        delay=timedelta(0),
        start_by=SOON,
        max_attempts=1,
        backoff=Backoff.fixed(1),
    )
    assert validation.check_job(job) is job
    assert validation.check_job(NewJob(type="t", run_at=SOON)).run_at == SOON


BAD_FIELDS: list[tuple[str, Any, str]] = [
    ("type", "", "non-empty"),
    ("type", "  ", "non-empty"),
    ("type", None, "non-empty"),
    ("type", 7, "non-empty"),
    ("type", "a\0b", "NUL"),
    ("type", "\ud800", "surrogates"),
    ("type", "t" * 256, "at most 255 characters"),
    ("type", "é" * 256, "at most 255 characters"),
    ("queue", "", "lower-case"),
    ("queue", None, "lower-case"),
    ("priority", -1, "from 0 to 1,000,000"),
    ("priority", 1_000_001, "from 0 to 1,000,000"),
    ("priority", 1.5, "whole number"),
    ("priority", "1", "whole number"),
    ("priority", True, "whole number"),
    ("priority", None, "whole number"),
    ("priority", "", "whole number"),
    ("max_attempts", 0, "at least 1"),
    ("max_attempts", -1, "at least 1"),
    ("max_attempts", 2.0, "whole number"),
    ("max_attempts", 2**53 + 1, "whole number"),
    ("delay", timedelta(microseconds=-1), "zero or more"),
    ("delay", 5, "timedelta"),
    ("delay", timedelta.max, "hundred years"),
    ("run_at", NAIVE, "time zone"),
    ("run_at", "tomorrow", "time zone"),
    ("run_at", datetime.max.replace(tzinfo=UTC), "years"),
    ("run_at", datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), "years"),
    ("start_by", NAIVE, "time zone"),
    ("org_id", "", "non-empty"),
    ("org_id", 7, "non-empty"),
    ("org_id", "\0", "NUL"),
    ("idempotency_key", "", "non-empty"),
    ("idempotency_key", "\udfff", "surrogates"),
    ("dedupe_key", "", "non-empty"),
    ("dedupe_key", "a\0", "NUL"),
    ("payload", {"a": 1}, "JSON text"),
    ("payload", None, "JSON text"),
    ("payload", '"\0"', "NUL"),
    ("payload", '"\ud800"', "surrogates"),
]


@pytest.mark.parametrize(("field", "value", "rule"), BAD_FIELDS)
def test_a_refusal_names_the_field_the_value_and_the_rule(field, value, rule):  # B3, B4
    error = refused(field, validation.check_job, NewJob(**{"type": "t", field: value}))
    assert error.value == value
    assert rule in error.rule
    assert str(error).startswith(f"{field} = {repr(value)[:77]}")
    assert str(error).endswith(f": {error.rule}")


def test_a_job_has_a_delay_or_a_moment_and_never_both():  # B3
    error = refused("run_at", validation.check_job, NewJob(type="t", delay=timedelta(1), run_at=SOON))
    assert "not both" in error.rule


@pytest.mark.parametrize("progress", [0, 1, 100])
def test_progress_is_from_0_to_100(progress):  # B3
    assert validation.check_progress(progress) == progress


@pytest.mark.parametrize("progress", [-1, 101, 50.0, True, None, "50"])
def test_other_progress_is_refused(progress):  # B3
    assert "from 0 to 100" in refused("progress", validation.check_progress, progress).rule


@pytest.mark.parametrize(("keep", "kept"), [(True, 0), (0, 0), (False, None), (1, 1), (10_000, 10_000)])
def test_how_many_finished_jobs_to_keep_is_read_as_bullmq_means_it(keep, kept):  # B3
    assert validation.check_kept("removeOnComplete", keep) == kept


@pytest.mark.parametrize("keep", [-1, -10_000, 1.5, "all", None])
def test_keeping_fewer_than_none_is_refused(keep):  # B3
    refused("removeOnFail", validation.check_kept, "removeOnFail", keep)


def test_keeping_very_many_is_warned_about():  # B3
    with pytest.warns(UserWarning, match="removeOnFail = 10001"):
        assert validation.check_kept("removeOnFail", 10_001) == 10_001
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validation.check_kept("removeOnFail", 10_000)


# Queues


GOOD_NAMES = ["default", "a", "mail/acme", "send-message/campaign-42", "a.b_c-d/0", "x" * 120]
BAD_NAMES: list[Any] = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    "A",
    "é",
    "a b",
    "a*",
    "*",
    "a/*",
    "a:b",
    "a\n",
    "x" * 121,
    None,
    7,
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_queue_name_is_a_path(name):  # X5
    assert validation.check_queue_name(name) == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_any_other_queue_name_is_refused(name):  # X5
    error = refused("queue", validation.check_queue_name, name)
    assert error.value == name
    assert "must be" in error.rule


def test_a_name_that_is_too_long_is_told_how_long_it_is():  # X5
    assert "at most 120 characters, this is 121" in str(refused("queue", validation.check_queue_name, "x" * 121))


@pytest.mark.parametrize("pattern", ["*", "mail", "mail/*", "mail/eu/*"])
def test_a_pattern_is_a_name_or_what_lies_below_one_or_all(pattern):  # X5
    assert validation.check_pattern(pattern) == pattern


@pytest.mark.parametrize("pattern", ["", "**", "mail*", "*/mail", "/*", "mail/*/x", "Mail/*", "mail//*", None, 7])
def test_any_other_pattern_is_refused(pattern):  # X5
    refused("queues", validation.check_pattern, pattern)


@pytest.mark.parametrize(
    ("pattern", "name", "is_one"),
    [
        ("*", "anything/at/all", True),
        ("mail", "mail", True),
        ("mail", "mail/acme", False),
        ("mail/*", "mail/acme", True),
        ("mail/*", "mail/eu/acme", True),
        ("mail/*", "mail", False),
        ("mail/*", "mailing/acme", False),
        ("mail/eu/*", "mail/us/acme", False),
    ],
)
def test_a_pattern_is_every_queue_below_it_at_any_depth(pattern, name, is_one):  # X5
    assert validation.matches(pattern, name) is is_one


queue_parts = st.text("abz09_.-", min_size=1, max_size=5)


@given(st.lists(queue_parts, min_size=1, max_size=4), st.lists(queue_parts, min_size=1, max_size=4))
def test_a_queue_is_below_a_path_exactly_if_it_begins_with_all_its_parts(above, name):  # X5
    is_below = len(name) > len(above) and name[: len(above)] == above
    assert validation.matches("/".join([*above, "*"]), validation.check_queue_name("/".join(name))) is is_below


# Size


def test_a_payload_over_the_limit_is_refused_in_these_words():  # B4
    error = PayloadTooLarge(int(12.3 * MEBI), 10 * MEBI)
    assert str(error) == "Job payload size 12.3 MB exceeds limit of 10.0 MB"
    with pytest.raises(PayloadTooLarge, match=r"^Job payload size 12\.3 MB exceeds limit of 10\.0 MB$") as caught:
        validation.encode_json("x" * int(12.3 * MEBI))
    assert caught.value.field == "payload"


def test_the_limit_is_ten_mebibytes_of_json():  # B4
    assert len(validation.encode_json("x" * (10 * MEBI - 2))) == 10 * MEBI
    with pytest.raises(PayloadTooLarge):
        validation.encode_json("x" * (10 * MEBI - 1))


def test_bytes_are_counted_and_not_characters():  # B4
    with pytest.raises(PayloadTooLarge) as caught:
        validation.encode_json("é" * 60, max_size=100)
    assert caught.value.size == 122
    job = NewJob(type="t", payload=f'"{"é" * 300}"')
    with pytest.raises(PayloadTooLarge):
        validation.check_job(job, max_payload=700)


@pytest.mark.parametrize("field", ["org_id", "idempotency_key", "dedupe_key", "payload"])
@pytest.mark.parametrize("character", ["k", "é", "😀", "\x01"])
def test_everything_that_is_written_counts_toward_the_limit(field, character):  # B4
    limit = 100_000
    job = NewJob(**{"type": "t", field: character * (limit // len(msgspec.json.encode(character)[1:-1]))})
    if field == "payload":
        job = msgspec.structs.replace(job, payload=f'"{character * (limit // len(character.encode()))}"')
    with pytest.raises(PayloadTooLarge):
        validation.check_job(job, max_payload=limit)


def test_the_limit_can_be_set():  # B4
    job = NewJob(type="t", payload=f'"{"x" * 1000}"')
    assert validation.check_job(job, max_payload=2000) is job
    with pytest.raises(PayloadTooLarge, match="exceeds limit"):
        validation.check_job(job, max_payload=1000)


# Payloads


NOT_PORTABLE: list[Any] = [
    ("a\0b", "NUL"),
    ("\ud800", "surrogates"),
    ("ok\udfff", "surrogates"),
    (float("nan"), "NaN"),
    (float("inf"), "finite"),
    (float("-inf"), "finite"),
    (2**53 + 1, "2^53"),
    (-(2**53) - 1, "2^53"),
    pytest.param(10**5000, "2^53", id="5001 digits"),
]


@pytest.mark.parametrize(("value", "rule"), NOT_PORTABLE)
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda value: value, "payload"),
        (lambda value: {"user": [1, {"name": value}]}, "payload.user[1].name"),
        (lambda value: [[value]], "payload[0][0]"),
        (lambda value: (None, value), "payload[1]"),
    ],
)
def test_what_some_store_would_change_is_refused_at_any_depth_by_its_path(wrap, path, value, rule):  # B4
    error = refused(path, validation.encode_json, wrap(value))
    assert rule in error.rule


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_of_members_are_held_to_the_same(name):  # B4
    refused("payload.user", validation.encode_json, {"user": {name: 1}})


@pytest.mark.parametrize("name", [1, 1.5, None, True])
def test_names_of_members_are_strings(name):  # B4
    refused("payload", validation.encode_json, {name: 1})


def test_the_largest_whole_numbers_are_kept():  # B4
    assert validation.encode_json([2**53, -(2**53)]) == "[9007199254740992,-9007199254740992]"


class Faulty:
    def __repr__(self) -> str:
        raise RuntimeError


def circle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [object(), Faulty(), circle(), nested(50_000), 1j, range(3)], ids=lambda value: type(value).__name__
)
def test_what_is_no_json_is_refused_even_if_it_cannot_be_shown(value):  # B4
    assert "JSON-able" in refused("payload", validation.encode_json, value).rule


def test_a_hundred_levels_are_deep_enough():  # B4
    validation.encode_json(nested(100))
    deep: Any = 1
    for _ in range(101):
        deep = {"a": deep}
    for value in (nested(101), deep):
        with pytest.raises(InvalidValue, match="deeper than 100 levels"):
            validation.encode_json(value)


def test_a_field_can_have_another_name():  # B3
    refused("result.a", validation.encode_json, {"a": float("nan")}, field="result")


@given(json_values)
def test_what_is_accepted_comes_back_equal(value):  # B4
    assert msgspec.json.decode(validation.encode_json(value)) == value


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.uuids()
    | st.dates()
    | st.decimals(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=10,
)


@given(anything)
def test_a_value_is_encoded_portably_or_refused_as_invalid(value):  # B4
    try:
        text = validation.encode_json(value)
    except InvalidValue as error:
        assert error.field.startswith("payload")  # noqa: PT017 - either is right, and no other exception
        return
    decoded = msgspec.json.decode(text.encode())
    assert decoded == msgspec.to_builtins(value)
    assert validation.encode_json(decoded) == text


@given(texts)
def test_text_that_is_accepted_can_be_stored(text):  # B4
    assert validation.check_text("field", text).encode().decode() == text


@dataclass
class Address:
    street: str
    id: uuid.UUID


def test_typed_values_are_written_as_plain_json():
    address = Address("Main", uuid.UUID(int=7))
    assert msgspec.json.decode(validation.encode_json(address), type=Address) == address


@pytest.mark.parametrize("text", ["", "{", '{"a":}', "1 2", "nul", '{"a":1,}', "{'a': 1}"])
def test_a_payload_that_is_no_json_is_refused(text: str):  # B4
    with pytest.raises(InvalidValue, match=r"^payload = .*: must be JSON text"):
        validation.check_job(NewJob(type="t", payload=text))


def test_a_name_that_others_gave_is_taken_as_it_is():  # X5
    assert validation.check_queue_name("Mail Queue:é", foreign=True) == "Mail Queue:é"
    assert validation.check_pattern("Mail Queue:é", foreign=True) == "Mail Queue:é"
    for wrong in ("", None, "a\0b", "\ud800"):
        with pytest.raises(InvalidValue, match="queue"):
            validation.check_queue_name(wrong, foreign=True)  # type: ignore[arg-type]
