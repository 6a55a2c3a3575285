"""The tasks of the shop."""

import json

from onward.contrib.django.framework import task_finished, task_started
from shop.models import Deed

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


class OutOfStock(Exception):
    """There is none left."""


@task
def greet(name, *, loud=False):
    Deed.objects.create(told=f"greeted {name}")
    return {"said": name.upper() if loud else name}


@task(queue_name="mail", priority=50)
async def post(number):
    await Deed.objects.acreate(told=f"posted {number}")
    return number + 1


@task
def fail():
    raise OutOfStock("none left\nof anything")


@task(backend="stubborn", takes_context=True)
def second_time(context, name):
    if context.attempt == 1:
        raise ValueError(name)
    return [context.attempt, context.task_result.id]


def facts(result):
    return {
        "id": result.id,
        "status": str(result.status),
        "priority": result.task.priority,
        "queue": result.task.queue_name,
        "run_after": result.task.run_after.isoformat(),
        "enqueued_at": result.enqueued_at.isoformat(),
        "started_at": result.started_at.isoformat(),
        "last_attempted_at": result.last_attempted_at.isoformat(),
        "attempts": result.attempts,
        "worker_ids": result.worker_ids,
        "errors": [error.exception_class_path for error in result.errors],
    }


@task(backend="stubborn", takes_context=True)
async def inspect(context, name):
    if context.attempt == 1:
        raise ValueError(name)
    return facts(context.task_result)


@task
def write(told):
    Deed.objects.create(told=told)


def not_a_task():
    """Do nothing."""


def _tell(word):
    def told(sender, task_result, **kwargs):
        Deed.objects.create(told=f"{word} {task_result.task.name} {task_result.status}")

    return told


def _note_facts(sender, task_result, **kwargs):
    if task_result.task.name == "inspect":
        Deed.objects.create(told=json.dumps(facts(task_result)))


started, finished = _tell("began"), _tell("ended")
task_started.connect(started)
task_started.connect(_note_facts)
task_finished.connect(finished)
