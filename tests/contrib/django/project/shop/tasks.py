"""The tasks of the shop."""

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


@task
def write(told):
    Deed.objects.create(told=told)


def not_a_task():
    """Do nothing."""


def _tell(word):
    def told(sender, task_result, **kwargs):
        Deed.objects.create(told=f"{word} {task_result.task.name} {task_result.status}")

    return told


started, finished = _tell("began"), _tell("ended")
task_started.connect(started)
task_finished.connect(finished)
