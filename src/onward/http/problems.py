"""Errors as problem documents (RFC 9457): a stable ``type``, the field, the rule, the remedy; never a stack trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from onward.errors import (
    Conflict,
    EngineNotIncluded,
    InvalidValue,
    NotAuthenticated,
    NotFound,
    OnwardError,
    PayloadTooLarge,
    PermissionDenied,
    SchemaChanged,
    SchemaTooNew,
    SchemaTooOld,
    StoreBusy,
    StoreUnavailable,
    Unsupported,
)

MEDIA_TYPE: Final = "application/problem+json"
PREFIX: Final = "urn:onward:problem:"
RETRY_AFTER: Final = 5
"""Seconds after which a client should try again when the store is down."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong."""

    type: str
    """Stable: compare this, not the text."""
    title: str
    status: int
    detail: str = ""
    field: str | None = None
    rule: str | None = None
    remedy: str | None = None
    request_id: str | None = None


class HttpError(Exception):
    """A request that HTTP itself refuses."""

    def __init__(
        self,
        status: int,
        slug: str,
        title: str,
        detail: str = "",
        *,
        field: str | None = None,
        rule: str | None = None,
        remedy: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(title)
        self.headers = dict(headers or {})
        self.problem = Problem(
            type=PREFIX + slug, title=title, status=status, detail=detail, field=field, rule=rule, remedy=remedy
        )


STATUSES: Final = {
    400: "The request is not valid.",
    401: "No valid credential was given.",
    403: "The caller may not do this.",
    404: "Nothing has that name, or it is out of the caller's scope.",
    405: "The resource does not have this method.",
    408: "The request took too long to arrive.",
    409: "The present status does not allow it.",
    413: "The request is too large.",
    415: "The media type is not accepted.",
    421: "The server does not answer for this host.",
    429: "Too many requests.",
    500: "The server has failed; the request may have been done.",
    501: "The store cannot do this.",
    503: "The store does not answer.",
}
"""All statuses of problem documents, for the OpenAPI document."""


def http_error(error: Exception) -> HttpError:
    """Say in terms of HTTP what an error means."""
    match error:
        case HttpError():
            return error
        case PayloadTooLarge():
            return HttpError(413, "too-large", "too large", str(error), field=error.field, rule=error.rule)
        case InvalidValue():
            return HttpError(400, "invalid-value", "invalid value", str(error), field=error.field, rule=error.rule)
        case NotAuthenticated():
            return HttpError(
                401,
                "not-authenticated",
                "not authenticated",
                str(error),
                remedy="send a valid token: Authorization: Bearer onw_…",
                headers={"WWW-Authenticate": 'Bearer realm="onward"'},
            )
        case PermissionDenied():
            return HttpError(403, "permission-denied", "permission denied", str(error), remedy=error.remedy or None)
        case NotFound():
            return HttpError(404, "not-found", "not found", str(error))
        case Conflict():
            return HttpError(409, "conflict", "conflict", str(error))
        case Unsupported():
            return HttpError(
                501, "unsupported", f"{error.engine} does not offer {error.feature}", error.note, field=error.feature
            )
        case SchemaTooOld() | SchemaTooNew() | SchemaChanged() | EngineNotIncluded():
            return _unavailable("the schema of the store does not fit this server", "run onward doctor")
        case StoreUnavailable():
            # Neither addresses nor the driver's words: the caller need not be an administrator.
            busy = isinstance(error, StoreBusy)
            return _unavailable("the store is busy" if busy else "the store does not answer", "try again later")
        case OnwardError():
            return HttpError(400, "refused", "refused", str(error))
        case _:
            return HttpError(500, "internal", "internal error", remedy="look for the request_id in the server's log")


def _unavailable(detail: str, remedy: str) -> HttpError:
    headers = {"Retry-After": str(RETRY_AFTER)}
    return HttpError(503, "store-unavailable", "store unavailable", detail, remedy=remedy, headers=headers)
