"""The public surface is small, and importing it is cheap."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import onward
import onward.limits
import onward.sqlite
import onward.testing
from onward import App, Batch, Flow, JobContext, JobHandle, Task, Tasks
from onward.batches.resources import Batches
from onward.resources import Archive, DeadLetters, Jobs, Queues, Schedules, Workers

NOT_OURS = (
    # of Python's typing and collections
    "Any AsyncGenerator Awaitable Callable Collection Concatenate Coroutine Generator Iterable Literal Mapping None "
    "Sequence Unpack TimeoutError RuntimeError Path SSLContext False True "
    # type variables, and what is returned and not named by users
    "Plugin P R T Self "
    "R_co R1 R2 R3 R4 LoopThread SyncLimiter SyncApp SyncTask SyncJobHandle SyncJobContext SyncJobs SyncDeadLetters "
    "SyncArchive "
    "SyncQueues SyncWorkers SyncSchedules SyncBatch SyncBatches SyncFlow "
    "UnsetType TaskDecorator TaskKeywords Override AsyncTask PlainTask EventStream AnyEvent Event Engine Clock Worker "
    "TickReport "
    # aliases whose members are all public
    "CrashPolicy SuccessHook FailureHook "
    "One Which Parent CountBy JobFields Changes LogLines Reasons RetryRules Executor Queues TaskOptions UnknownFields "
    "MappingProxyType "
    # the resources, reached by their names on an App
    "Jobs DeadLetters Archive Schedules Batches Workers Args Raises "
    # of onward.limits
    "Limit Permits"
)

NAMES = """\
    AlertRule App Backoff Batch BatchInfo BatchNotFound CallNext Cancel Capabilities Changed ClaimLost Connection Cron
    Dependency DoNotRetry EngineNotIncluded EnqueueMiddleware EnqueueStatus Enqueued EventLoopRunning FailedAttempt Flow
    Interval InvalidJob InvalidPayload InvalidValue Job JobCancelled JobContext JobError JobExpired JobFailed JobFilter
    JobHandle JobNotFound JobRef JobStatus Lifespan LogLine Middleware NewJob NotFound OnwardError Page
    PayloadTooLarge QueueInfo QueueNotFound QueueSettings Rate Reason Retention Retry Schedule ScheduleNotFound
    SchemaChanged SchemaTooNew SchemaTooOld Snooze Step StoreBusy StoreCorrupt StoreFull StoreMisconfigured
    StoreReadOnly StoreUnavailable Task TaskNotFound Tasks Unsupported Usage Webhook WorkerInfo WorkerOptions
    WrongIsolation __version__ events
"""
MEMBERS = {
    App: "add_plugin alert "
    "archive batch batches capabilities close configure dead discover enqueue enqueue_many enqueue_middleware events "
    "flow gather include jobs metrics middleware open override queues schedule schedules sync task tasks tick usage "
    "webhook work worker workers",
    Task: "enqueue enqueue_many function handle is_async job jobs name options sync using",
    Tasks: "schedule task tasks",
    JobHandle: "cancel enqueue_status id info is_new ref result sync wait watch",
    JobContext: "attempt complete dependencies id log max_attempts org_id payload queue ref set_progress should_stop "
    "state sync type",
    Batch: "add cancel dependencies flow info jobs name pause resume seal sync wait watch",
    Flow: "add chain handle start sync",
    Jobs: "cancel count delete edit explain get handle iterate list logs replay sync",
    DeadLetters: "count list purge replay sync",
    Archive: "count get list purge sync",
    Queues: "configure get list pause resume sync",
    Schedules: "delete get list pause resume run set sync",
    Batches: "delete get list sync",
    Workers: "list quiet resume stop sync",
    onward.limits.Limiter: "give_up install prune release renew sync take",
}


def test_these_are_the_public_names():
    assert onward.__all__ == NAMES.split()
    assert sorted(onward.__all__) == onward.__all__
    assert onward.testing.__all__ == [
        "ManualClock", "assert_enqueued", "detached_context", "drain", "enqueued", "inline"
    ]  # fmt: skip
    assert onward.limits.__all__ == ["Limit", "Limiter", "Pace", "Permits", "Rate"]
    assert onward.sqlite.__all__ == ["Connection", "connect", "path_of", "prepare"]
    for name in (*onward.__all__, *onward.testing.__all__):
        assert hasattr(onward, name) or hasattr(onward.testing, name)


@pytest.mark.parametrize("kind", MEMBERS, ids=lambda kind: kind.__name__)
def test_these_are_the_public_members(kind: type):
    made = App("sqlite://") if kind is App else kind() if kind is Tasks else kind
    assert " ".join(name for name in dir(made) if not name.startswith("_")) == MEMBERS[kind]


def test_every_value_and_error_that_a_public_signature_names_is_public():
    named = set()
    for kind in MEMBERS:
        for member in (getattr(kind, name, None) for name in dir(kind) if not name.startswith("_")):
            function = member.fget if isinstance(member, property) else member
            text = " ".join(map(str, [*getattr(function, "__annotations__", {}).values(), ""]))
            text += " ".join(re.findall(r"^\s+([A-Z]\w+): ", getattr(function, "__doc__", None) or "", re.MULTILINE))
            named |= set(re.findall(r"\b[A-Z][A-Za-z]+\b", text))
    assert named - set(onward.__all__) <= set(NOT_OURS.split())


def test_importing_onward_loads_no_driver_and_no_worker():
    heavy = ("sqlite3", "psycopg", "redis", "pydantic", "multiprocessing", "typer", "rich", "importlib.metadata")
    script = (
        "import sys, onward\n"
        "app = onward.App.__init__\n"
        f"print(*[name for name in {heavy!r} if name in sys.modules])\n"
        "print(*[name for name in sys.modules if name.startswith(('onward.worker.', 'onward.engines.sqlite'))])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [], ran.stdout


def test_every_public_name_says_what_it_is():
    for name in onward.__all__:
        if callable(thing := getattr(onward, name)) and isinstance(thing, type):
            assert thing.__doc__, name
