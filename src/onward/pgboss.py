"""pg-boss's own verbs for an App on ``pgboss+postgresql://…``: queue policies, throttles, cron schedules, events.

::

    from onward.pgboss import pgboss_of

    boss = pgboss_of(app)
    await boss.create_queue("mail", policy="short", dead_letter="mail-failed")
    await boss.send("mail", {"to": "ada"}, singleton_key="ada", expire_in_seconds=60)

Needs the extra ``onward[postgres]``.
"""

from onward.engines.pgboss.native import POLICIES, PgBoss, Schedule, pgboss_of
from onward.engines.pgboss.options import Group, QueueOptions, SendOptions

__all__ = ["POLICIES", "Group", "PgBoss", "QueueOptions", "Schedule", "SendOptions", "pgboss_of"]
