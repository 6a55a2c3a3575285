"""What an engine says of itself: everything, and with a reason."""

from __future__ import annotations

import pytest

from onward.engine.capabilities import NATIVE, Capabilities, Feature, Level, Support, absent, emulated
from onward.errors import Unsupported
from onward.lifecycle import JobStatus

ALL = dict.fromkeys(Feature, NATIVE)


@pytest.mark.parametrize("feature", Feature)
def test_an_engine_must_speak_of_every_feature(feature):  # X1
    features = {said: NATIVE for said in Feature if said is not feature}
    with pytest.raises(ValueError, match=f"sqlish does not say whether it has: {feature}"):
        Capabilities("sqlish", features, {})


@pytest.mark.parametrize("level", [Level.EMULATED, Level.ABSENT])
def test_anything_but_native_needs_a_note(level):  # X1
    with pytest.raises(ValueError, match="needs a note"):
        Support(level)
    with pytest.raises(ValueError, match="needs a note"):
        Support(level, "")


def test_a_feature_is_there_natively_or_made_up_for():  # X1
    features = {**ALL, Feature.RATE: emulated("counted by the worker"), Feature.PAUSE: absent("use the server's")}
    capabilities = Capabilities("sqlish", features, {})
    assert capabilities.has(Feature.PRIORITY)
    assert capabilities.has(Feature.RATE)
    assert not capabilities.has(Feature.PAUSE)
    capabilities.require(Feature.PRIORITY)
    capabilities.require(Feature.RATE)


@pytest.mark.parametrize("feature", Feature)
def test_requiring_what_is_absent_is_refused_with_the_reason(feature):  # X1
    capabilities = Capabilities("sqlish", {**ALL, feature: absent("there is no such thing here")}, {})
    with pytest.raises(Unsupported) as refused:
        capabilities.require(feature)
    assert (refused.value.engine, refused.value.feature, refused.value.note) == (
        "sqlish",
        feature,
        "there is no such thing here",
    )


def test_states_that_an_engine_cannot_tell_apart_are_shown_as_one():  # O1
    capabilities = Capabilities("sqlish", ALL, {JobStatus.CLAIMED: JobStatus.RUNNING})
    assert capabilities.shown(JobStatus.CLAIMED) is JobStatus.RUNNING
    assert capabilities.shown(JobStatus.PENDING) is JobStatus.PENDING
