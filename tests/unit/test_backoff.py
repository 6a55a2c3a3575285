"""How long to wait: the table, its cap, and what is refused."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.backoff import DEFAULT_BACKOFF, Backoff, BackoffKind
from onward.errors import InvalidValue

seconds = st.floats(0.001, 1e6)
policies = st.builds(
    Backoff.exponential,
    seconds,
    factor=st.floats(1, 10),
    cap=st.none() | seconds,
    jitter=st.just(0.0),
) | st.builds(Backoff.fixed, seconds)
attempt_counts = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("attempts", "wait"),
    [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (8, 60), (1_000_000, 60)],
)
def test_the_default_doubles_from_one_second_to_sixty(attempts, wait):  # H1
    assert DEFAULT_BACKOFF.delay(attempts) == timedelta(seconds=wait)
    assert Backoff.exponential().delay(attempts) == timedelta(seconds=wait)


@given(policies, attempt_counts)
def test_a_wait_never_gets_shorter(policy, attempts):  # H1
    assert policy.delay(attempts) <= policy.delay(attempts + 1)


@given(policies, attempt_counts)
def test_a_wait_never_exceeds_its_cap(policy, attempts):  # H1
    if policy.cap is not None:
        assert policy.delay(attempts) <= timedelta(seconds=policy.cap)


@given(st.floats(1.01, 10), st.floats(1, 1e6))
def test_every_growing_policy_reaches_its_cap(factor, cap):  # H1
    assert Backoff.exponential(1, factor=factor, cap=cap).delay(100_000) == timedelta(seconds=cap)


@given(seconds, attempt_counts)
def test_a_fixed_policy_waits_the_same_each_time(base, attempts):
    assert Backoff.fixed(base).delay(attempts) == timedelta(seconds=base)


@given(policies, st.floats(0, 1), attempt_counts, st.floats(0, 1, exclude_max=True))
def test_jitter_only_adds_and_at_most_its_share(policy, jitter, attempts, chance):  # H1
    plain = policy.delay(attempts)
    shaken = msgspec.structs.replace(policy, jitter=jitter).delay(attempts, random=lambda: chance)
    assert plain <= shaken <= plain * (1 + jitter) + timedelta(microseconds=1)


def test_a_policy_without_a_cap_stays_within_the_calendar():
    wait = Backoff.exponential(1e300, factor=1e300, cap=None, jitter=1).delay(10**400)
    assert timedelta(days=365) < wait <= timedelta(days=366 * 100)


def test_a_kind_given_as_text_means_what_it_says():
    assert Backoff(kind="exponential").delay(3) == timedelta(seconds=4)  # type: ignore[arg-type]
    assert Backoff(kind="fixed").delay(3) == timedelta(seconds=1)  # type: ignore[arg-type]


def test_durations_may_be_timedeltas():
    policy = Backoff.exponential(timedelta(milliseconds=500), cap=timedelta(minutes=1))
    assert (policy.base, policy.cap) == (0.5, 60.0)
    assert Backoff.fixed(timedelta(seconds=5)).base == 5.0


@given(policies)
def test_a_policy_travels_as_json_unchanged(policy):
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Backoff) == policy


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "linear"),
        ("kind", ""),
        ("base", 0),
        ("base", -1.0),
        ("base", NAN),
        ("base", INFINITY),
        ("factor", 0.5),
        ("factor", NAN),
        ("factor", INFINITY),
        ("cap", 0),
        ("cap", -1),
        ("cap", NAN),
        ("cap", INFINITY),
        ("jitter", -0.1),
        ("jitter", 1.1),
        ("jitter", NAN),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused_by_the_name_of_its_field(field, value):  # B3
    with pytest.raises(InvalidValue) as refused:
        Backoff(**{field: value})
    assert refused.value.field == f"backoff.{field}"
    assert repr(value) in str(refused.value)
    assert "must be" in refused.value.rule


def test_the_two_kinds_are_those_that_the_rules_name():  # B3
    assert {kind.value for kind in BackoffKind} == {"fixed", "exponential"}
