"""Python API, command line and HTTP API have the same verbs, by the same names (A2)."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from onward.app import App
from onward.batches.resources import Batch, Batches, Flow
from onward.http.application import Server
from onward.resources import Archive, DeadLetters, Jobs, Queues, Schedules, Workers
from onward.service.operations import OPERATIONS
from onward.task import Task
from tests.cli.test_audited import commands

GROUPS = {
    "jobs": Jobs,
    "dead": DeadLetters,
    "archive": Archive,
    "queues": Queues,
    "workers": Workers,
    "schedules": Schedules,
    "batches": Batches,
}
CLASSES = {"App": App, "Batch": Batch, "Flow": Flow, "Task": Task} | {one.__name__: one for one in GROUPS.values()}

# Where the name differs: what the other surface calls the verb of an operation, and why.
COMMANDS = {
    "jobs.get": "jobs show",  # as people say it; with errors, log lines and result
    "archive.get": "archive show",
    "schedules.get": "schedules show",
    "batches.get": "batches show",
    "queues.get": "queues list",  # takes a name
    "jobs.logs": "jobs show",  # writes them below the job
    "jobs.result": "enqueue",  # --wait
    "jobs.enqueue": "enqueue",  # the commonest verbs need no group
    "jobs.enqueue_many": "enqueue",  # a shell has loops
    "jobs.explain": "explain",
    "jobs.cancel_many": "jobs cancel",  # takes ids or a filter
    "jobs.replay_many": "jobs replay",
    "jobs.delete_many": "jobs delete",
    "batches.jobs": "jobs list",  # --batch
    "usage.read": "usage",
    "metrics.read": "metrics",
    "doctor.read": "doctor",
    "health.read": "health",
    "capabilities.read": "capabilities",
    "tick.run": "tick",
    "audit.list": "audit",
}
METHODS = {
    "jobs.enqueue": "Task.enqueue",  # a job is made of a task's arguments
    "jobs.enqueue_many": "App.enqueue_many",
    "jobs.cancel_many": "Jobs.cancel",  # takes a job or a filter
    "jobs.replay_many": "Jobs.replay",
    "jobs.delete_many": "Jobs.delete",
    "jobs.export": "Jobs.iterate",  # a program writes its own files
    "batches.create": "App.batch",
    "batches.jobs": "Batch.jobs",  # a batch is an object
    "batches.graph": "Batch.dependencies",
    "batches.seal": "Batch.seal",
    "batches.pause": "Batch.pause",
    "batches.resume": "Batch.resume",
    "batches.cancel": "Batch.cancel",
    "usage.read": "App.usage",
    "events.stream": "App.events",
    "metrics.read": "App.metrics",
    "tick.run": "App.tick",
}

NO_COMMAND = {
    "jobs.reveal": "the command line has the store's own credentials: it redacts nothing but exports",
    "operations.list": "a command makes its change itself, in steps, and ends with it",
    "operations.get": "as operations.list",
    "operations.cancel": "as operations.list: Ctrl-C",
    "batches.create": "the jobs of a batch are made by code, or sent as one JSON document",
    "events.stream": "a stream for programs; onward top is for people",
    "session.create": "a browser's",
    "session.get": "a browser's",
    "session.delete": "a browser's",
}
NO_METHOD = {
    "jobs.reveal": "a program with the store's credentials sees everything",
    "jobs.result": "JobHandle.result, which task.enqueue returns",
    "operations.list": "a program's change by filter is a call that ends with it",
    "operations.get": "as operations.list",
    "operations.cancel": "as operations.list",
    "doctor.read": "for people and monitoring: command and route",
    "health.read": "for probes: command and route",
    "capabilities.read": "app.capabilities, a property",
    "session.create": "a browser's",
    "session.get": "a browser's",
    "session.delete": "a browser's",
    "tokens.list": "of the server alone: command and route",
    "tokens.create": "of the server alone: command and route",
    "tokens.revoke": "of the server alone: command and route",
    "audit.list": "of the server alone: command and route",
}
COMMAND_ALONE = {
    "work": "a process",
    "serve": "a process",
    "dev": "a process",
    "top": "a screen",
    "migrate": "the schema: needs its owner's rights",
    "plugin": "an application's commands; its routes are below /plugins",
    "demo": "a store of its own",
    "version": "of the program",
}
METHOD_ALONE = {
    "App.open": "a connection", "App.close": "a connection", "App.task": "declares", "App.schedule": "declares",
    "App.webhook": "declares", "App.alert": "declares", "App.add_plugin": "declares", "App.worker": "a process",
    "App.work": "a process", "App.gather": "awaits handles", "App.configure": "chooses the store",
    "App.override": "chooses the store", "App.include": "declares", "App.discover": "declares",
    "App.enqueue": "jobs.enqueue, by name",
    "App.flow": "batches.create: a batch whose jobs wait for each other",
    "Jobs.iterate": "jobs.export", "Jobs.handle": "names a job, and asks nothing",
    "Batch.add": "batches.create, which also adds", "Batch.flow": "batches.create", "Batch.info": "batches.get",
    "Batch.wait": "batches.get, again and again", "Batch.watch": "batches.get, again and again",
}  # fmt: skip


def command_of(name: str) -> str:
    return COMMANDS.get(name, name.replace(".", " "))


def method_of(name: str) -> str:
    group, verb = name.split(".")
    return METHODS.get(name) or (f"{GROUPS[group].__name__}.{verb}" if group in GROUPS else name)


def methods() -> Iterator[str]:
    for kind in (App, Batch, *GROUPS.values()):
        for name, value in inspect.getmembers(kind, callable):
            if not name.startswith("_") and inspect.isfunction(value):
                yield f"{kind.__name__}.{name}"


def test_every_verb_has_a_route_and_a_command_of_its_name(server: Server):  # A2
    routes = {endpoint.operation.name for endpoint in server.endpoints}
    known = commands()
    assert routes == set(OPERATIONS)
    assert {name for name in OPERATIONS if command_of(name) not in known} == NO_COMMAND.keys()
    asked = {command_of(name) for name in OPERATIONS}
    assert known - asked == COMMAND_ALONE.keys()


def test_every_verb_has_a_method_of_its_name():  # A2
    missing = set()
    for name in OPERATIONS:
        kind, _, verb = method_of(name).partition(".")
        if not callable(getattr(CLASSES.get(kind), verb, None)):
            missing.add(name)
    assert missing == NO_METHOD.keys()


def test_every_method_of_the_python_api_has_a_route():  # A2
    reached = {method_of(name) for name in OPERATIONS}
    assert set(methods()) - reached <= METHOD_ALONE.keys()


def test_a_named_exception_is_one():  # A2
    """A name in a list that is no exception any more would hide the next one."""
    known = commands()
    assert {name for name, command in COMMANDS.items() if command not in known} == set()
    assert {name for name in COMMANDS if name.replace(".", " ") in known} == set()
    assert METHODS.keys() | NO_METHOD.keys() | COMMANDS.keys() | NO_COMMAND.keys() <= OPERATIONS.keys()
    assert METHOD_ALONE.keys() - {"App.alert"} <= set(methods())
