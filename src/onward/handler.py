"""A task's function as a worker calls it: its options, and its arguments read from a payload."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from onward import validation
from onward.arguments import Arguments
from onward.backoff import Backoff
from onward.context import JobContext
from onward.engine.values import Rate
from onward.errors import InvalidValue
from onward.job import FailedAttempt
from onward.lifecycle import CrashPolicy

Executor = Literal["auto", "thread", "process"]
"""Where a handler runs: ``auto`` is the event loop for ``async def`` and a thread for ``def``."""

UnknownFields = Literal["ignore", "refuse"]
"""What to do with keys of a payload that no argument of the task has."""

RetryRules = Mapping[type[BaseException], Backoff | Literal[False]]
"""How to retry single exception classes: after that backoff, or (False) not at all. The nearest class in the
exception's method resolution order decides, so ``{Exception: False, TimeoutError: Backoff()}`` retries timeouts and
nothing else."""


SuccessHook = Callable[[JobContext, Any], object]
"""Called with the job's context and its result; plain or async."""
FailureHook = Callable[[JobContext, FailedAttempt], object]
"""Called with the job's context and its last error; plain or async."""


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every job of a task. Checked when the task is defined."""

    queue: str = "default"
    """``mail/{org_id}`` gives each organisation a queue of its own."""
    priority: int = 0
    """Higher is more urgent."""
    max_attempts: int | None = None
    """None: the queue's default, else 5."""
    backoff: Backoff | None = None
    """None: the queue's default, else 1 s doubling up to 60 s."""
    retry: RetryRules = {}
    timeout: timedelta | None = None
    """How long one run may take. A thread cannot be stopped: see :attr:`JobContext.is_cancelled`."""
    dedupe: bool = False
    """While a job with the same arguments and organisation waits or runs, a second enqueue adds nothing (H5)."""
    rate: Rate | None = None
    """How often jobs of its queues start, across all workers."""
    concurrency: int | None = None
    """How many jobs of its queues run at once, across all workers."""
    executor: Executor = "auto"
    on_crash: CrashPolicy = "dead_letter"
    """What becomes of a job that has crashed ``max_crashes`` child processes, alone in each."""
    store_result: bool = True
    unknown_fields: UnknownFields | None = None
    """What to do with keys of a payload that no argument has; None: ignore on foreign stores, refuse on others."""
    aliases: Mapping[str, str] = {}
    """The payload's keys for arguments whose names differ: ``{"sender": "from"}``."""
    whole_payload: bool = False
    """Whether the function's one argument is the payload itself, whatever JSON value that is."""
    catch_all: bool = False
    """Whether it also runs jobs of its queue whose names no task has."""
    redact: tuple[str, ...] = ()
    """Keys of the payload and the result whose values are not shown; ``*``: all of both (S6)."""
    on_success: SuccessHook | None = None
    """Called after the job has completed: see :mod:`onward.worker.hooks`."""
    on_failure: FailureHook | None = None
    """Called after the job has failed for good, or become a dead letter."""

    @property
    def has_hooks(self) -> bool:
        """Whether anything is to be called when a job has ended."""
        return self.on_success is not None or self.on_failure is not None

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        validation.check_priority(self.priority)
        if self.max_attempts is not None:
            validation.check_at_least("max_attempts", self.max_attempts, 1)
        if self.backoff is not None and not isinstance(self.backoff, Backoff):
            raise InvalidValue("backoff", self.backoff, "must be a Backoff, such as Backoff.exponential(1, cap=60)")
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidValue("rate", self.rate, 'must be a Rate, or a text such as "600/min"')
        if self.concurrency is not None:
            validation.check_at_least("concurrency", self.concurrency, 1)
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise InvalidValue("timeout", self.timeout, "must be more than 0 seconds, or None for no limit")
        if self.executor not in ("auto", "thread", "process"):
            raise InvalidValue("executor", self.executor, "must be 'auto', 'thread' or 'process'")
        if self.on_crash not in ("dead_letter", "retry", "fail", "hold"):
            raise InvalidValue("on_crash", self.on_crash, "must be 'dead_letter', 'retry', 'fail' or 'hold'")
        if self.unknown_fields not in (None, "ignore", "refuse"):
            raise InvalidValue("unknown_fields", self.unknown_fields, "must be 'ignore' or 'refuse'")
        validation.check_redact(self.redact)
        for field in ("on_success", "on_failure"):
            if (hook := getattr(self, field)) is not None and not callable(hook):
                raise InvalidValue(field, hook, "must be a function of the job's context and its result or error")
        for kind, backoff in self.retry.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidValue("retry", kind, "must have classes of exceptions as keys")
            if backoff is not False and not isinstance(backoff, Backoff):
                raise InvalidValue(f"retry[{kind.__name__}]", backoff, "must be a Backoff, or False for no retry")


class Handler:
    """Calls the function of one task with the arguments of a job."""

    def __init__(self, function: Callable[..., Any], *, name: str, options: TaskOptions) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.is_async = is_async(function)
        self.arguments = Arguments(
            function,
            name=name,
            ignore_unknown=options.unknown_fields == "ignore",
            aliases=options.aliases,
            whole_payload=options.whole_payload,
        )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidValue(f"task {name}", function, "is a generator: a handler returns once, or raises")
        if self.is_async and options.executor != "auto":
            rule = "is for plain functions: an `async def` runs on the event loop"
            raise InvalidValue("executor", options.executor, rule)

    def __repr__(self) -> str:
        """Name it."""
        return f"<Handler {self.name}>"

    def bind(self, payload: str) -> Callable[[JobContext], Any]:
        """Decode a payload and return a call that only needs the context.

        Raises:
            InvalidPayload: it does not fit the function.
        """
        return partial(self.call, self.arguments.decode(payload))

    def call(self, arguments: dict[str, Any], context: JobContext) -> Any:
        """Call the function with decoded arguments, and with the context if it declares one."""
        if (parameter := self.arguments.context) is not None:
            arguments[parameter] = context
        return self.function(**arguments)

    def backoff_for(self, error: BaseException) -> Backoff | UnsetType | None:
        """Return the backoff after an exception; None: do not retry; UNSET: as the job says."""
        rules = self.options.retry
        if rules:
            for kind in type(error).__mro__:
                if kind in rules:
                    return rules[kind] or None
        return UNSET


def is_async(function: Callable[..., Any]) -> bool:
    """Say whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
