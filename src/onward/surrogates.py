r"""Reads JSON text that names half a character.

JavaScript writes ``"\ud83d"`` for a string that was cut through an emoji. It is valid JSON syntax and no valid text:
strict readers refuse the whole document. Each half is read as U+FFFD, so that one character is lost and not a job.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_ESCAPES: Final = re.compile(
    r"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def repaired(text: str) -> str:
    """Replace escaped lone surrogates in JSON text; the same text if there are none."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPES.sub(lambda match: r"\ufffd" if match["lone"] else match[0], text)


def decode_json(text: str) -> Any:
    """Read JSON; half characters are read as U+FFFD.

    Raises:
        msgspec.DecodeError: it is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return msgspec.json.decode(repaired(text))
