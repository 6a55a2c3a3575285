"""How the arguments of one function travel: by name, as one JSON object, checked against its annotations at both ends.

A job that was enqueued is a job that can be called: the producer decodes what it has encoded, exactly as the worker
will, and refuses there what would be refused here. Defaults stay the function's own: an argument that was not given
is not in the payload. Types are what msgspec knows (dataclasses, Structs, attrs, datetime, UUID, Decimal, Enum,
unions, …), and pydantic's models, which are known by their methods so that pydantic itself is never imported here.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, get_type_hints

import msgspec
import msgspec.inspect
from msgspec import UNSET

from onward import validation
from onward.context import JobContext
from onward.errors import InvalidPayload, InvalidValue, PayloadTooLarge
from onward.surrogates import decode_json, repaired

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_ALL_NUMBERS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 16
"""What a whole number beyond ±2^53 has, though not it alone, if all digits are as one."""
_DOUBTFUL: Final = re.compile(rb"\\u0000|\d{16}|null")
"""What NUL, such a number or NaN is written with, though not they alone."""
_encoder: Final = msgspec.json.Encoder()
_NAMED: Final = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY})
_REFUSED: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, and a payload holds arguments by name: remove the '/'",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments: take one list instead",
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the annotations say."""

    names: frozenset[str]
    required: frozenset[str]
    order: tuple[str, ...]
    context: str | None
    """The parameter that takes the JobContext, which is no part of the payload."""
    decoder: msgspec.json.Decoder[Any]
    """Reads payloads."""
    strict_decoder: msgspec.json.Decoder[Any]
    """Reads back what a producer has written; refuses unknown keys unless the function takes any."""
    returns: Any
    keys: Mapping[str, str]
    """The payload's keys of those arguments whose names differ from them."""
    extra: Any = None
    """The type of further arguments, where the function takes any (``**kwargs``)."""
    whole: str | None = None
    """The parameter that takes the whole payload."""

    @property
    def is_plain(self) -> bool:
        """Whether a call's arguments are the payload's members, and nothing else."""
        return not self.keys and self.extra is None and self.whole is None


class Arguments:
    """The arguments of one function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        ignore_unknown: bool = False,
        aliases: Mapping[str, str] | None = None,
        whole_payload: bool = False,
    ) -> None:
        """Read a function's signature.

        Args:
            function: whose arguments they are.
            name: of its task.
            ignore_unknown: whether keys of a payload that no argument has are ignored, or refused.
            aliases: the payload's keys for arguments, by the argument's name.
            whole_payload: whether the one argument is the payload itself, whatever JSON value that is.
        """
        self._function = function
        self._name = name
        self._ignore_unknown = ignore_unknown
        self._aliases = dict(aliases or {})
        self._whole_payload = whole_payload
        self._shape: _Shape | None = None
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in _NAMED and parameter.kind is not parameter.VAR_KEYWORD:
                raise InvalidValue(f"{name}({parameter})", parameter.name, _REFUSED[parameter.kind])
        try:
            self._shape = self._read()
        except NameError:
            self._shape = None  # an annotation names what the module defines further down: read it at the first use

    @property
    def context(self) -> str | None:
        """The name of the parameter that takes the JobContext, if there is one."""
        return (self._shape or self._read_once()).context

    @property
    def ignores_unknown(self) -> bool:
        """Whether keys of a payload that no argument has are ignored."""
        return self._ignore_unknown

    def ignore_unknown(self, *, on: bool) -> None:
        """Set whether keys of a payload that no argument has are ignored, or refused."""
        if on != self._ignore_unknown:
            self._ignore_unknown = on
            self._shape = None  # read again at the next use

    def encode(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, max_size: int = validation.MAX_PAYLOAD
    ) -> str:
        """Write a call's arguments as a payload.

        Raises:
            InvalidPayload: an argument is missing, unknown or of another type than the function says.
            PayloadTooLarge: there is too much of it.
        """
        shape = self._shape or self._read_once()
        if args:
            kwargs = self._by_name(shape, args, kwargs)
        if not shape.required <= kwargs.keys() or not (shape.extra is not None or kwargs.keys() <= shape.names):
            raise self._misnamed(shape, kwargs)
        if shape.whole is not None:
            return self._encode_whole(shape, kwargs.get(shape.whole), max_size)
        if shape.keys:
            kwargs = {shape.keys.get(name, name): value for name, value in kwargs.items()}
        if plain := _encode_plain_one(shape, kwargs, max_size):
            return plain
        try:
            text = to_json(kwargs, max_size=max_size)
        except PayloadTooLarge:
            raise
        except InvalidValue as error:
            raise self._unwritable(kwargs) or InvalidPayload(error.field, kwargs, error.rule) from None
        if kwargs:
            self._read_payload(shape.strict_decoder, text)
        return text

    def _encode_whole(self, shape: _Shape, value: Any, max_size: int) -> str:
        try:
            text = to_json(value, max_size=max_size)
        except PayloadTooLarge:
            raise
        except InvalidValue as error:
            raise InvalidPayload(error.field, value, error.rule) from None
        self._read_payload(shape.strict_decoder, text)
        return text

    def encode_many(
        self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]], *, max_size: int = validation.MAX_PAYLOAD
    ) -> list[str]:
        """Write the arguments of many calls, each given by name or by position, as :meth:`encode` writes them.

        Raises:
            InvalidPayload: an argument is missing, unknown or of another type than the function says.
            PayloadTooLarge: there is too much of it.
        """
        shape = self._shape or self._read_once()
        given = list(calls)
        encode = self.encode
        return (_encode_plain(shape, given, max_size) if shape.is_plain else None) or [
            encode(call, {}, max_size=max_size) if isinstance(call, tuple) else encode((), call, max_size=max_size)
            for call in given
        ]

    def decode(self, payload: str) -> dict[str, Any]:
        """Read a payload back into arguments by name.

        Raises:
            InvalidPayload: it does not fit the function.
        """
        shape = self._shape or self._read_once()
        if shape.whole is not None:
            return {shape.whole: self._read_payload(shape.decoder, payload)}
        if payload == "{}" and not shape.required:
            return {}
        arguments = msgspec.structs.asdict(self._read_payload(shape.decoder, payload))
        if shape.extra is not None:
            arguments |= self._read_extra(shape, payload)
        elif len(shape.required) == len(shape.names):
            return arguments
        return {name: value for name, value in arguments.items() if value is not UNSET}

    def _read_extra(self, shape: _Shape, payload: str) -> dict[str, Any]:
        """Read the members of a payload that are no argument of their own."""
        taken = {shape.keys.get(name, name) for name in shape.names}
        members = {name: value for name, value in decode_json(payload).items() if name not in taken}
        try:
            return {
                name: msgspec.convert(value, shape.extra, dec_hook=_validate_model) for name, value in members.items()
            }
        except msgspec.ValidationError as error:
            raise InvalidPayload("payload", payload, str(error)) from None

    def _read_payload(self, decoder: msgspec.json.Decoder[Any], payload: str) -> Any:
        try:
            try:
                return decoder.decode(payload)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                return decoder.decode(repaired(payload))
        except msgspec.ValidationError as error:
            # msgspec says where only in the text: "Expected `str`, got `int` - at `$.to`".
            rule, _, path = str(error).partition(" - at `$")
            raise InvalidPayload(f"payload{path.rstrip('`')}", payload, rule) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidPayload("payload", payload, f"must be JSON: {error}") from None
        except RecursionError:
            raise InvalidPayload("payload", payload, "is nested too deep to be read") from None

    def read_result(self, value: Any) -> Any:
        """Read a stored result back into what the function said that it returns."""
        returns = self._read_once().returns
        if returns is Any or returns is None or returns is type(None):
            return value
        try:
            return msgspec.convert(value, returns, dec_hook=_validate_model, str_keys=True)
        except msgspec.ValidationError as error:
            rule = f"the stored result is not what {self._name}() says it returns: {error}"
            raise InvalidValue("result", value, rule) from None

    def _read_once(self) -> _Shape:
        if self._shape is None:
            try:
                self._shape = self._read()
            except NameError as error:
                rule = (
                    f"an annotation cannot be read ({error}): import it outside of `if TYPE_CHECKING`, "
                    "and define it at the top of a module"
                )
                raise InvalidValue(f"{self._name}()", error.name, rule) from error
        return self._shape

    def _read(self) -> _Shape:
        signature = inspect.signature(self._function)
        hints = _hints_of(self._function)
        context = extra = None
        fields: list[tuple[str, Any, Any]] = []
        for parameter in signature.parameters.values():
            hint = hints.get(parameter.name, Any)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._check_type(str(parameter), hint)
                extra = hint
                continue
            if _is_context(hint):
                if context is not None:
                    rule = "is a second JobContext: one is enough"
                    raise InvalidValue(f"{self._name}({parameter})", parameter.name, rule)
                context = parameter.name
                continue
            self._check_type(str(parameter), hint)
            default = msgspec.NODEFAULT if parameter.default is parameter.empty else UNSET
            key = self._aliases.get(parameter.name)
            fields.append((parameter.name, hint, msgspec.field(default=default, name=key)))
        self._check_options({name for name, _, _ in fields}, extra)
        strict_decoder = decoder = self._decoder_of(fields, strict=extra is None)
        if self._ignore_unknown and not self._whole_payload:
            decoder = self._decoder_of(fields, strict=False)
        returns = hints.get("return", Any)
        return _Shape(
            names=frozenset(name for name, _, _ in fields),
            required=frozenset(name for name, _, field in fields if field.default is msgspec.NODEFAULT),
            order=tuple(p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD),
            context=context,
            decoder=decoder,
            strict_decoder=strict_decoder,
            returns=returns if returns is None or _is_readable(returns) else Any,
            keys=self._aliases,
            extra=extra,
            whole=fields[0][0] if self._whole_payload else None,
        )

    def _decoder_of(self, fields: list[tuple[str, Any, Any]], *, strict: bool) -> msgspec.json.Decoder[Any]:
        if self._whole_payload:
            return msgspec.json.Decoder(fields[0][1], dec_hook=_validate_model)
        arguments = msgspec.defstruct(self._name.title(), fields, kw_only=True, forbid_unknown_fields=strict)
        return msgspec.json.Decoder(arguments, dec_hook=_validate_model)

    def _check_options(self, names: set[str], extra: Any) -> None:
        for name, key in self._aliases.items():
            if name not in names:
                raise InvalidValue("aliases", name, f"{self._name}() has no such argument{nearest(name, names)}")
            if not isinstance(key, str) or not key:
                raise InvalidValue(f"aliases[{name}]", key, "must be a key of the payload, such as 'user-id'")
        keys = [self._aliases.get(name, name) for name in names]
        if len(set(keys)) < len(keys):
            raise InvalidValue("aliases", self._aliases, "gives two arguments the same key")
        if self._whole_payload and (len(names) != 1 or extra is not None or self._aliases):
            rule = f"needs a function with one argument besides the context; {self._name}() has {len(names)}"
            raise InvalidValue("whole_payload", self._whole_payload, rule)

    def _check_type(self, parameter: str, hint: Any) -> None:
        try:
            known = msgspec.inspect.type_info(hint)
            msgspec.json.Decoder(hint, dec_hook=_validate_model)
        except TypeError as error:
            raise InvalidValue(f"{self._name}({parameter})", hint, f"cannot be read from JSON: {error}") from None
        if isinstance(known, msgspec.inspect.CustomType) and not _is_model(known.cls):
            rule = "cannot be written as JSON: use a dataclass, a msgspec.Struct or a pydantic model, or pass its key"
            raise InvalidValue(f"{self._name}({parameter})", hint, rule)

    def _by_name(self, shape: _Shape, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        order = [name for name in shape.order if name != shape.context]
        if len(args) > len(order):
            rule = f"{self._name}() takes {len(order)} arguments by position, {len(args)} were given"
            raise InvalidPayload("payload", args, rule)
        named = dict(zip(order, args, strict=False))
        for name in named.keys() & kwargs.keys():
            raise InvalidPayload(f"payload.{name}", kwargs[name], f"was given to {self._name}() twice")
        return named | dict(kwargs)

    def _misnamed(self, shape: _Shape, kwargs: Mapping[str, Any]) -> InvalidPayload:
        for name in kwargs:
            if name not in shape.names and shape.extra is None:
                rule = f"{self._name}() has no such argument{nearest(name, shape.names)}"
                return InvalidPayload(f"payload.{name}", kwargs[name], rule)
        missing = next(name for name in kwargs.keys() ^ shape.names if name in shape.required)
        return InvalidPayload(f"payload.{missing}", None, f"{self._name}() needs this argument")

    def _unwritable(self, kwargs: Mapping[str, Any]) -> InvalidPayload | None:
        for name, value in kwargs.items():
            try:
                to_json(value, field=f"payload.{name}")
            except InvalidValue as error:
                return InvalidPayload(error.field, value, error.rule)
        return None


def _encode_plain_one(shape: _Shape, call: Mapping[str, Any], max_size: int) -> str | None:
    """Write a call of plain values, and read it back; None: some are not plain, or perhaps not right."""
    if not _PLAIN.issuperset(map(type, call.values())):
        return None
    try:
        written = _encoder.encode(call)
        shape.strict_decoder.decode(written)
    except (msgspec.MsgspecError, ValueError):  # UnicodeError, or a number of too many digits
        return None
    return None if len(written) > max_size or _DOUBTFUL.search(written) else written.decode()


def _encode_plain(shape: _Shape, calls: Sequence[Any], max_size: int) -> list[str] | None:
    """Write calls of plain values all at once, and read them back; None: some are not plain, or not right.

    It refuses nothing by itself: who writes each call alone then finds out which one is wrong, and says so.
    """
    if set(map(type, calls)) != {dict}:
        return None
    kinds = set(map(type, chain.from_iterable(map(dict.values, calls))))
    if not kinds <= _PLAIN:
        return None
    try:
        written = _encoder.encode_lines(calls)
        shape.strict_decoder.decode_lines(written)
    except (msgspec.MsgspecError, ValueError):  # UnicodeError, or a number of too many digits
        return None
    if (
        len(written) > max_size
        or b"\\u0000" in written
        or (int in kinds and _LONG_NUMBER in written.translate(_ALL_NUMBERS))
        or (float in kinds and b"null" in written)  # which is how NaN is written
    ):
        return None
    return written.decode().split("\n")[:-1]  # each call ends its line; a line's end within a text is written as \\n


def to_json(value: Any, *, field: str = "payload", max_size: int = validation.MAX_PAYLOAD) -> str:
    """Write a value as portable JSON (:func:`onward.validation.encode_json`), pydantic's models too."""
    try:
        return validation.encode_json(value, field=field, max_size=max_size)
    except PayloadTooLarge:
        raise
    except InvalidValue as refused:
        # Models are few: they bear the second try, so that nothing else has to be looked through for them.
        try:
            plain = msgspec.to_builtins(value, enc_hook=_dump_model)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidValue(refused.field, value, f"must be JSON-able: {error}") from None
        return validation.encode_json(plain, field=field, max_size=max_size)


def nearest(name: str, known: Collection[str]) -> str:
    """Finish a sentence about an unknown name with the one that was probably meant, or with those that there are."""
    if close := difflib.get_close_matches(name, known, n=1):
        return f": did you mean {close[0]!r}?"
    if not known:
        return ": there are none"
    shown = sorted(known)[:10]
    return f": there {'is' if len(known) == 1 else 'are'} {', '.join(shown)}{', …' if len(known) > len(shown) else ''}"


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):  # an object that can be called
        function = type(function).__call__
    return get_type_hints(function, include_extras=True)


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    return hint is JobContext


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _is_readable(hint: Any) -> bool:
    try:
        known = msgspec.inspect.type_info(hint)
    except TypeError:
        return False
    return not isinstance(known, msgspec.inspect.CustomType) or _is_model(known.cls)


def _dump_model(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    kind = type(value).__qualname__
    raise TypeError(f"{kind} cannot be written as JSON; use a dataclass, a msgspec.Struct or a pydantic model")


def _validate_model(kind: type, value: Any) -> Any:
    if _is_model(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined]
    raise TypeError(f"{kind.__qualname__} cannot be read from JSON")
