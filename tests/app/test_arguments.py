"""Arguments travel by name, as JSON, and come back as what the annotations say."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward import InvalidPayload, InvalidValue, JobContext, PayloadTooLarge
from onward.arguments import Arguments


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Order(pydantic.BaseModel):
    number: int
    lines: list[str] = []
    at: datetime


NOON = datetime(2030, 5, 1, 12, tzinfo=UTC)


def arguments(function: Any) -> Arguments:
    return Arguments(function, name=function.__name__)


def there_and_back(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    travelling = arguments(function)
    return travelling.decode(travelling.encode(args, kwargs))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 7),
        (float, 1.5),
        (str, "Grüße 🚚"),
        (bool, True),
        (bytes, b"\x00\xff"),
        (datetime, NOON),
        (date, date(2030, 5, 1)),
        (timedelta, timedelta(hours=3)),
        (UUID, UUID("0190b0c4-0000-7000-8000-000000000000")),
        (Decimal, Decimal("10.50")),
        (Colour, Colour.RED),
        (Point, Point(1, 2)),
        (list[Point], [Point(1), Point(3, 4)]),
        (dict[str, Point], {"a": Point(1)}),
        (set[int], {1, 2}),
        (Circle | Square, Square(2.0)),
        (int | str | None, None),
        (Annotated[int, msgspec.Meta(ge=0)], 3),
        (Order, Order(number=1, lines=["a"], at=NOON)),
        (list[Order], [Order(number=1, at=NOON), Order(number=2, at=NOON)]),
        (Order | None, Order(number=1, at=NOON)),
        (Any, {"nested": [1, "a", None]}),
    ],
    ids=str,
)
def test_what_an_annotation_says_comes_back_as_it_was(annotation: Any, value: Any):
    def handler(value):  # pragma: no cover - never called
        ...

    handler.__annotations__["value"] = annotation
    assert there_and_back(handler, value) == {"value": value}


def test_positional_arguments_are_stored_by_name():
    def handler(to: str, subject: str, *, urgent: bool) -> None: ...

    assert json.loads(arguments(handler).encode(("a",), {"urgent": True, "subject": "b"})) == {
        "to": "a",
        "subject": "b",
        "urgent": True,
    }


def test_a_default_stays_the_function_s_own():
    def handler(to: str, subject: str = "Hello", copies: list[str] = []) -> None:  # noqa: B006 - what people write
        ...

    travelling = arguments(handler)
    assert travelling.encode(("a",), {}) == '{"to":"a"}'
    assert travelling.decode('{"to":"a"}') == {"to": "a"}
    assert travelling.decode('{"to":"a","copies":["b"]}') == {"to": "a", "copies": ["b"]}


def test_a_context_is_no_part_of_the_payload():
    def first(context: JobContext, to: str) -> None: ...
    def last(to: str, *, about: Annotated[JobContext, "this run"]) -> None: ...

    for handler, name in ((first, "context"), (last, "about")):
        travelling = arguments(handler)
        assert travelling.context == name
        assert travelling.encode(("a",), {}) == '{"to":"a"}'
        with pytest.raises(InvalidPayload, match=rf"payload\.{name}: .* has no such argument"):
            travelling.encode((), {"to": "a", name: 1})


def test_an_argument_without_annotation_may_be_any_json():
    def handler(anything):  # pragma: no cover - never called
        ...

    assert there_and_back(handler, anything=[1, {"a": None}]) == {"anything": [1, {"a": None}]}


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "says"),
    [
        ((), {}, "payload.to", "needs this argument"),
        ((), {"to": "a", "suject": "b"}, "payload.suject", "did you mean 'subject'?"),
        ((7,), {}, "payload.to", "Expected `str`, got `int`"),
        (("a",), {"to": "b"}, "payload.to", "twice"),
        (("a", "b", [], "d"), {}, "payload", "takes 3 arguments by position, 4 were given"),
        (("a",), {"copies": ["b", 3]}, "payload.copies[1]", "Expected `str`, got `int`"),
        (("a",), {"copies": [object()]}, "payload.copies", "use a dataclass"),
        (("a\0b",), {}, "payload.to", "NUL"),
        (("\ud800",), {}, "payload.to", "surrogate"),
    ],
)
def test_a_bad_call_is_refused_by_the_name_of_the_argument(args, kwargs, field, says):  # B4
    def send(to: str, subject: str = "", copies: list[str] = []) -> None:  # noqa: B006
        ...

    with pytest.raises(InvalidPayload) as refusal:
        arguments(send).encode(args, kwargs)
    assert refusal.value.field == field
    assert says in str(refusal.value)
    assert str(refusal.value).startswith(f"{field}: ")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53 + 1, -(2**60)])
def test_numbers_that_json_would_bend_are_refused(value):  # B4
    def handler(value: float) -> None: ...

    with pytest.raises(InvalidPayload, match=r"^payload\.value: must be "):
        arguments(handler).encode((value,), {})


def test_too_much_is_refused_before_anything_is_written():  # B4
    def handler(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge, match=r"^Job payload size 12\.0 MB exceeds limit of 10\.0 MB$"):
        arguments(handler).encode(("x" * 12 * 1024 * 1024,), {})


_values = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["a\0b", "\ud800", "1234567890123456", "null", "\\u0000", "a\nb", "é\u2028"]),
    st.integers(-(2**54), 2**54),
    st.floats(),
    st.booleans(),
    st.none(),
    st.sampled_from([Decimal("1.5"), NOON, [1], {"a": 2**60}, {1: 2}, Colour.RED]),
)
_calls = st.lists(
    st.one_of(
        st.fixed_dictionaries({"one": _values}, optional={"two": _values}),
        st.dictionaries(st.sampled_from(["one", "two", "three"]), _values),
        st.tuples(_values),
    ),
    max_size=4,
)


def _answer_of(call: Any) -> Any:
    try:
        return call()
    except InvalidValue as refusal:
        return type(refusal), str(refusal)


@given(_calls)
def test_many_calls_are_written_and_refused_as_each_alone_is(calls):  # B4
    def handler(one: Any, two: str | float | None = None) -> None: ...

    travelling = arguments(handler)

    def each() -> list[str]:
        return [travelling.encode(c, {}) if isinstance(c, tuple) else travelling.encode((), c) for c in calls]

    assert _answer_of(lambda: travelling.encode_many(calls)) == _answer_of(each)


def test_too_much_is_refused_among_many():  # B4
    def handler(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge):
        arguments(handler).encode_many([{"text": "x"}, {"text": "x" * 2000}], max_size=1000)
    assert len(arguments(handler).encode_many([{"text": "x" * 600}] * 2, max_size=1000)) == 2


def test_a_refusal_does_not_show_what_was_in_the_payload():
    def handler(password: str, pin: int) -> None: ...

    with pytest.raises(InvalidPayload) as refusal:
        arguments(handler).decode('{"password":"swordfish","pin":"4711"}')
    assert "swordfish" not in str(refusal.value)
    assert "4711" not in str(refusal.value)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ("nonsense", "payload: must be JSON"),
        ("[]", "payload: Expected `object`, got `array`"),
        ("{}", "payload: Object missing required field `to`"),
        ('{"to":"a","bcc":"b"}', "payload: Object contains unknown field `bcc`"),
        ('{"to":3}', "payload.to: Expected `str`, got `int`"),
        (
            '{"to":"a","order":{"number":"x","at":"2030-01-01T00:00:00Z"}}',
            "payload.order: 1 validation error for Order",
        ),
    ],
)
def test_a_payload_from_elsewhere_is_held_to_the_annotations(payload, says):
    def send(to: str, order: Order | None = None) -> None: ...

    with pytest.raises(InvalidPayload) as refusal:
        arguments(send).decode(payload)
    assert str(refusal.value).startswith(says)


def test_signatures_that_cannot_travel_are_refused_when_the_task_is_defined():
    def any_number(*names: str) -> None: ...
    def by_position(to: str, /) -> None: ...
    def not_json(connection: sys.__class__) -> None: ...  # type: ignore[name-defined]
    def two_contexts(one: JobContext, other: JobContext) -> None: ...

    for function, says in (
        (any_number, "take one list instead"),
        (by_position, "remove the '/'"),
        (not_json, "use a dataclass"),
        (two_contexts, "one is enough"),
    ):
        with pytest.raises(InvalidValue, match=says) as refusal:
            arguments(function)
        assert refusal.value.field.startswith(f"{function.__name__}(")


class Lamp(msgspec.Struct):
    watts: int


def test_a_union_that_json_cannot_tell_apart_is_refused_by_argument():
    def handler(thing: Lamp | Point) -> None: ...

    with pytest.raises(InvalidValue, match=r"^handler\(thing: .*cannot be read from JSON"):
        arguments(handler)


def test_an_annotation_may_name_what_is_defined_further_down():
    def handler(value: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    travelling = arguments(handler)
    globals()["Later"] = Point
    try:
        assert travelling.decode('{"value":{"x":1}}') == {"value": Point(1)}
    finally:
        del globals()["Later"]


def test_an_annotation_that_names_nothing_is_an_error_that_says_so():
    def handler(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidValue, match=r"name 'Nowhere' is not defined.*import it outside of `if TYPE_CHECKING`"):
        arguments(handler).encode((1,), {})


@pytest.mark.parametrize(
    ("annotation", "stored", "value"),
    [
        (Point, {"x": 1, "y": 2}, Point(1, 2)),
        (datetime, "2030-05-01T12:00:00Z", NOON),
        (Order, {"number": 1, "at": "2030-05-01T12:00:00Z"}, Order(number=1, at=NOON)),
        (None, None, None),
        (Any, [1], [1]),
        (object, [1], [1]),
    ],
    ids=str,
)
def test_a_result_is_read_as_the_function_says_it_returns(annotation, stored, value):
    def handler():  # pragma: no cover - never called
        ...

    handler.__annotations__["return"] = annotation
    assert arguments(handler).read_result(stored) == value


def test_a_stored_result_of_another_type_is_an_error_that_says_so():
    def handler() -> Point:
        return Point(0)

    with pytest.raises(InvalidValue, match=r"not what handler\(\) says it returns"):
        arguments(handler).read_result("elsewhere")
