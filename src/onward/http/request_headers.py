"""Reads single headers of a request: every request is asked for several, and Starlette's mapping is slow."""

from __future__ import annotations

from starlette.requests import Request


def header(request: Request, name: bytes) -> str | None:
    """Return the first header of a name, which is given in lower case; None: there is none."""
    for known, value in request.scope["headers"]:
        if known == name:
            text: str = value.decode("latin-1")
            return text
    return None


def header_values(request: Request, name: bytes) -> list[str]:
    """Return all headers of a name, which is given in lower case."""
    return [value.decode("latin-1") for known, value in request.scope["headers"] if known == name]
