"""Messages between a process and its write process: requests one way, responses the other.

A message has a header (its length and the number of its request) and a body. Most bodies are pickled: both ends are one
program, and the socket between them has no name that another program could open. An exchange is the most frequent
request and carries hundreds of jobs, so it has an encoding of its own that takes a tenth of the time.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from onward.engine.values import Claim, ClaimRequest, Exchange, Exchanged, Settlement
from onward.engines.sqlite import settle
from onward.engines.sqlite.request_queue import Request
from onward.errors import StoreUnavailable
from onward.job import JobRef
from onward.lifecycle import Complete

_HEADER: Final = struct.Struct("<II")
HEADER_SIZE: Final = _HEADER.size
MAX_NUMBER: Final = 0xFFFF_FFFF
"""The largest number of a request; numbers begin again after it."""

Response = tuple[Any, BaseException | None, bool]
"""A result or an error, and whether work has become ready."""

_EXCHANGE: Final = b"x"
_PICKLED: Final = b"p"
_RESULT, _EXCHANGED, _ERROR = b"r", b"x", b"e"
_WAKES, _DOES_NOT_WAKE = b"w", b"-"


class _EncodedExchange(msgspec.Struct, array_like=True):
    """An exchange, without what settling does not need: payloads, above all."""

    completed: list[tuple[int, int, str | None, str]]
    """Sequence number, claim number, result, queue."""
    others: bytes
    """Settlements with other outcomes, pickled."""
    started: list[tuple[int, int]]
    request: ClaimRequest | None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_exchange: Final = msgspec.msgpack.Decoder(_EncodedExchange).decode
_decode_exchanged: Final = msgspec.msgpack.Decoder(Exchanged).decode


class Buffer:
    """Bytes of a stream, and the messages that are complete in them."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Add bytes, and yield the number and the body of each message that is complete with them."""
        self._bytes += data
        begin, available = 0, len(self._bytes)
        with memoryview(self._bytes) as view:
            while available - begin >= HEADER_SIZE:
                length, number = _HEADER.unpack_from(view, begin)
                end = begin + HEADER_SIZE + length
                if end > available:
                    break
                with view[begin + HEADER_SIZE : end] as body:
                    yield number, body
                begin = end
        del self._bytes[:begin]


def message(number: int, body: bytes) -> bytes:
    """Put the header before a body."""
    return _HEADER.pack(len(body), number) + body


def read_header(header: bytes) -> int:
    """Return the length of the body that follows."""
    length: int = _HEADER.unpack(header)[0]
    return length


def encode_request(request: Request[Any]) -> bytes:
    """Write a request."""
    if request.work is settle.exchange:
        return _EXCHANGE + _encode(_encoded(request.args[0]))
    fields = (request.work, request.args, request.coalesced_work, request.item, request.single_statement)
    return _PICKLED + pickle.dumps((fields, request.is_urgent), pickle.HIGHEST_PROTOCOL)


def decode_request(body: memoryview) -> Request[Any]:
    """Read a request."""
    if body[0] == _EXCHANGE[0]:
        return Request(settle.exchange, (_decoded(_decode_exchange(body[1:])),))
    (work, args, coalesced_work, item, single_statement), is_urgent = pickle.loads(body[1:])  # noqa: S301 - from our own process
    return Request(work, args, coalesced_work, item, single_statement, is_urgent=is_urgent)


def encode_response(request: Request[Any], *, wakes_workers: bool) -> bytes:
    """Write what came of a request."""
    wakes = _WAKES if wakes_workers else _DOES_NOT_WAKE
    if request.error is not None:
        return wakes + _ERROR + _pickled_error(request.error)
    if request.work is settle.exchange:
        return wakes + _EXCHANGED + _encode(request.result)
    try:
        return wakes + _RESULT + pickle.dumps(request.result, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - the caller waits for an answer
        return wakes + _ERROR + _pickled_error(error)


def decode_response(body: memoryview) -> Response:
    """Read a response."""
    wakes, kind, rest = body[0] == _WAKES[0], body[1], body[2:]
    if kind == _EXCHANGED[0]:
        return _decode_exchanged(rest), None, wakes
    value = pickle.loads(rest)  # noqa: S301 - from our own process
    return (None, value, wakes) if kind == _ERROR[0] else (value, None, wakes)


def _encoded(exchange: Exchange) -> _EncodedExchange:
    completed: list[Any] = []
    others: list[Settlement] = []
    for settlement in exchange.settlements:
        outcome = settlement.outcome
        if isinstance(outcome, Complete):
            claim = settlement.claim
            completed.append((*claim.token, outcome.result, claim.ref.queue))
        else:
            others.append(settlement)
    started: list[Any] = [claim.token for claim in exchange.starts]
    return _EncodedExchange(completed, pickle.dumps(others) if others else b"", started, exchange.request)


def _decoded(encoded: _EncodedExchange) -> Exchange:
    settlements = [
        Settlement(_bare_claim((seq, claim_no), queue), Complete(result))
        for seq, claim_no, result, queue in encoded.completed
    ]
    if encoded.others:
        settlements += pickle.loads(encoded.others)  # noqa: S301 - from our own process
    starts = tuple(_bare_claim(token, "") for token in encoded.started)
    return Exchange(settlements=tuple(settlements), starts=starts, request=encoded.request)


def _bare_claim(token: tuple[int, int], queue: str) -> Claim:
    """Make a claim of what a settlement and a start need of it."""
    return Claim(ref=JobRef(queue, ""), token=token, type="", payload="", attempts=1, started=True)


def _pickled_error(error: BaseException) -> bytes:
    try:
        encoded = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(encoded)  # noqa: S301 - what we have just written
    except Exception:  # noqa: BLE001 - an exception may hold anything; the caller gets its text at least
        return pickle.dumps(StoreUnavailable(f"{type(error).__name__}: {error}"), pickle.HIGHEST_PROTOCOL)
    return encoded
