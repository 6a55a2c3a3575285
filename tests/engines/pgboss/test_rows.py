"""Between Onward's values and pg-boss's columns: what goes in comes out, and Node sees what it would have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.backoff import Backoff
from onward.engines.pgboss.rows import (
    MAX_KEY_BYTES,
    METADATA_KEY,
    backoff_of,
    data_of,
    error_of,
    extras_of,
    output_of,
    read_data,
    result_of,
    retry_columns_of,
    singleton_key_of,
)
from onward.job import NewJob
from onward.validation import encode_json
from tests.unit.strategies import json_values

EXTRAS = {"type": "greet"}


@given(json_values, st.sampled_from([{}, EXTRAS, {"type": "a", "org_id": "b"}]))
def test_data_gives_back_its_payload_and_what_stood_beside(payload: Any, extras: dict[str, Any]):
    read, beside = read_data(data_of(encode_json(payload), extras))
    assert beside == extras
    assert read == payload


@pytest.mark.parametrize(
    "payload",
    [{METADATA_KEY: 1}, {METADATA_KEY: {"type": "mine"}}, {"a": {METADATA_KEY: {}}}, [METADATA_KEY], METADATA_KEY],
)
def test_a_payload_that_has_our_word_in_it_keeps_it(payload: Any):
    assert read_data(data_of(encode_json(payload), EXTRAS)) == (payload, EXTRAS)


def test_a_key_written_with_escapes_is_not_taken_for_ours():
    assert read_data(data_of('{"\\u0024onward": {"n": 1}}', EXTRAS)) == ({METADATA_KEY: {"n": 1}}, EXTRAS)


@given(json_values)
def test_a_result_comes_back_as_it_was_and_is_an_object_to_node(value: Any):
    output = output_of(encode_json(value))
    assert result_of(output) == value
    assert output is None or isinstance(json.loads(output), dict)


@pytest.mark.parametrize(
    "backoff",
    [
        Backoff(),
        Backoff.fixed(5),
        Backoff.exponential(5, cap=None, jitter=1.0),
        Backoff.exponential(2, cap=9, jitter=1),
    ],
)
def test_what_pg_boss_can_say_itself_needs_nothing_beside(backoff: Backoff):
    kept = retry_columns_of(backoff)
    assert (backoff_of(kept.delay, kept.backoff, kept.delay_max) or Backoff()) == backoff
    assert extras_of(NewJob(type="q", queue="q", backoff=backoff), has_groups=True) == {}


@pytest.mark.parametrize(
    "backoff", [Backoff.fixed(0.5), Backoff.exponential(2, factor=3), Backoff.fixed(5, jitter=0.5)]
)
def test_what_it_cannot_say_travels_along_and_node_never_tries_sooner(backoff: Backoff):
    kept = retry_columns_of(backoff)
    assert kept.delay >= backoff.base
    assert extras_of(NewJob(type="q", queue="q", backoff=backoff), has_groups=True) == {"backoff": backoff}


def test_pg_bosss_own_default_is_to_try_at_once():
    backoff = backoff_of(0, False, None)
    assert backoff is not None
    assert backoff.delay(1).total_seconds() < 0.01


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (None, None),
        ({"name": "TypeError", "message": "x is not a function", "stack": "…"}, "TypeError: x is not a function"),
        ({"value": {"message": "job timed out"}}, "job timed out"),
        ({"value": "plain"}, "plain"),
        ({"why": "no"}, '{"why":"no"}'),
        ({"name": "Timeout", "message": ""}, "Timeout"),
    ],
)
def test_errors_of_either_side_can_be_read(output: Any, error: str | None):
    assert error_of(output) == error


def test_long_keys_fit_an_index_and_short_ones_stay_readable():
    assert singleton_key_of("order-7") == "order-7"
    long = "é" * MAX_KEY_BYTES
    kept = singleton_key_of(long)
    assert kept is not None
    assert len(kept.encode()) < 100
    assert kept != singleton_key_of(long + "x")
