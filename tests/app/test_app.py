"""The App: opening, enqueueing, and the faces by which people look and press buttons."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onward import (
    App,
    Backoff,
    InvalidValue,
    JobFilter,
    JobNotFound,
    JobRef,
    JobStatus,
    PayloadTooLarge,
    QueueNotFound,
    Rate,
    Unsupported,
)
from onward.clock import ManualClock
from onward.config import url_from
from onward.engine.capabilities import Capabilities, Feature, absent
from onward.engine.checked import Observation
from onward.engine.values import WorkerInfo
from onward.engines.sqlite.engine import CAPABILITIES, SQLiteEngine
from onward.engines.urls import open_engine
from onward.job import NewJob

# Opening


async def test_the_first_enqueue_opens_the_store(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def send() -> None: ...

    await send.enqueue()
    assert await app.jobs.count() == {"pending": 1}
    await app.close()
    await app.close()


async def test_every_face_opens_the_store(tmp_path: Path):
    for number, look in enumerate(
        [
            lambda app: app.jobs.count(),
            lambda app: app.dead.count(),
            lambda app: app.queues.list(),
            lambda app: app.workers.list(),
            lambda app: app.tick(),
        ]
    ):
        async with App(f"sqlite:///{tmp_path}/{number}.db") as app:
            await app.close()
            assert await look(app) is not None


def test_plain_code_needs_no_event_loop(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def send(to: str) -> None: ...

    first = send.sync.enqueue("a")
    more = send.sync.enqueue_many([{"to": "b"}, ("c",)])
    others = app.sync.enqueue_many([send.job("d")])
    assert len({handle.id for handle in (first, *more, *others)}) == 4
    assert asyncio.run(app.jobs.count()) == {"pending": 4}
    asyncio.run(app.close())


def test_threads_may_open_one_app_at_once(tmp_path: Path):
    app = App(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def send() -> None: ...

    threads = [threading.Thread(target=send.sync.enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asyncio.run(app.jobs.count()) == {"pending": 8}
    asyncio.run(app.close())


# Where the store is


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("jobs.db", "must be a URL such as sqlite:///jobs.db"),
        ("sqlite://jobs.db", "must be sqlite:///file.db"),
        ("sqlite://me:swordfish@host/jobs.db", "must be sqlite:///file.db"),
        ("sqlite:///jobs/?key=swordfish", "must be sqlite:///file.db"),
        ("host=db password=swordfish", "must be a URL such as sqlite:///jobs.db"),
        ("sqlite:///:memory:", "jobs in memory would be lost"),
        ("sqlite:///jobs/", "must be sqlite:///file.db"),
        ("sqlite:///jobs.db?journal=off", "is no setting of SQLite"),
        ("sqlite:///jobs.db?synchronous=off", "must be 'full' or 'normal'"),
        ("sqlight:///jobs.db", "did you mean sqlite://?"),
        ("mysql://root:swordfish@host/db", "names no engine of ours: there are sqlite://, postgresql://, redis://, "),
        ("mysql://root:swordfish@host/db", "pgboss+postgresql://, pgmq+postgresql://"),
    ],
)
def test_a_url_that_names_nothing_is_refused_and_shows_no_password(url, says):
    with pytest.raises(InvalidValue) as refusal:
        open_engine(url)
    assert says in str(refusal.value)
    assert "swordfish" not in str(refusal.value)


@pytest.mark.parametrize("number", ["9" * 5000, "²", "١", "-1", ""])  # noqa: RUF001
@pytest.mark.parametrize("setting", ["sqlite://?max_events=", "postgresql://h/d?query_timeout=", "redis://h?metrics="])
def test_a_setting_that_is_no_number_or_one_of_too_many_digits_is_refused(setting: str, number: str):  # B3
    with pytest.raises(InvalidValue):
        open_engine(f"{setting}{number}")


@pytest.mark.parametrize("option", ["delay", "priority", "max_attempts", "throttle", "debounce", "queue", "org_id"])
async def test_a_number_of_too_many_digits_is_refused_by_its_field(app: App, option: str):  # B3, B4
    @app.task
    async def count(n: int) -> None: ...

    using: dict[str, Any] = {option: 10**5000}
    with pytest.raises(InvalidValue) as refusal:
        await count.using(**using).enqueue(n=1)
    assert refusal.value.field == option
    for arguments in ({"n": 10**5000}, {"n": -(10**5000)}):
        with pytest.raises(InvalidValue) as refusal:
            await count.enqueue(**arguments)
        assert refusal.value.field == "payload.n"
    assert await app.jobs.count() == {}


def test_a_sqlite_url_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def path_of(url: str) -> Path:
        engine = open_engine(url)
        assert isinstance(engine, SQLiteEngine)
        return engine.database.path

    monkeypatch.chdir(tmp_path)
    assert path_of("sqlite:///jobs.db") == tmp_path / "jobs.db"
    assert path_of(f"sqlite:///{tmp_path}/a%20b.db") == tmp_path / "a b.db"
    assert path_of("SQLite:///jobs.db?synchronous=normal") == tmp_path / "jobs.db"


def test_without_a_url_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("ONWARD_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidValue, match="or set ONWARD_URL"):
        App().capabilities  # noqa: B018 - the use that resolves the URL
    monkeypatch.setenv("ONWARD_URL", f"sqlite:///{tmp_path}/jobs.db")
    assert App()._core.engine.describe()["path"] == f"{tmp_path}/jobs.db"
    assert url_from({"ONWARD_URL": " sqlite:// "}) == "sqlite://"


def test_settings_that_cannot_be_kept_are_refused():
    for settings, field in (
        ({"max_payload": 0}, "max_payload"),
        ({"lease": 0.1}, "lease"),
        ({"max_crashes": 0}, "max_crashes"),
    ):
        with pytest.raises(InvalidValue) as refusal:
            App("sqlite://", **settings)
        assert refusal.value.field == field


def test_an_engine_made_by_hand_takes_the_place_of_a_url():
    engine = SQLiteEngine()
    assert App(engine=engine)._core.engine.inner is engine
    with pytest.raises(InvalidValue, match="not both"):
        App("sqlite://", engine=engine)


# Enqueueing


async def test_many_jobs_are_one_statement_all_or_none(app: App):
    verbs: list[Observation] = []
    app._core.engine.observer = verbs.append

    @app.task
    async def send(to: str) -> str:
        return to

    @app.task
    async def other() -> None: ...

    handles = await send.enqueue_many([{"to": str(number)} for number in range(100)])
    assert [verb.count for verb in verbs if verb.verb == "enqueue"] == [100]
    mixed = await app.enqueue_many([send.job("x"), other.job()])
    assert await app.jobs.count(by="type") == {"send": 101, "other": 1}
    with pytest.raises(InvalidValue):
        await app.enqueue_many([other.job(), NewJob(type="other", priority=-1)])
    with pytest.raises(InvalidValue):
        await send.enqueue_many([("a",), (3,)])
    assert await app.jobs.count(by="type") == {"send": 101, "other": 1}
    await app.tick(200)
    assert await handles[42].result() == "42"
    assert [await handle.result() for handle in mixed] == ["x", None]


async def test_nothing_may_be_enqueued_at_once(app: App):
    assert await app.enqueue_many([]) == []


async def test_concurrent_callers_have_each_their_own_answer(app: App):  # X3
    @app.task
    async def send(to: str) -> str:
        return to

    async def call(number: int) -> Any:
        if number % 10 == 3:
            return await send.using(priority=-1).enqueue(str(number))
        return await send.enqueue(str(number))

    async with app:
        calls = [asyncio.create_task(call(number)) for number in range(50)]
        await asyncio.sleep(0)
        for number in range(50):
            if number % 10 == 7:
                calls[number].cancel()
        answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        for number, answer in enumerate(answers):
            if number % 10 == 3:
                assert isinstance(answer, InvalidValue)
            elif number % 10 == 7:
                assert isinstance(answer, asyncio.CancelledError)
            else:
                assert (await answer.info()).payload == {"to": str(number)}


async def test_a_job_commits_or_vanishes_with_the_caller_s_transaction(tmp_path: Path):  # X4
    path = tmp_path / "jobs.db"
    async with App(f"sqlite:///{path}") as app:

        @app.task
        async def send(to: str) -> None: ...

        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("create table orders (id)")
        for end, expected in (("rollback", 0), ("commit", 3)):
            connection.execute("begin immediate")
            connection.execute("insert into orders values (1)")
            await send.using(connection=connection).enqueue("a")
            await send.using(connection=connection).enqueue("b")
            await app.enqueue_many([send.job("c")], connection=connection)
            assert await app.jobs.count() == {}
            connection.execute(end)
            assert sum((await app.jobs.count()).values()) == expected
        with pytest.raises(InvalidValue, match="belongs to the enqueue"):
            send.using(connection=connection).job("d")
        connection.close()


async def test_the_limit_of_a_payload_can_be_set():  # B4
    async with App("sqlite://", max_payload=2000) as app:

        @app.task
        async def send(text: str) -> str:
            return text * 2

        with pytest.raises(PayloadTooLarge):
            await send.enqueue("x" * 3000)
        handle = await send.enqueue("x" * 1500)
        assert (await app.tick()).failed == 1
        assert (await handle.info()).last_error == (
            "ResultTooLarge: its result of 3,002 bytes exceeds the limit of 2,000: store it elsewhere"
        )


class Lesser(SQLiteEngine):
    """An engine that can do less."""

    @property
    def capabilities(self) -> Capabilities:
        features: Mapping[Feature, Any] = {
            **CAPABILITIES.features,
            **dict.fromkeys(
                (Feature.PRIORITY, Feature.TRANSACTIONS, Feature.PROGRESS, Feature.LEADER),
                absent("this store is a lesser one"),
            ),
        }
        return Capabilities(
            engine="Lesser", features=features, status_aliases={JobStatus.DEAD_LETTER: JobStatus.FAILED}
        )


async def test_what_an_engine_cannot_do_is_refused_before_anything_is_written():  # X1
    async with App(engine=Lesser()) as app:

        @app.task
        async def send(context: Any = None) -> None: ...

        assert not app.capabilities.has(Feature.PRIORITY)
        with pytest.raises(Unsupported, match="Lesser does not offer priority: this store is a lesser one"):
            await send.using(priority=1).enqueue()
        with pytest.raises(Unsupported, match="transaction"):
            await send.using(connection=sqlite3.connect(":memory:")).enqueue()
        assert await app.jobs.count() == {}


# Faces


async def test_a_job_can_be_found_by_any_of_its_names(app: App):
    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    handle = await send.enqueue("a")
    job = await app.jobs.get(handle)
    for name in (handle.id, handle.ref, job):
        assert (await app.jobs.get(name)).payload == {"to": "a"}
    with pytest.raises(JobNotFound, match="job mail:nowhere not found"):
        await app.jobs.get(JobRef("mail", "nowhere"))


async def test_jobs_are_listed_page_by_page_and_counted(app: App):
    @app.task(queue="mail/{org_id}")
    async def send(to: int) -> None: ...

    for org in ("acme", "else"):
        await send.using(org_id=org).enqueue_many([(number,) for number in range(3)])
    page = await app.jobs.list(JobFilter(org_id="acme"), limit=2, newest_first=False)
    rest = await app.jobs.list(JobFilter(org_id="acme"), limit=2, newest_first=False, cursor=page.next_cursor)
    assert [job.payload["to"] for job in (*page.items, *rest.items)] == [0, 1, 2]
    assert rest.next_cursor is None
    assert await app.jobs.count(by="org_id") == {"acme": 3, "else": 3}
    assert await app.jobs.count(JobFilter(queues=("mail/*",)), by="queue") == {"mail/acme": 3, "mail/else": 3}
    with pytest.raises(InvalidValue, match="must be one of status, queue, type, org_id"):
        await app.jobs.count(by="colour")  # type: ignore[arg-type]


async def test_people_can_cancel_replay_edit_and_delete(app: App, clock: ManualClock):
    @app.task
    async def send(to: str) -> str:
        return to

    first = await send.enqueue("a")
    assert [changed.ref for changed in await app.jobs.cancel(first, reason="not needed")] == [first.ref]
    assert await app.jobs.cancel(first) == []
    assert (await first.info()).last_error == "not needed"
    assert [changed.before for changed in await app.jobs.replay(first.id)] == [JobStatus.CANCELLED]
    edited = await app.jobs.edit(first, priority=5, payload={"to": "b"}, max_attempts=9)
    assert (edited.priority, edited.payload, edited.max_attempts) == (5, {"to": "b"}, 9)
    delayed = await send.using(delay=60).enqueue("c")
    later = clock.now() + timedelta(hours=1)
    assert (await app.jobs.edit(delayed.id, run_at=later)).next_run_at == later
    await app.tick()
    assert await first.result() == "b"
    clock.advance(3600)
    await app.tick()
    assert await delayed.result() == "c"
    with pytest.raises(JobNotFound, match="does not wait"):
        await app.jobs.edit(first.id, priority=1)
    await app.jobs.delete(JobFilter(status=frozenset({JobStatus.COMPLETED})))
    with pytest.raises(JobNotFound, match="is gone"):
        await first.info()


async def test_dead_letters_stay_until_replayed_or_purged(app: App):  # O8
    works = False

    @app.task(max_attempts=1)
    async def send(to: int) -> None:
        if not works:
            raise ValueError(to)

    handles = await send.enqueue_many([(number,) for number in range(4)])
    assert (await app.tick()).buried == 4
    assert await app.dead.count() == 4
    assert {job.last_error for job in (await app.dead.list()).items} == {f"ValueError: {n}" for n in range(4)}
    works = True
    assert len(await app.dead.replay(handles[0])) == 1
    assert len(await app.dead.replay(JobFilter(error_contains="1"))) == 1
    assert (await app.tick()).completed == 2
    assert await app.dead.replay(handles[0]) == [], "it is no dead letter any more"
    assert len(await app.dead.purge(handles[2].id)) == 1
    with pytest.raises(InvalidValue, match="or all=True"):
        await app.dead.purge()
    with pytest.raises(InvalidValue, match="not both"):
        await app.dead.replay(handles[2], all=True)
    assert len(await app.dead.purge(all=True)) == 1
    assert await app.dead.count() == 0
    assert await app.jobs.count() == {"completed": 2}


async def test_queues_are_paused_limited_and_configured(app: App, clock: ManualClock):
    @app.task(queue="mail")
    async def send() -> None: ...

    await send.enqueue_many([()] * 5)
    assert (await app.queues.pause("mail")).settings.paused
    assert (await app.tick()).claimed == 0
    await app.queues.resume("mail")
    limited = await app.queues.configure("mail", rate=Rate(60, burst=1), global_concurrency=2)
    assert (limited.settings.rate, limited.settings.global_concurrency) == (Rate(60), 2)
    assert (await app.tick()).claimed == 1
    await app.queues.configure("mail", rate=None)
    assert (await app.queues.get("mail")).settings.global_concurrency == 2
    assert (await app.tick()).claimed == 4
    changed = await app.queues.configure("mail", max_attempts=2, backoff=Backoff.fixed(1), weight=3)
    assert (changed.settings.max_attempts, changed.settings.backoff) == (2, Backoff.fixed(1))
    assert [queue.name for queue in await app.queues.list()] == ["mail"]
    with pytest.raises(QueueNotFound, match="did you mean 'mail'"):
        await app.queues.get("male")
    with pytest.raises(InvalidValue, match="such as 600/min"):
        await app.queues.configure("mail", rate="often")
    assert (await app.queues.configure("mail", rate="600/min")).settings.rate == Rate(600)
    assert (await app.queues.configure("mail", rate="5/2h")).settings.rate == Rate(5, timedelta(hours=2))


async def test_workers_are_listed(app: App):
    await app.open()
    await app._core.engine.heartbeat(WorkerInfo(id="w1", hostname="here", pool_size=1, version="1"), [])
    assert [worker.id for worker in await app.workers.list()] == ["w1"]


def test_what_is_said_of_an_app_names_its_store(app: App):
    assert repr(app) == "<App on SQLite, 0 tasks>"
    assert msgspec.structs.replace(app._core.config, url="") is not None
