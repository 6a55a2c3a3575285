"""Exceptions of a child process, as text on the way and as stand-ins in the worker.

An exception cannot be rebuilt from its arguments in general: constructors differ, and attributes need not be JSON. So
the child sends the names of its classes, its message and its traceback as text. The worker raises a stand-in: an
instance of a subclass of the nearest class that it knows, made without calling the constructor. Retry rules, ``except``
in a middleware and ``isinstance`` treat it as the original.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from onward.control_flow import Cancel, DoNotRetry, Later, Retry

_MAX_MESSAGE_LENGTH: Final = 8_000
_MAX_TRACEBACK_LENGTH: Final = 32_000
_MAX_GROUP_SIZE: Final = 50
_MAX_GROUP_DEPTH: Final = 10
"""Bounds of what goes through the pipe: more than the store keeps."""
_HEAP_TYPE: Final = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: a class made by Python code."""


class RemoteError(msgspec.Struct, frozen=True, kw_only=True):
    """An exception, as text."""

    classes: list[tuple[str, str]]
    """Module and qualified name of its class and of the classes that it inherits from, nearest first."""
    message: str
    traceback: str
    delay: timedelta | None = None
    until: datetime | None = None
    """Of a Snooze or a Retry."""
    cause: RemoteError | None = None
    """Of a Retry: the error that it was raised from."""
    exceptions: list[RemoteError] = []
    """Of an exception group."""


class StandIn:
    """What the stand-ins have in common. Not an exception by itself."""

    remote: RemoteError

    def __str__(self) -> str:
        """Return the original's message."""
        return self.remote.message


class UnknownRemoteError(Exception):
    """Base of the stand-in for an exception that the worker has no class for, or must not raise."""


def describe(error: BaseException, *, depth: int = 0) -> RemoteError:
    """Describe an exception as text. Never raises, whatever the exception's own methods do."""
    later = error if isinstance(error, Later) else None
    cause = error.__cause__ if isinstance(error, Retry) else None
    members: list[RemoteError] = []
    if isinstance(error, BaseExceptionGroup) and depth < _MAX_GROUP_DEPTH:
        members = [describe(member, depth=depth + 1) for member in error.exceptions[:_MAX_GROUP_SIZE]]
    return RemoteError(
        classes=[(_encodable(kind.__module__), _encodable(kind.__qualname__)) for kind in type(error).__mro__],
        message=_message(error)[:_MAX_MESSAGE_LENGTH],
        traceback=_traceback(error)[-_MAX_TRACEBACK_LENGTH:],
        delay=None if later is None else later.delay,
        until=None if later is None else later.until,
        cause=None if cause is None or depth >= _MAX_GROUP_DEPTH else describe(cause, depth=depth + 1),
        exceptions=members,
    )


def rebuild(remote: RemoteError) -> BaseException:
    """Make the stand-in for an exception of a child."""
    known = (_find_class(module, name) for module, name in remote.classes)
    for kind in known:
        if kind is None or not issubclass(kind, (Exception, SystemExit)):
            continue
        # A class may refuse to be inherited from: then the next one it inherits from does.
        with contextlib.suppress(Exception):
            return _stand_in(kind, remote)
    return _stand_in(UnknownRemoteError, remote)


def _stand_in(kind: type[BaseException], remote: RemoteError) -> BaseException:
    _, name = remote.classes[0]
    made = type(name.rpartition(".")[2], (StandIn, kind), {"__qualname__": name, "__module__": kind.__module__})
    builtin = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    arguments: tuple[Any, ...] = (remote.message,)
    if issubclass(kind, BaseExceptionGroup):
        arguments = (remote.message, [rebuild(member) for member in remote.exceptions])
    # The constructor of a class written in Python may ask for anything; that of the builtin class may be called.
    error: Any = builtin.__new__(made, *arguments)
    error.remote = remote
    error.args = arguments
    if isinstance(error, Later):
        error.delay, error.until = remote.delay, remote.until
    if isinstance(error, Retry | Cancel | DoNotRetry):
        error.reason = remote.message
    if remote.cause is not None:
        error.__cause__ = rebuild(remote.cause)
    error.add_note(f"In the child process:\n{remote.traceback}")
    return error  # type: ignore[no-any-return]


def _find_class(module: str, path: str) -> type[BaseException] | None:
    # The child runs the worker's main module under another name.
    found: object = sys.modules.get("__main__" if module == "__mp_main__" else module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _message(error: BaseException) -> str:
    try:
        return _encodable(str(error))
    except Exception:  # noqa: BLE001 - a faulty __str__ must not hide the failure
        return "its message cannot be shown"


def _traceback(error: BaseException) -> str:
    try:
        return _encodable("".join(traceback.format_exception(error)))
    except Exception:  # noqa: BLE001 - likewise
        return "its traceback cannot be shown"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON in UTF-8 cannot carry."""
    return text.encode("utf-8", "replace").decode()
