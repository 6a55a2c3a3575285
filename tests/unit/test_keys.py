"""Keys by which jobs are told to be the same, checked against Node itself."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from onward.keys import canonical_json, dedupe_key, digest
from tests.unit.strategies import json_values, texts

ORACLE = Path(__file__).with_name("oracle.js")

# Where the two languages write numbers differently, and the edges of JavaScript's notation.
NUMBERS: tuple[float, ...] = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1 + 0.2,
    1e-6,
    1e-7,
    1.5e-7,
    123e-20,
    5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
    1e20,
    1e21,
    -1e21,
    1.5e21,
    999999999999999900000.0,
    123456789012345680000.0,
    2.0**53,
    2**53,
    -(2**53),
    4.35,
    100.0,
)
STRINGS = (
    "",
    '"\\/',
    "\b\f\n\r\t",
    "".join(map(chr, range(1, 0x20))),
    "\x7f\x80\x9f",
    "\u2028\u2029\ufeff",
    "é 漢 😀",
    "<script>&'",
)
# JavaScript orders by UTF-16 units: an astral character (a surrogate pair) comes before U+E000 … U+FFFF.
NAMES: tuple[dict[str, Any], ...] = (
    {"\U0001f600": 1, "\uffff": 2, "\ue000": 3, "z": 4},
    {"10": 1, "9": 2, "1": 3, "01": 4, "-1": 5, "a": 6, "A": 7, "": 8},
    {"__proto__": 1, "constructor": {"toString": 2}, "length": 3},
)


def test_keys_are_byte_for_byte_what_node_makes(node):  # H4
    jobs: list[tuple[str, str | None, Any]] = [("send-mail", None, value) for value in (*NUMBERS, *STRINGS, *NAMES)]

    @settings(max_examples=500, database=None, phases=[Phase.generate])
    @given(texts, st.none() | texts.filter(bool), json_values)
    def collect(type: str, org_id: str | None, payload: Any) -> None:
        jobs.append((type, org_id, payload))

    collect()
    answer = subprocess.run([node, ORACLE], input=json.dumps(jobs).encode(), stdout=subprocess.PIPE, check=True)
    expected = json.loads(answer.stdout)
    assert len(expected) == len(jobs) > 500
    for job, key in zip(jobs, expected, strict=True):
        assert dedupe_key(*job).encode() == key.encode()


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same value with the members of every object in another order."""
    match value:
        case dict():
            members = [(name, shuffled(member, chance)) for name, member in value.items()]
            chance.shuffle(members)
            return dict(members)
        case list():
            return [shuffled(member, chance) for member in value]
        case _:
            return value


@given(json_values, st.randoms())
def test_a_key_does_not_depend_on_the_order_of_keys_at_any_depth(payload, chance):  # H4
    assert dedupe_key("t", None, payload) == dedupe_key("t", None, shuffled(payload, chance))


def test_the_order_of_a_list_does_matter():  # H4
    assert dedupe_key("t", None, [1, 2]) != dedupe_key("t", None, [2, 1])


def test_a_key_names_type_organisation_and_payload():  # H4
    payload = {"b": [1, {"z": None, "y": True}], "a": "é"}
    assert dedupe_key("send", "acme", payload) == 'send::acme::{"a":"é","b":[1,{"y":true,"z":null}]}'
    assert dedupe_key("send", None, {}) == "send::global::{}"


def test_one_and_true_are_not_the_same():  # H4
    assert [canonical_json(value) for value in (1, True, 0, False)] == ["1", "true", "0", "false"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, b"ab", {3}, object()])
def test_what_json_cannot_say_has_no_key(value):
    with pytest.raises(TypeError, match="not a JSON value"):
        canonical_json({"a": [value]})


@given(st.lists(texts), st.lists(texts))
def test_two_digests_are_equal_only_if_all_their_parts_are(one, other):  # O4
    assert (digest(*one) == digest(*other)) is (one == other)


def test_parts_of_a_digest_cannot_run_into_each_other():  # O4
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("abc", "")}) == 4


def test_a_key_of_any_length_is_shortened_to_32_bytes():  # O4
    assert len(digest("x" * 1_000_000)) == 32
