"""BullMQ's own verbs for an App on ``redis://…``: flows, job schedulers, deduplication, drain, clean, obliterate.

::

    from onward.bullmq import Flow, bullmq_of

    bullmq = bullmq_of(app)
    await bullmq.add("mail", "send", {"to": "ada"}, lifo=True, job_id="order-7")
    await bullmq.add_flow(Flow("report", "sum", children=[Flow("pages", "render", {"n": n}) for n in range(3)]))

Needs the extra ``onward[redis]``.
"""

from onward.engines.bullmq.native import (
    BackoffOptions,
    BullMQ,
    Deduplication,
    Flow,
    JobNode,
    KeepJobs,
    Scheduler,
    bullmq_of,
)

__all__ = ["BackoffOptions", "BullMQ", "Deduplication", "Flow", "JobNode", "KeepJobs", "Scheduler", "bullmq_of"]
