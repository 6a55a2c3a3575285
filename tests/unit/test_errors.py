"""The tree of exceptions is the one that its module draws, and each says what a caller needs."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from onward import errors
from onward.errors import (
    ClaimLost,
    InvalidValue,
    JobNotFound,
    OnwardError,
    PayloadTooLarge,
    StoreFull,
    StoreUnavailable,
    Unsupported,
)

_BRANCH = re.compile(r"^ {4}(?P<indent>[│ ]*)(?:[├└]── )?(?P<name>[A-Z]\w+)")


def drawn() -> dict[str, str | None]:
    """Each exception in the module's drawing, and the one that it hangs from."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]
        if match := _BRANCH.match(line):
            depth = 0 if "──" not in line else len(match["indent"]) // 4 + 1
            above[depth:] = [match["name"]]
            parents[match["name"]] = above[depth - 1] if depth else None
    return parents


def test_the_tree_is_the_one_that_is_drawn():
    found = {
        name: next((base.__name__ for base in kind.__bases__ if issubclass(base, OnwardError)), None)
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }
    assert found == drawn()


def test_an_invalid_job_is_also_a_value_error_and_a_missing_one_a_lookup_error():
    assert issubclass(InvalidValue, ValueError)
    assert issubclass(JobNotFound, LookupError)


def test_an_invalid_job_points_at_the_field():  # B3
    error = InvalidValue("priority", -1, "must be 0 or more")
    assert (error.field, error.value, error.rule) == ("priority", -1, "must be 0 or more")
    assert str(error) == "priority = -1: must be 0 or more"


def test_a_long_value_is_cut_short_in_the_message():
    message = str(InvalidValue("type", "x" * 1_000_000, "is too long"))
    assert len(message) < 250
    assert message.endswith("xxx...: is too long")


def test_a_refusal_names_the_engine_the_feature_and_the_reason():  # X1
    error = Unsupported("pgmq", "priority", "messages have none")
    assert str(error) == "pgmq does not offer priority: messages have none"


@pytest.mark.parametrize(
    "error",
    [
        InvalidValue("a", [1], "must be b"),
        PayloadTooLarge(2, 1),
        Unsupported("sqlite", "push", "no"),
        ClaimLost("gone"),
        StoreFull("disk is full"),
        StoreUnavailable("no answer", remedy="start it"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_survives_the_way_back_from_another_process(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
