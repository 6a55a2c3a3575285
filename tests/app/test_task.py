"""A task: a function that is still a function, options checked when it is defined, jobs made as they say."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onward import App, Backoff, InvalidPayload, InvalidValue, JobContext, JobHandle, NewJob, TaskNotFound
from onward.job import EnqueueStatus
from onward.keys import dedupe_key
from onward.task import AsyncTask, PlainTask, handler_of
from onward.testing import detached_context


def test_a_task_is_still_its_function(app: App):
    @app.task
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert isinstance(add, PlainTask)
    assert (add(1), add(1, 2), add(a=1, b=5)) == (2, 3, 6)
    assert (add.__name__, add.__doc__, add.name, add.is_async) == ("add", "Add.", "add", False)
    assert app.tasks == {"add": add}


async def test_an_async_task_is_awaited_like_its_function(app: App):
    @app.task(name="sum")
    async def add(a: int, b: int) -> int:
        return a + b

    assert isinstance(add, AsyncTask)
    assert await add(1, 2) == 3
    assert (add.name, add.is_async) == ("sum", True)


def test_called_by_hand_a_task_is_given_a_context_that_belongs_to_no_job(app: App):
    @app.task
    def report(context: JobContext, at: int) -> tuple[int, int]:
        context.set_progress(at)
        context.log("by hand")
        return at, context.attempt

    assert report(7) == (7, 1)
    assert report(at=8) == (8, 1)
    assert report.function(detached_context(), 9) == (9, 1)


def test_an_object_that_can_be_called_can_be_a_task(app: App):
    class Resize:
        async def __call__(self, path: str) -> str:
            return path

    task = app.task(name="resize")(Resize())
    assert task.is_async
    assert task.job("a").payload == '{"path":"a"}'


def test_a_decorated_function_keeps_its_arguments(app: App):
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @app.task
    @logged
    def send(to: str) -> str:
        return to

    with pytest.raises(InvalidPayload, match=r"payload\.to"):
        send.job(3)
    assert handler_of(send).bind('{"to":"a"}')(detached_context()) == "a"


def test_a_part_of_a_function_can_be_a_task(app: App):
    def send(to: str, subject: str) -> str:
        return f"{subject}: {to}"

    task = app.task(name="greet")(functools.partial(send, subject="Hello"))
    with pytest.raises(InvalidPayload, match=r"payload\.to: Expected `str`"):
        task.job(3)
    assert handler_of(task).bind('{"to":"a"}')(detached_context()) == "Hello: a"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queue": "Mail!"}, "queue"),
        ({"queue": "mail/{user}"}, "queue"),
        ({"queue": "mail/{org_id"}, "queue"),
        ({"priority": -1}, "priority"),
        ({"priority": 1_000_001}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"backoff": 5}, "backoff"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"retry": {"ValueError": None}}, "retry"),
        ({"retry": {ValueError: 5}}, "retry[ValueError]"),
        ({"executor": "rocket"}, "executor"),
        ({"name": "t" * 256}, "name"),
        ({"executor": "thread"}, "executor"),
    ],
)
def test_options_are_checked_when_the_task_is_defined(app: App, options: dict[str, Any], field: str):  # B3
    with pytest.raises(InvalidValue) as refusal:

        @app.task(**options)
        async def handler() -> None: ...

    assert refusal.value.field == field
    assert not app.tasks


def test_two_tasks_cannot_share_a_name(app: App):
    @app.task
    def send() -> None: ...

    with pytest.raises(InvalidValue, match=r"name = 'send': is taken by .*send: give one of them another"):

        @app.task(name="send")
        def post() -> None: ...


def test_a_generator_is_no_handler(app: App):
    with pytest.raises(InvalidValue, match="is a generator"):

        @app.task
        async def pages():
            yield 1


def test_an_unknown_task_is_answered_with_the_nearest(app: App):
    @app.task
    def send_mail() -> None: ...

    assert app._core.find_task("send_mail") is send_mail
    with pytest.raises(TaskNotFound, match="did you mean 'send_mail'"):
        app._core.find_task("send_male")


def test_a_job_is_as_the_task_says(app: App):
    backoff = Backoff.fixed(5)

    @app.task(queue="mail", priority=3, max_attempts=2, backoff=backoff)
    def send(to: str) -> None: ...

    assert send.job("a") == NewJob(
        type="send", queue="mail", priority=3, max_attempts=2, backoff=backoff, payload='{"to":"a"}'
    )


def test_using_changes_one_job_and_not_the_task(app: App):
    @app.task(queue="mail", priority=3, max_attempts=2)
    def send(to: str, queue: str = "an argument") -> None: ...

    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    urgent = send.using(priority=9, delay=90, max_attempts=7, backoff=Backoff.fixed(1), start_by=noon)
    keyed = urgent.using(idempotency_key="order-7", org_id="acme", queue="mail/{org_id}", delay=timedelta(hours=1))
    assert urgent.job("a") == NewJob(
        type="send",
        queue="mail",
        priority=9,
        delay=timedelta(seconds=90),
        max_attempts=7,
        backoff=Backoff.fixed(1),
        start_by=noon,
        payload='{"to":"a"}',
    )
    made = keyed.job("a", queue="b")
    assert (made.idempotency_key, made.org_id, made.queue) == ("order-7", "acme", "mail/acme")
    assert (made.delay, made.priority, made.payload) == (timedelta(hours=1), 9, '{"to":"a","queue":"b"}')
    assert send.using(run_at=noon).job("a").run_at == noon
    assert keyed.using(delay=None, idempotency_key=None, connection=None).job("a").idempotency_key is None
    assert send.job("a") == NewJob(type="send", queue="mail", priority=3, max_attempts=2, payload='{"to":"a"}')


def test_an_organisation_names_its_own_queue(app: App):  # H9
    @app.task(queue="mail/{org_id}")
    def send() -> None: ...

    assert send.using(org_id="acme").job().queue == "mail/acme"
    with pytest.raises(InvalidValue, match=r"^org_id = None: is needed to name the queue mail/\{org_id\}"):
        send.job()
    for hostile in ("acme/other", "Acme", "..*", ""):
        with pytest.raises(InvalidValue) as refusal:
            send.using(org_id=hostile).job()
        assert refusal.value.field == "org_id"


async def test_a_bad_option_of_one_job_is_refused_by_name_before_anything_is_written(app: App):  # B3
    @app.task
    def send() -> None: ...

    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - what is refused
    for using, field in (
        ({"priority": -1}, "priority"),
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": 5, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "run_at"),
        ({"run_at": naive}, "run_at"),
        ({"start_by": naive}, "start_by"),
        ({"queue": "A B"}, "queue"),
        ({"org_id": ""}, "org_id"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"max_attempts": 0}, "max_attempts"),
    ):
        with pytest.raises(InvalidValue) as refusal:
            await send.using(**using).enqueue()
        assert refusal.value.field == field
    assert await app.jobs.count() == {}


async def test_dedupe_gives_back_the_job_that_waits(app: App):  # H5
    @app.task(dedupe=True)
    def index(document: dict[str, int]) -> None: ...

    first = await index.using(org_id="acme").enqueue({"b": 1, "a": 2})
    again = await index.using(org_id="acme").enqueue({"a": 2, "b": 1})
    other = await index.using(org_id="else").enqueue({"a": 2, "b": 1})
    assert first.is_new
    assert (again.id, again.is_new) == (first.id, False)
    assert other.is_new
    assert (await first.info()).dedupe_key == dedupe_key("index", "acme", {"document": {"a": 2, "b": 1}})
    assert (await app.tick()).completed == 2
    assert (await index.using(org_id="acme").enqueue({"b": 1, "a": 2})).is_new


async def test_dedupe_may_be_asked_for_one_job_by_a_key_of_its_own(app: App):  # H5
    @app.task
    def index(document: int) -> None: ...

    first = await index.using(dedupe_key="nightly").enqueue(1)
    assert (await index.using(dedupe_key="nightly").enqueue(2)).id == first.id
    assert (await index.using(dedupe=True).enqueue(2)).is_new
    assert not (await index.using(dedupe=True).enqueue(2)).is_new
    assert (await index.enqueue(2)).is_new
    handles: list[JobHandle[None]] = await index.using(dedupe=True).enqueue_many([(2,), (3,), {"document": 3}])
    assert [handle.is_new for handle in handles] == [False, True, False]


async def test_an_idempotency_key_gives_back_the_same_job_of_that_task(app: App):  # O4
    @app.task
    def charge(order: int) -> None: ...

    @app.task
    def refund(order: int) -> None: ...

    first = await charge.using(idempotency_key="order-7").enqueue(7)
    await app.tick()
    again = await charge.using(idempotency_key="order-7").enqueue(7)
    assert (again.id, again.is_new) == (first.id, False)
    assert (await refund.using(idempotency_key="order-7").enqueue(7)).is_new


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionResetError(), Backoff.fixed(5)),
        (OSError(), None),
        (TimeoutError(), Backoff.fixed(9)),
        (KeyError(), "as the job says"),
    ],
)
def test_the_nearest_class_in_the_family_decides_about_a_retry(app: App, error: Exception, expected: Any):
    @app.task(retry={OSError: False, ConnectionError: Backoff.fixed(5), TimeoutError: Backoff.fixed(9)})
    def call() -> None: ...

    said = handler_of(call).backoff_for(error)
    assert (said if said is None or isinstance(said, Backoff) else "as the job says") == expected


async def test_a_throttle_compares_arguments_and_debounce_the_task(app: App):
    @app.task
    async def index(document: int) -> None: ...

    throttled = index.using(throttle=60)
    assert throttled.job(document=1).dedupe_key != throttled.job(document=2).dedupe_key
    assert throttled.job(document=1).throttle == timedelta(seconds=60)
    debounced = index.using(debounce=5)
    assert debounced.job(document=1).dedupe_key == debounced.job(document=2).dedupe_key == "index::global"
    assert debounced.using(org_id="acme").job(document=1).dedupe_key == "index::acme"
    assert (
        debounced.using(dedupe=True).job(document=1).dedupe_key
        != debounced.using(dedupe=True).job(document=2).dedupe_key
    )
    assert index.using(throttle=60, dedupe_key="mine").job(document=1).dedupe_key == "mine"


async def test_an_enqueue_says_that_a_waiting_job_was_replaced(app: App):
    @app.task
    async def index(document: int) -> None: ...

    first = await index.using(debounce=5).enqueue(document=1)
    last = await index.using(debounce=5).enqueue(document=2)
    assert (last.id, last.enqueue_status, last.is_new) == (first.id, EnqueueStatus.REPLACED, False)
    assert (await last.info()).payload == {"document": 2}
