"""What an App is told from outside, and the values that hold when it is told nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec

from onward import validation
from onward.errors import InvalidValue
from onward.lifecycle import MAX_CRASHES
from onward.project_file import project_settings
from onward.store_url import hide_secrets
from onward.worker_options import UNKNOWN_TASK_GRACE, UnknownTaskPolicy

URL_VARIABLE: Final = "ONWARD_URL"
"""Where the URL of the store is looked for when an App is not given one."""

DEFAULT_LEASE: Final = timedelta(seconds=30)
"""How long a worker may be silent before it counts as dead, and how long a leader's term lasts (O6, O7)."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an App."""

    url: str = ""
    """The store in use: see :mod:`onward.engines.urls`; empty as long as it is not known."""
    max_payload: int = validation.MAX_PAYLOAD
    """Bytes of JSON that a job, or its result, may be (B4)."""
    lease: timedelta = DEFAULT_LEASE
    """Time without a heartbeat after which a worker counts as dead; renewed by heartbeats."""
    max_crashes: int = MAX_CRASHES
    """How many child processes a suspect may take down before its task's ``on_crash`` applies."""

    unknown_tasks: UnknownTaskPolicy = "wait"
    """Whether workers put back a job whose task they do not have, or fail it at once (O8)."""
    unknown_task_grace: timedelta = UNKNOWN_TASK_GRACE
    """How long such a job is put back before it fails."""
    redact: tuple[str, ...] = ()
    """Keys whose values are not shown, besides the usual ones (S6)."""

    def __repr__(self) -> str:
        """Show the settings; the URL without its secrets."""
        shown = msgspec.structs.asdict(self) | {"url": hide_secrets(self.url) if self.url else ""}
        return f"Config({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        validation.check_at_least("max_payload", self.max_payload, 1)
        validation.check_at_least("max_crashes", self.max_crashes, 1)
        validation.check_unknown_tasks(self.unknown_tasks, self.unknown_task_grace)
        validation.check_redact(self.redact)
        if self.lease < timedelta(seconds=1):
            raise InvalidValue("lease", self.lease, "must be at least a second")


def url_from(environment: Mapping[str, str] = os.environ) -> str:
    """Read the URL of the store from the environment, or else from ``[tool.onward]`` in pyproject.toml.

    Raises:
        InvalidValue: neither has one.
    """
    url = environment.get(URL_VARIABLE, "").strip() or project_settings().url
    if not url:
        rule = f'give one, such as App("sqlite:///jobs.db") or app.configure(url=…), or set {URL_VARIABLE}'
        raise InvalidValue("url", None, f"{rule}, or url in [tool.onward] of pyproject.toml")
    return url
