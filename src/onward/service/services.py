"""All services of an App."""

from __future__ import annotations

from datetime import timedelta

from onward.app import App
from onward.service.access import SESSION_IDLE, SESSION_LENGTH, Access
from onward.service.audit import Audit
from onward.service.batches import Batches
from onward.service.bulk import Bulk
from onward.service.ended import Archive, DeadLetters
from onward.service.events import Events
from onward.service.jobs import Jobs
from onward.service.queues import Queues, Workers
from onward.service.schedules import Schedules
from onward.service.status import Status
from onward.service.store import Store


class Services:
    """What the HTTP API, the dashboard and the command line call."""

    def __init__(
        self, app: App, *, session_idle: timedelta = SESSION_IDLE, session_length: timedelta = SESSION_LENGTH
    ) -> None:
        self.store = store = Store(app)
        self.access = Access(store, idle=session_idle, length=session_length)
        self.audit = Audit(store)
        self.jobs = Jobs(store)
        self.bulk = Bulk(store)
        self.dead = DeadLetters(store)
        self.archive = Archive(store)
        self.queues = Queues(store)
        self.workers = Workers(store)
        self.schedules = Schedules(store)
        self.batches = Batches(store)
        self.events = Events(store)
        self.status = Status(store)
