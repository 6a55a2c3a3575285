"""The table of moves, and the one decision about how a run ends."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.backoff import DEFAULT_BACKOFF, Backoff
from onward.lifecycle import (
    FENCED,
    FINISHED,
    HELD,
    HOLD_TIME,
    MAX_ATTEMPTS,
    MOVE_OF,
    MOVES,
    WAITING,
    Bury,
    Cancel,
    Complete,
    Crashed,
    Fail,
    Failure,
    Interrupted,
    JobStatus,
    Move,
    Outcome,
    Raised,
    Release,
    Result,
    Retry,
    Returned,
    Snooze,
    Snoozed,
    Stopped,
    can_retry,
    decide,
)


class Run(msgspec.Struct, frozen=True):
    attempts: int
    max_attempts: int = MAX_ATTEMPTS
    backoff: Backoff | None = None


FAILURE = Failure("ValueError", "no such thing")

delays = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=365))
failures = st.builds(Failure, st.text(min_size=1), st.text(), st.none() | st.text())
results = (
    st.builds(Returned, st.none() | st.just("{}"))
    | st.builds(Raised, failures, st.booleans(), st.none() | delays)
    | st.builds(Snoozed, delays)
    | st.builds(Stopped, st.text())
    | st.builds(Interrupted)
)
backoffs = st.builds(Backoff.exponential, st.floats(0.001, 1000), jitter=st.floats(0, 1)) | st.builds(
    Backoff.fixed, st.floats(0.001, 1000)
)
runs = st.builds(Run, st.integers(0, 50), st.integers(1, 50), st.none() | backoffs)


def test_there_are_nine_states():  # O1
    assert {state.value for state in JobStatus} == {
        "scheduled",
        "blocked",
        "pending",
        "claimed",
        "running",
        "completed",
        "failed",
        "dead_letter",
        "cancelled",
    }


def test_a_job_waits_or_is_held_or_has_finished():  # O1
    assert set(JobStatus) == WAITING | HELD | FINISHED
    assert len(WAITING) + len(HELD) + len(FINISHED) == len(JobStatus)


def test_the_table_says_where_every_move_leads():  # O1
    assert set(MOVES) == set(Move)
    assert all(sources for sources, _ in MOVES.values())


@pytest.mark.parametrize("move", Move)
def test_no_move_stays_where_it_is(move):  # O1
    sources, target = MOVES[move]
    assert target not in sources


def test_only_a_replay_leaves_a_finished_state_and_never_a_completed_one():  # O1
    leaving = {move for move, (sources, _) in MOVES.items() if sources & FINISHED}
    assert leaving == {Move.REPLAY}
    assert JobStatus.COMPLETED not in MOVES[Move.REPLAY][0]


def test_every_way_of_waiting_leads_to_ready_and_only_ready_jobs_are_claimed():  # O1
    assert MOVES[Move.CLAIM] == (frozenset({JobStatus.PENDING}), JobStatus.CLAIMED)
    becoming_ready = {state for sources, target in MOVES.values() if target is JobStatus.PENDING for state in sources}
    assert WAITING - {JobStatus.PENDING} <= becoming_ready


def test_a_job_completes_retries_snoozes_and_is_buried_only_from_running():  # O1
    for move in (Move.COMPLETE, Move.RETRY, Move.SNOOZE, Move.BURY):
        assert MOVES[move][0] == {JobStatus.RUNNING}


def test_every_state_but_blocked_can_be_reached_by_a_move():  # O1
    # Jobs are born scheduled, blocked or pending; nothing blocks a job later.
    assert {target for _, target in MOVES.values()} == set(JobStatus) - {JobStatus.BLOCKED}


def test_the_fenced_moves_are_those_that_only_a_holder_can_make():  # X3
    assert {move for move, (sources, _) in MOVES.items() if sources <= HELD} == FENCED


def test_every_outcome_makes_a_move():
    assert set(MOVE_OF) == set(get_args(Outcome))


@given(runs, results)
def test_a_decision_never_makes_an_illegal_move(run, result):  # O1
    sources, _ = MOVES[MOVE_OF[type(decide(run, result))]]
    assert JobStatus.RUNNING in sources


@given(runs, failures)
def test_what_may_end_a_job_before_it_starts_is_legal_from_claimed(run, failure):  # O1
    for result in (Raised(failure, retryable=False), Interrupted(), Stopped("expired")):
        assert JobStatus.CLAIMED in MOVES[MOVE_OF[type(decide(run, result))]][0]


@given(runs, failures, st.none() | delays)
def test_a_failed_run_is_tried_again_exactly_while_attempts_are_left(run, failure, delay):  # Counting, O8, H3
    outcome = decide(run, Raised(failure, delay=delay))
    if run.attempts < run.max_attempts:
        assert isinstance(outcome, Retry)
    else:
        assert isinstance(outcome, Bury)
    assert outcome.failure == failure


@given(runs, failures)
def test_do_not_retry_ends_a_job_whatever_attempts_are_left(run, failure):  # O1
    assert decide(run, Raised(failure, retryable=False)) == Fail(failure)


@pytest.mark.parametrize("attempts", range(1, 12))
def test_a_retry_waits_as_long_as_the_backoff_says_for_the_attempts_made(attempts):  # H3, Counting
    policy = Backoff.exponential(3, factor=3, cap=None)
    outcome = decide(Run(attempts, 99, policy), Raised(FAILURE))
    assert outcome == Retry(policy.delay(attempts), FAILURE)
    assert decide(Run(attempts, 99), Raised(FAILURE)) == Retry(DEFAULT_BACKOFF.delay(attempts), FAILURE)


def test_the_first_failure_waits_one_second_and_the_fifth_ends_it():  # H1, H3, Counting
    outcomes = [decide(Run(attempts), Raised(FAILURE)) for attempts in (1, 2, 3, 4, 5)]
    assert outcomes == [*(Retry(timedelta(seconds=s), FAILURE) for s in (1, 2, 4, 8)), Bury(FAILURE)]


def test_a_delay_that_the_handler_asks_for_stands_in_for_the_backoff():  # H3
    delay = timedelta(minutes=7)
    assert decide(Run(1), Raised(FAILURE, delay=delay)) == Retry(delay, FAILURE)
    assert decide(Run(1), Raised(FAILURE, delay=timedelta(0))) == Retry(timedelta(0), FAILURE)


def test_a_decision_takes_its_jitter_from_the_randomness_it_is_given():
    run = Run(1, 5, Backoff.exponential(10, jitter=0.5))
    assert decide(run, Raised(FAILURE), random=lambda: 1.0) == Retry(timedelta(seconds=15), FAILURE)
    assert decide(run, Raised(FAILURE), random=lambda: 0.0) == Retry(timedelta(seconds=10), FAILURE)


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (Returned('"done"'), Complete('"done"')),
        (Returned(None), Complete(None)),
        (Snoozed(timedelta(seconds=9)), Snooze(timedelta(seconds=9))),
        (Stopped("not needed"), Cancel("not needed")),
        (Interrupted(), Release()),
    ],
)
@pytest.mark.parametrize("attempts", [1, 5, 6])
def test_what_is_no_failure_never_uses_up_the_attempts(result, outcome, attempts):  # Counting
    assert decide(Run(attempts), result) == outcome


def test_every_kind_of_result_is_decided():
    results = (Returned(), Raised(FAILURE), Snoozed(timedelta(0)), Stopped(""), Interrupted(), Crashed(FAILURE))
    assert {type(result) for result in results} == set(get_args(Result))


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (None, Release()),
        ("dead_letter", Bury(FAILURE)),
        ("fail", Fail(FAILURE)),
        ("hold", Retry(HOLD_TIME, FAILURE)),
    ],
)
@pytest.mark.parametrize("attempts", [1, 5])
def test_what_becomes_of_a_crash_is_its_policys_to_say(policy, outcome, attempts):  # Counting
    assert decide(Run(attempts), Crashed(FAILURE, policy)) == outcome


def test_a_crash_may_count_as_a_failure():  # Counting
    for attempts in (1, 4, 5):
        failed = decide(Run(attempts), Raised(FAILURE), random=lambda: 0.5)
        assert decide(Run(attempts), Crashed(FAILURE, "retry"), random=lambda: 0.5) == failed


@given(st.sampled_from(JobStatus), st.integers(0, 20), st.integers(1, 20))
def test_a_job_can_retry_while_attempts_are_left_unless_it_runs_or_is_done(status, attempts, most):  # H2
    expected = status not in {JobStatus.COMPLETED, JobStatus.RUNNING} and attempts < most
    assert can_retry(status, attempts, most) is expected


def test_a_job_has_five_attempts_unless_told_otherwise():  # H2, Counting
    assert can_retry(JobStatus.FAILED, 4)
    assert not can_retry(JobStatus.FAILED, 5)


def test_a_failure_shows_as_one_line():
    assert str(FAILURE) == "ValueError: no such thing"
    assert str(Failure("NoHandler", "")) == "NoHandler"


@given(st.text(st.characters()), st.text(st.characters()), st.none() | st.text(st.characters()))
def test_whatever_a_handler_raises_can_be_stored(kind, message, traceback):  # X3
    # An outcome must not be lost over the wording of its error: no store keeps NUL or lone surrogates.
    failure = Failure(kind, message, traceback)
    for text in (failure.error_type, failure.message, failure.traceback or "", Cancel(message).reason):
        assert "\0" not in text
        assert text.encode().decode() == text


def test_ordinary_words_of_an_error_are_kept_as_they_are():
    assert Failure("ValueError", "é 😀\n\\0").message == "é 😀\n\\0"
    assert Failure("ValueError", "a\0b\ud800").message == "a\\0b\\ud800"
