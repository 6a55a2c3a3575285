"""What BullMQ can do, what is made up for, and what it cannot."""

from __future__ import annotations

from typing import Final

from onward.engine.capabilities import NATIVE, Capabilities, Feature, absent, emulated
from onward.lifecycle import JobStatus

_EMULATED_OR_ABSENT: Final = {
    Feature.CLAIMED_STATE: absent("BullMQ starts a job as it is claimed: ask for no more than can start"),
    Feature.CANCELLED_STATE: absent("BullMQ has no such state: a job that is taken back is removed"),
    Feature.PRIORITY: emulated(
        "BullMQ counts the other way: only in queues that the URL names, ?prioritized=mail, where Onward's jobs all "
        "have the priority 2^20 - p"
    ),
    Feature.START_BY: absent(
        "BullMQ keeps no such time, and Node's workers would not heed it: check it in the handler"
    ),
    Feature.IDEMPOTENCY: emulated("keys are kept beside BullMQ's, under onward:, as long as the job is"),
    Feature.ORGANISATIONS: emulated("kept in the job's options; looked for by reading the jobs one by one"),
    Feature.RATE: emulated(
        "Onward's workers keep to slots, kept under onward:; Node's to BullMQ's own window of the same size"
    ),
    Feature.BURST: emulated("within Onward's slots; BullMQ's window, which Node's workers keep to, is one burst"),
    Feature.WEIGHT: emulated("kept under onward:, and kept to by Onward's workers"),
    Feature.PATTERNS: emulated(
        "Onward notes the queues it serves under onward:; those that only Node knows are found within five seconds"
    ),
    Feature.QUEUE_DEFAULTS: absent("BullMQ's belong to whoever adds a job: say max_attempts and backoff with the task"),
    Feature.RETENTION: emulated(
        "by the leader among Onward's workers; a queue that Node has opened too is pruned only if it was told to be"
    ),
    Feature.ERROR_HISTORY: absent("BullMQ keeps the last reason and the stack traces, not when and where they came"),
    Feature.LOG_LINES: emulated("BullMQ's lines have no time: Onward's begin with it"),
    Feature.SUSPECTS: absent("BullMQ counts how often a job was lost with its worker (stc), and fails it at the limit"),
    Feature.TRANSACTIONS: absent("Redis has none that a caller could hand in: enqueue when your own has committed"),
    Feature.EVENTS: emulated(
        "read from BullMQ's streams; retries, workers and attempts are derived from the job as it is when it is read"
    ),
    Feature.LEADER: emulated("elected by a key under onward:; it looks after the queues that Onward serves"),
    Feature.THROTTLE: absent("BullMQ has its own: bullmq_of(app).add(…, deduplication=…)"),
    Feature.ARCHIVE: absent("BullMQ has no second place for ended jobs: those that are no longer kept are gone"),
    Feature.USAGE: absent("BullMQ keeps its own metrics, by the minute: bull:<queue>:metrics:completed"),
    Feature.WEBHOOKS: absent("this version has them on SQLite and PostgreSQL; here, listen by app.events()"),
    Feature.BATCHES: absent("BullMQ has flows of its own: bullmq_of(app).add_flow(…)"),
    Feature.SCHEDULES: emulated(
        "BullMQ's job schedulers, which Node lists and runs too; what they cannot say, such as a pause, is kept under "
        "onward:"
    ),
    Feature.MISSED_TURNS: absent('BullMQ runs one job for all turns that were missed: missed="once"'),
    Feature.FIRING: absent("BullMQ's protocol fires schedules: the worker that takes a job adds the next"),
    Feature.LATE_OUTCOMES: absent("BullMQ's lock goes when its time is up, and nothing else says whose the job is"),
    Feature.CHANGE_TIMES: absent("BullMQ keeps when a job was added, taken and ended, and no other time"),
}

CAPABILITIES: Final = Capabilities(
    engine="BullMQ",
    features={feature: _EMULATED_OR_ABSENT.get(feature, NATIVE) for feature in Feature},
    status_aliases={JobStatus.CLAIMED: JobStatus.RUNNING, JobStatus.DEAD_LETTER: JobStatus.FAILED},
    is_shared=True,
    has_global_ids=False,
    put_back_needs_peer=True,
)
