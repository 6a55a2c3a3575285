"""What is worked out without a server: options, schedules, and what a doctor says."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from onward.app import App
from onward.backoff import Backoff
from onward.engines.bullmq import job_options
from onward.engines.bullmq.client_factory import Server
from onward.engines.bullmq.diagnostics import Facts, warnings
from onward.engines.bullmq.lua_scripts import SCRIPTS
from onward.engines.bullmq.schedules import next_time
from onward.engines.urls import open_engine
from onward.errors import InvalidValue, Unsupported
from onward.job import NewJob


def test_our_backoff_comes_back_as_it_was_and_never_waits_longer_than_an_hour():  # B6, H1
    backoff = Backoff.exponential(3, factor=1.5, cap=77, jitter=0.25)
    assert (
        job_options.read(job_options.write(NewJob(type="t", backoff=backoff), is_prioritized=False)).backoff == backoff
    )
    endless = Backoff.exponential(1, cap=None)
    read = job_options.read(job_options.write(NewJob(type="t", backoff=endless), is_prioritized=False)).backoff
    assert read is not None
    assert [read.delay(attempts).total_seconds() for attempts in (1, 5, 30)] == [1, 16, 3600]


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (None, [0, 0]),
        ({"type": "fixed", "delay": 500}, [0.5, 0.5]),
        (500, [0.5, 0.5]),
        ({"type": "exponential", "delay": 1000}, [1, 16384]),
    ],
    ids=["none", "fixed", "number", "exponential"],
)
def test_jobs_from_node_keep_nodes_policy(backoff: object, delays: list[float]):  # B6
    read = job_options.read(json.dumps({"attempts": 20, "backoff": backoff} if backoff else {"attempts": 20})).backoff
    assert read is not None
    assert [round(read.delay(attempts).total_seconds(), 3) for attempts in (1, 15)] == delays


def test_nodes_jitter_shortens_and_ours_says_the_same():  # B6
    read = job_options.read('{"backoff": {"type": "fixed", "delay": 1000, "jitter": 0.5}}').backoff
    assert read is not None
    assert [read.delay(1, random=lambda share=share: share) for share in (0.0, 1.0)] == [  # type: ignore[misc]
        timedelta(seconds=0.5),
        timedelta(seconds=1),
    ]


def test_a_job_of_nodes_without_attempts_runs_once():
    assert job_options.read('{"attempts": 0}').max_attempts == 1
    assert job_options.read("{}").max_attempts == 1


def millis(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


def test_a_pattern_comes_due_in_its_own_time_zone_and_may_count_seconds():
    assert next_time("0 9 * * *", millis(2030, 7, 1), "Europe/Berlin") == millis(2030, 7, 1, 7)
    assert next_time("0 9 * * *", millis(2030, 1, 1), "Europe/Berlin") == millis(2030, 1, 1, 8)
    assert next_time("*/15 * * * * *", millis(2030, 1, 1), "UTC") == millis(2030, 1, 1, 0, 0, 15)


HEALTHY = Facts("Redis 7.2.0", (7, 2, 0), "noeviction", 0, True, "always", True, False, "master", 0)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (HEALTHY._replace(policy="allkeys-lru"), "set maxmemory-policy noeviction"),
        (HEALTHY._replace(has_append_only=False, has_snapshots=False), "a restart loses every job"),
        (HEALTHY._replace(has_append_only=False), "a crash loses the latest"),
        (HEALTHY._replace(version=(5, 0, 7), server="Redis 5.0.7"), "Redis 5.0.7 is too old"),
        (HEALTHY._replace(role="slave"), "this is a replica"),
        (HEALTHY._replace(has_failed_snapshot=True), "could not be written"),
    ],
    ids=["eviction", "memory", "snapshots", "old", "replica", "disk"],
)
def test_a_doctor_hears_what_may_lose_jobs_and_what_to_do(facts: Facts, says: str):
    (warning,) = warnings(facts)
    assert says in warning


def test_a_sound_server_is_not_complained_of():
    assert list(warnings(HEALTHY)) == []
    assert "survives" in HEALTHY.durability


def test_every_script_says_what_it_takes_and_uses_only_words_that_it_names():
    assert {"claim", "settle", "enqueue", "rescue"} <= set(SCRIPTS)
    for script in SCRIPTS.values():
        assert "local call = redis.call" in script.text, script.name
        assert "--" not in script.text.replace("'--'", ""), script.name


def test_an_address_is_shown_without_its_secrets():
    server = Server("redis://user:swordfish@host:7000/3")
    assert str(server) == "redis://host:7000/3"
    assert server.address == {"host": "host", "port": 7000, "database": "3"}
    behind = Server("redis://:swordfish@one:26379,two:26380/0?sentinel=jobs")
    assert behind.address == {"sentinels": ["one:26379", "two:26380"], "master": "jobs"}


def test_settings_in_the_url_are_ours_or_the_drivers():
    engine = open_engine("redis://host/1?prefix=app&prioritized=mail,alerts/*&metrics=60")
    assert engine.describe() == {"engine": "BullMQ", "host": "host", "port": 6379, "database": "1", "prefix": "app"}
    with pytest.raises(InvalidValue, match="number of minutes"):
        open_engine("redis://host?metrics=many")
    with pytest.raises(InvalidValue, match="must have braces"):
        open_engine("redis://host?cluster=on")


def test_jobs_of_a_shared_queue_cannot_be_chosen_by_name_and_a_worker_says_so_before_it_starts():
    app = App("redis://localhost")

    @app.task(queue="mail")
    async def send() -> None: ...

    with pytest.raises(Unsupported, match="give these names a queue of their own"):
        app.worker(tasks=["send"])
