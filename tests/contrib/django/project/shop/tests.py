"""What the backend promises, told in Django's own terms. Run by ``manage.py test``, on whichever database there is."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.db.utils import ConnectionHandler
from django.test import TransactionTestCase
from django.utils import timezone
from settings import TASKS

from onward.contrib.django import OnwardBackend
from onward.contrib.django.apps import _make_tables as make_tables
from onward.contrib.django.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from onward.engine.values import JobFilter
from onward.job import NewJob
from onward.validation import MAX_PAYLOAD
from shop import tasks
from shop.models import Deed, Order

HERE = Path(__file__).parent.parent
DEADLINE = 60.0


class Sudden(Exception):
    pass


@contextmanager
def worker(*args):
    """Run ``onward work`` as a program of its own, on the database of the tests."""
    database = dict(connection.settings_dict)
    known = {name: str(database[name]) for name in ("ENGINE", "NAME", "USER", "HOST") if database.get(name)}
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "manage.py", "onward", "work", *args],
        cwd=HERE,
        env={**os.environ, "SHOP_DATABASE": json.dumps(known)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # Before that it has no signal handler, and a stop would kill it.
        started = any("worker started" in line for line in process.stderr)
        assert started, f"the worker ended with {process.wait()}"
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=DEADLINE)[1]
        assert process.returncode == 0, told


def wait_for(*results):
    until = time.monotonic() + DEADLINE
    for result in results:
        while not result.is_finished:
            assert time.monotonic() < until, f"{result.task.name} is {result.status}"
            time.sleep(0.02)
            result.refresh()


class TasksTest(TransactionTestCase):
    def setUp(self):
        self.ask(lambda app: app.jobs.cancel(JobFilter()))
        self.ask(lambda app: app.jobs.delete(JobFilter()))

    def ask(self, question):
        return task_backends["default"].store.ask(question)

    def count(self):
        return sum(self.ask(lambda app: app.jobs.count()).values())

    def test_a_task_is_there_if_and_only_if_its_transaction_commits(self):
        with self.assertRaises(Sudden), transaction.atomic():
            Order.objects.create(number=1)
            gone = tasks.greet.enqueue("a")
            raise Sudden
        with transaction.atomic():
            Order.objects.create(number=2)
            kept = tasks.greet.enqueue("b")
            self.assertEqual(self.count(), 0)
            with self.assertRaises(Sudden), transaction.atomic():
                partly = tasks.greet.enqueue("c")
                raise Sudden
        self.assertEqual(self.count(), 1)
        self.assertEqual(tasks.greet.get_result(kept.id).status, TaskResultStatus.READY)
        for id in (gone.id, partly.id, "none"):
            with self.assertRaises(TaskResultDoesNotExist):
                tasks.greet.get_result(id)

    def test_what_no_backend_of_ours_has_stored_is_no_result(self):
        stray = NewJob(type="shop.tasks.write", payload='{"told": "x"}')
        (handle,) = self.ask(lambda app: app.enqueue_many([stray]))
        with self.assertRaises(TaskResultDoesNotExist):
            tasks.write.get_result(handle.id)

    def test_outside_a_transaction_a_task_is_there_at_once(self):
        enqueued = []
        task_enqueued.connect(told := lambda task_result, **_: enqueued.append(task_result.id))
        try:
            result = tasks.greet.enqueue("a", loud=True)
        finally:
            task_enqueued.disconnect(told)
        self.assertEqual(enqueued, [result.id])
        found = task_backends["default"].get_result(result.id)
        self.assertEqual((found.args, found.kwargs, found.attempts), (["a"], {"loud": True}, 0))
        self.assertEqual(found.task, tasks.greet)
        self.assertIsNone(found.started_at)
        self.assertLess(abs(found.enqueued_at - timezone.now()), timedelta(minutes=1))
        with self.assertRaises(ValueError):
            _ = found.return_value

    def test_a_worker_runs_what_is_enqueued_and_results_can_be_read(self):
        greeted, posted, failed = tasks.greet.enqueue("a", loud=True), tasks.post.enqueue(6), tasks.fail.enqueue()
        tried = tasks.second_time.enqueue("b")
        with worker(), worker("--backend", "stubborn"):
            wait_for(greeted, posted, failed, tried)
        self.assertEqual(greeted.return_value, {"said": "A"})
        self.assertEqual((posted.return_value, posted.task.queue_name, posted.task.priority), (7, "mail", 50))
        self.assertEqual((failed.status, failed.attempts), (TaskResultStatus.FAILED, 1))
        self.assertIs(failed.errors[0].exception_class, tasks.OutOfStock)
        self.assertIn("none left", failed.errors[0].traceback)
        self.assertEqual(tried.return_value, [2, tried.id])
        self.assertEqual((tried.attempts, "" in tried.worker_ids), (2, False))
        self.assertIs(tried.errors[0].exception_class, ValueError)
        for result in (greeted, posted, failed, tried):
            self.assertLessEqual(result.enqueued_at, result.started_at)
            self.assertLessEqual(result.started_at, result.finished_at)
        told = list(Deed.objects.values_list("told", flat=True))
        self.assertIn("greeted a", told)
        self.assertIn("posted 6", told)
        for line in ("began greet RUNNING", "ended greet SUCCESSFUL", "ended post SUCCESSFUL", "ended fail FAILED"):
            self.assertEqual(told.count(line), 1, line)
        self.assertEqual(told.count("began second_time RUNNING"), 2)
        self.assertEqual(told.count("ended second_time SUCCESSFUL"), 1)
        self.assertEqual(told.count("ended second_time FAILED"), 0)

    def test_a_handler_and_the_signals_see_the_whole_result(self):
        moment = timezone.now()
        result = tasks.inspect.using(priority=7, run_after=moment).enqueue("a")
        with worker("--backend", "stubborn"):
            wait_for(result)
        first, second = (json.loads(deed.told) for deed in Deed.objects.filter(told__startswith="{").order_by("id"))
        for seen in (first, second, result.return_value):
            self.assertEqual((seen["priority"], seen["queue"], seen["status"]), (7, "default", "RUNNING"))
            self.assertEqual(seen["run_after"], moment.isoformat())
            self.assertEqual(seen["enqueued_at"], result.enqueued_at.isoformat())
            self.assertEqual(seen["id"], result.id)
        self.assertEqual((first["errors"], first["attempts"]), ([], 1))
        self.assertEqual((second["errors"], second["attempts"]), (["builtins.ValueError"], 2))
        self.assertEqual(second, result.return_value)
        self.assertEqual(second["worker_ids"], result.worker_ids)  # in full, as the store has them
        self.assertEqual(len({*first["worker_ids"], *result.worker_ids}), 1)
        self.assertEqual(result.worker_ids[0].count("-"), 2)
        self.assertLess(second["started_at"], second["last_attempted_at"])  # the first attempt, and this one
        self.assertEqual(result.started_at.isoformat(), second["started_at"])
        self.assertEqual(result.task.run_after, moment)

    def test_urgent_tasks_go_first_and_later_ones_later(self):
        prefetch_started = timezone.now() + timedelta(seconds=4)
        later = tasks.greet.using(run_after=prefetch_started, priority=100).enqueue("later")
        low, plain, high = (
            tasks.write.using(priority=priority).enqueue(f"at {priority}") for priority in (-100, 0, 100)
        )
        self.assertEqual(tasks.greet.get_result(later.id).task.run_after, prefetch_started)
        with worker("--concurrency", "1"):
            wait_for(later, low, plain, high)
        ran = Deed.objects.filter(told__startswith="at ").order_by("id").values_list("told", flat=True)
        self.assertEqual(list(ran), ["at 100", "at 0", "at -100"])
        self.assertGreaterEqual(later.started_at, prefetch_started)

    def test_a_project_that_does_not_tell_times_with_zones_sees_none(self):
        with self.settings(USE_TZ=False):
            moment = timezone.now() + timedelta(hours=1)
            result = tasks.write.using(run_after=moment).enqueue("x")
            found = tasks.write.get_result(result.id)
            self.assertEqual(found.task.run_after, moment)
            self.assertTrue(timezone.is_naive(found.enqueued_at))

    def test_what_no_task_can_be_called_with_is_refused_and_nothing_is_written(self):
        for wrong in (object(), {1, 2}):
            with self.assertRaises(TypeError):  # by Django, which makes JSON of them
                tasks.greet.enqueue(wrong)
        for wrong in (float("nan"), "a\0b", "x" * MAX_PAYLOAD):
            with self.assertRaises(InvalidTask) as refused:
                tasks.greet.enqueue(wrong)
            self.assertIn("shop.tasks.greet cannot be enqueued: ", str(refused.exception))
        with self.assertRaises(InvalidTask):
            tasks.greet.using(queue_name="other")
        self.assertEqual(self.count(), 0)

    def test_what_is_no_task_is_not_run(self):
        stray = NewJob(type="shop.tasks.not_a_task", payload='{"args": [], "kwargs": {}}')
        (handle,) = self.ask(lambda app: app.enqueue_many([stray]))
        done = tasks.write.enqueue("x")
        with worker():
            wait_for(done)
            until = time.monotonic() + DEADLINE
            while (job := self.ask(lambda app: app.jobs.get(handle.id))).status != "scheduled":
                assert time.monotonic() < until
        self.assertEqual(job.attempts, 0)  # put back: another version of the project may have it (O8)

    def test_settings_that_cannot_be_meant_are_refused_by_name_with_the_remedy(self):
        for options, words in (
            ({"databse": "default"}, ("'databse'", "did you mean 'database'")),
            ({"database": "defualt"}, ("'database'", "did you mean 'default'")),
            ({"url": "redsi://localhost"}, ("'url'", "redis")),
            ({"url": "sqlite:///x.db", "database": "default"}, ("'url'", "one of them")),
            ({"max_attempts": 0}, ("'max_attempts'", "at least 1")),
            ("default", ("OPTIONS", "dictionary")),
        ):
            with self.subTest(options=options), self.assertRaises(ImproperlyConfigured) as refused:
                OnwardBackend("mine", {"OPTIONS": options})
            self.assertIn("TASKS['mine']['OPTIONS']", str(refused.exception))
            for word in words:
                self.assertIn(word, str(refused.exception))
        for args, words in (
            (["--backend", "other"], ["other"]),
            (["--queues", "mial"], ["'mial'", "did you mean 'mail'"]),
        ):
            with self.assertRaises(CommandError) as refused:
                call_command("onward", "work", *args)
            for word in words:
                self.assertIn(word, str(refused.exception))

    def test_a_database_in_memory_is_refused(self):
        with self.assertRaises(ImproperlyConfigured) as refused:
            memory = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
            before = connections["default"]
            connections["default"] = memory["default"]
            try:
                make_tables(using="default")
                OnwardBackend("mine", {})
            finally:
                connections["default"] = before
        self.assertIn("in memory", str(refused.exception))
        self.assertIn("OPTIONS['url']", str(refused.exception))

    def test_who_has_not_installed_the_application_is_told(self):
        backend = task_backends["default"]
        self.assertEqual(list(backend.check()), [])
        with self.modify_settings(INSTALLED_APPS={"remove": "onward.contrib.django"}):
            self.assertFalse(apps.is_installed("onward.contrib.django"))
            (warning,) = backend.check()
        self.assertIn("INSTALLED_APPS", warning.hint)

    def test_the_examples_of_the_guide_hold(self):
        (settings, example) = re.findall(r"```text\n(.*?)```", Path(os.environ["SHOP_GUIDE"]).read_text(), re.DOTALL)
        told = {}
        exec(settings.replace("...", "*[]"), told)
        self.assertEqual(told["INSTALLED_APPS"], ["onward.contrib.django"])
        self.assertEqual(told["TASKS"]["default"], TASKS["default"])
        guide = sys.modules["guide"] = ModuleType("guide")
        guide.User = SimpleNamespace(
            objects=SimpleNamespace(create=lambda name: Order.objects.create(number=len(name)))
        )
        exec(example.replace("django.tasks", tasks.task.__module__.partition(".base")[0]), vars(guide))
        found = guide.welcome.get_result(guide.result.id)
        self.assertEqual((found.args, found.task.priority), ([Order.objects.get().pk], 10))

    async def test_asynchronous_code_enqueues_and_reads_too(self):
        result = await tasks.post.aenqueue(1)
        found = await tasks.post.aget_result(result.id)
        self.assertEqual((found.id, found.status), (result.id, TaskResultStatus.READY))
