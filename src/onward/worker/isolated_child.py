"""A child process that runs one suspect, alone, as a worker would: with its App's own store, middleware and context.

A child is started by *spawn* and imports the App by its name, ``module:attribute``. The worker that started it keeps
the claim and settles it: the child answers how the run ended. Progress, log lines and completions in a transaction of
the handler's own go to the store directly, fenced by the claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import msgspec

from onward.clock import Clock
from onward.context import Middleware
from onward.engine.checked import CheckedEngine
from onward.engine.values import Claim
from onward.errors import OnwardError, StoreUnavailable
from onward.handler import Handler
from onward.lifecycle import Interrupted, Result, SelfCompleted
from onward.worker.processes import CallResponse, JobReport, serve_requests
from onward.worker.remote_error import describe
from onward.worker.runner import Runner

_TEMPORARY_STORE: Final = "sqlite://"
"""The URL of a store that another process cannot open."""

result_decoder: Final = msgspec.json.Decoder(Result | SelfCompleted)


class IsolatedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A run, as it goes to the child."""

    app: str
    """Where the App is: ``module:attribute``."""
    url: str
    worker_id: str
    claim: Claim


class AppCore(Protocol):
    """What is needed of :class:`onward.core.Core`."""

    @property
    def engine(self) -> CheckedEngine: ...  # noqa: D102
    @property
    def is_bound(self) -> bool: ...  # noqa: D102
    @property
    def url(self) -> str: ...  # noqa: D102
    @property
    def clock(self) -> Clock | None: ...  # noqa: D102
    @property
    def middleware(self) -> Sequence[Middleware]: ...  # noqa: D102
    @property
    def handlers(self) -> Mapping[str, Handler]: ...  # noqa: D102
    @property
    def catch_all(self) -> Mapping[str, Handler]: ...  # noqa: D102
    @property
    def max_payload(self) -> int: ...  # noqa: D102
    def bind(self, url: str) -> object: ...  # noqa: D102
    def alive(self) -> AbstractAsyncContextManager[Any]: ...  # noqa: D102
    async def open(self) -> None: ...  # noqa: D102
    async def close(self) -> None: ...  # noqa: D102


class AppNotFound(OnwardError):
    """The child process cannot import the App that the worker works for."""


def locate_app(engine: CheckedEngine, made_by: tuple[str, str] | None = None) -> tuple[str, str] | None:
    """Find the module and attribute that hold the App on an engine, and its URL; None: no other process can open it.

    ``made_by`` is the factory that made the App, ``shop:create_app()``, and the URL of its store.
    """
    if made_by is not None:
        return made_by if made_by[1] != _TEMPORARY_STORE else None
    app_class = getattr(sys.modules.get("onward.app"), "App", None)
    if app_class is None:
        return None
    found: list[tuple[str, str]] = []
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            # By its type: to ask a proxy object for its class, or for an attribute, may run code of others.
            if not issubclass(type(value), app_class):
                continue
            core = _core_of(value)
            if core.is_bound and core.engine is engine:  # to ask for the engine would resolve the URL of others
                found.append((f"{name}:{attribute}", core.url))
    # A program's main module has a name of its own in the child, and is executed there once more.
    found.sort(key=lambda place: place[0].startswith(("__main__:", "__mp_main__:")))
    return found[0] if found and found[0][1] != _TEMPORARY_STORE else None


def main(pipe: Connection) -> None:
    """Run what the worker asks for."""
    serve_requests(pipe, _execute)


def _execute(encoded: bytes, _send: Callable[[JobReport], None]) -> CallResponse:
    request = msgspec.json.decode(encoded, type=IsolatedRequest)
    try:
        core = _load(request)
        # Not closed: that would wait for a thread which its run has given up on. The process ends with this run.
        result = asyncio.Runner().run(_run(core, request))
        return CallResponse(result=msgspec.json.encode(result).decode())
    except BaseException as error:  # noqa: BLE001 - the worker is told whatever it was
        return CallResponse(error=describe(error))
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()


def _load(request: IsolatedRequest) -> AppCore:
    module, _, attribute = request.app.partition(":")
    found: Any = getattr(importlib.import_module(module), attribute.removesuffix("()"), None)
    app = found() if attribute.endswith("()") and found is not None else found
    message = f"{request.app} is not the same App when another process imports it: make it at the top level"
    if app is None:
        raise AppNotFound(message)
    core = _core_of(app)
    if not core.is_bound:
        core.bind(request.url)
    if core.url != request.url:
        raise AppNotFound(message)
    return core


def _core_of(app: Any) -> AppCore:
    core: AppCore = app._core  # noqa: SLF001 - a worker knows nothing above it but this
    return core


async def _run(core: AppCore, request: IsolatedRequest) -> Result | SelfCompleted:
    try:
        await core.open()
    except StoreUnavailable:
        return Interrupted()
    try:
        async with core.alive() as state:
            runner = Runner(
                handlers=core.handlers,
                catch_all=core.catch_all,
                engine=core.engine,
                worker_id=request.worker_id,
                middleware=core.middleware,
                clock=core.clock,
                max_result=core.max_payload,
                state=state,
            )
            return await runner.run(request.claim)
    finally:
        with contextlib.suppress(StoreUnavailable):
            await core.close()
