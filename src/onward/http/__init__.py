"""The HTTP API as an ASGI application: ``onward.http.asgi(app)``. Needs the extra ``server``."""

from __future__ import annotations

from onward.http.application import asgi
from onward.http.names import decode_name, encode_name
from onward.http.settings import TrustedProxy

__all__ = ["TrustedProxy", "asgi", "decode_name", "encode_name"]
