"""pg-boss's own verbs for an App on ``pgboss+postgresql://…``: queue policies, throttles, cron schedules, events.

::

    from onward.pgboss import pgboss_of

    boss = pgboss_of(app)
    await boss.create_queue("mail", policy="short", dead_letter="mail-failed")
    await boss.send("mail", {"to": "ada"}, singleton_key="ada", expire_in_seconds=60)

Needs the extra ``onward[postgres]``.
"""

from onward.app import App
from onward.core import core_of
from onward.engines.pgboss.engine import PgBossEngine
from onward.engines.pgboss.native import POLICIES, PgBoss, Schedule
from onward.engines.pgboss.options import Group, QueueOptions, SendOptions
from onward.errors import InvalidValue

__all__ = ["POLICIES", "Group", "PgBoss", "QueueOptions", "Schedule", "SendOptions", "pgboss_of"]


def pgboss_of(app: App) -> PgBoss:
    """Return pg-boss's own verbs for an App on pg-boss.

    Raises:
        InvalidValue: the App is on another store.
    """
    engine = core_of(app).engine.inner
    if not isinstance(engine, PgBossEngine):
        raise InvalidValue("app", app, "must be on pg-boss: pgboss+postgresql://…")
    return PgBoss(engine)
