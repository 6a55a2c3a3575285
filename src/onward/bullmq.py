"""BullMQ's own verbs for an App on ``redis://…``: flows, job schedulers, deduplication, drain, clean, obliterate.

::

    from onward.bullmq import Flow, bullmq_of

    bullmq = bullmq_of(app)
    await bullmq.add("mail", "send", {"to": "ada"}, lifo=True, job_id="order-7")
    await bullmq.add_flow(Flow("report", "sum", children=[Flow("pages", "render", {"n": n}) for n in range(3)]))

Needs the extra ``onward[redis]``.
"""

from onward.app import App
from onward.context import claim_of
from onward.control_flow import DoNotRetry
from onward.core import core_of
from onward.engines.bullmq.engine import BullMQEngine
from onward.engines.bullmq.native import (
    BackoffOptions,
    BullMQ,
    Deduplication,
    Flow,
    HandlerAccess,
    JobNode,
    KeepJobs,
    Scheduler,
)
from onward.errors import InvalidValue

__all__ = ["BackoffOptions", "BullMQ", "Deduplication", "Flow", "JobNode", "KeepJobs", "Scheduler", "bullmq_of"]


def bullmq_of(app: App) -> BullMQ:
    """Return BullMQ's own verbs for an App on Redis or Valkey.

    Raises:
        InvalidValue: the App is on another store.
    """
    core = core_of(app)
    engine = core.engine.inner
    if not isinstance(engine, BullMQEngine):
        raise InvalidValue("app", app, "must be on BullMQ: redis://…")
    return BullMQ(engine, max_payload=core.max_payload, handlers=HandlerAccess(claim_of, DoNotRetry))
