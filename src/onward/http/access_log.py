"""The access log: one line a request, its facts as fields of the record (X6). No queries, bodies or credentials."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from starlette.requests import Request

if TYPE_CHECKING:
    from onward.http.application import Exchange

log = logging.getLogger("onward.http.access")
_LONGEST: Final = 500


def write_access_log(request: Request, exchange: Exchange) -> None:
    """Write the line of a request that is over."""
    if not log.isEnabledFor(logging.INFO):
        return
    facts = {
        "method": request.method[:20],
        "path": str(request.scope.get("path", ""))[:_LONGEST],
        "status": exchange.status,
        "seconds": round(time.perf_counter() - exchange.began, 6),
        "actor": exchange.actor,
        "peer": request.client.host if request.client else "",
        "request_id": exchange.request_id,
    }
    log.info("request", extra=facts)
