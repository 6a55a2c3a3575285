"""The access log: one line a request, its facts as fields of the record (X6). No queries, bodies or credentials."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from onward.http.authentication import peer_of
from onward.service.access import PREFIX

if TYPE_CHECKING:
    from onward.http.application import Exchange

log = logging.getLogger("onward.http.access")
_LONGEST: Final = 500
_TOKEN: Final = re.compile(rf"{PREFIX}_[^/]+")


def _shown(path: str) -> str:
    """Return a path without a token that was put there by mistake (S2)."""
    return (_TOKEN.sub(PREFIX + "_…", path) if PREFIX in path else path)[:_LONGEST]


class _AccessRecord(logging.LogRecord):
    """A record that has the fields of every record at once: to look for each takes longer than all else of a line."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        vars(self).update(_TEMPLATE)
        vars(self).update(facts)
        self.created = time.time()
        self.msecs = self.created % 1 * 1000


_TEMPLATE: Final = vars(logging.LogRecord(log.name, logging.INFO, "", 0, "request", (), None))


def write_access_log(request: Request, exchange: Exchange) -> None:
    """Write the line of a request that is over."""
    if not log.isEnabledFor(logging.INFO):
        return
    facts = {
        "method": request.method[:20],
        "path": _shown(str(request.scope.get("path", ""))),
        "status": exchange.status,
        "seconds": round(time.perf_counter() - exchange.began, 6),
        "actor": exchange.actor,
        "peer": peer_of(request),
        "request_id": exchange.request_id,
    }
    log.handle(_AccessRecord(facts))
