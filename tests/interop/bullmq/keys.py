"""What is in Redis under a prefix, in a form in which two clients' work can be compared key by key (B2).

Everything is kept: each key with its type, whether it expires, members in their order, scores, fields. What two
clients are free to differ in is masked, and nothing else: the token in a lock, ids of the events' entries, which
library wrote ``meta.version``, the prefix itself, the time before a log line of Onward's, and when jobs were last
looked for that have lost their lock. JSON is compared as JSON, not by its spaces.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import redis

_JSON_FIELDS: Final = frozenset({"data", "opts", "returnvalue", "stacktrace", "parent", "progress"})
_JSON_EVENT_FIELDS: Final = frozenset({"returnvalue", "data"})

_IGNORED: Final = ("stalled-check",)
_TIME: Final = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ")

Keys = dict[str, Any]


def keys(client: redis.Redis, prefix: str) -> Keys:
    """Read all keys below ``prefix:``. The client must decode its answers."""
    keys = sorted(client.scan_iter(f"{prefix}:*", count=1000))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
            pipe.pttl(key)
        facts = pipe.execute()
    kinds, expiries = facts[::2], facts[1::2]
    with client.pipeline(transaction=False) as pipe:
        for key, kind in zip(keys, kinds, strict=True):
            _READ[kind](pipe, key)
        values = pipe.execute()
    found: Keys = {}
    for key, kind, expiry, value in zip(keys, kinds, expiries, values, strict=True):
        name = key.removeprefix(f"{prefix}:")
        if name.rpartition(":")[2] in _IGNORED:
            continue
        normalised = _normalised(name, kind, value)
        found[name] = {"type": kind, "expires": expiry >= 0, "value": _without(prefix, normalised)}
    return found


_READ: Final[dict[str, Any]] = {
    "string": lambda pipe, key: pipe.get(key),
    "list": lambda pipe, key: pipe.lrange(key, 0, -1),
    "set": lambda pipe, key: pipe.smembers(key),
    "zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    "hash": lambda pipe, key: pipe.hgetall(key),
    "stream": lambda pipe, key: pipe.xrange(key),
    "none": lambda pipe, key: pipe.type(key),
}


def _normalised(name: str, kind: str, value: Any) -> Any:
    match kind:
        case "string" if name.endswith(":lock"):
            return "a token"
        case "list" if name.endswith(":logs"):
            return [_TIME.sub("", line) for line in value]
        case "set":
            return sorted(value)
        case "zset":
            return [list(pair) for pair in value]
        case "hash":
            return {
                field: _read(field, text, _JSON_FIELDS) for field, text in value.items() if not _may_differ(name, field)
            }
        case "stream":
            return [
                {field: _read(field, text, _JSON_EVENT_FIELDS) for field, text in values.items()} for _, values in value
            ]
    return value


def _may_differ(name: str, field: str) -> bool:
    return name.endswith("meta") and field in {"version", "library"}


def _read(field: str, text: str, json_fields: frozenset[str]) -> Any:
    if field not in json_fields:
        return text
    try:
        read = json.loads(text)
    except ValueError:
        return text
    return _without_nulls(read) if field == "opts" else read


def _without_nulls(value: Any) -> Any:
    """Leave out what a script of BullMQ's would: Lua's tables have no place for nothing."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return value


def _without(prefix: str, value: Any) -> Any:
    """Take the prefix out of names of keys that are kept as values: parents, children."""
    if isinstance(value, str):
        return value.replace(f"{prefix}:", "<prefix>:")
    if isinstance(value, list):
        return [_without(prefix, inner) for inner in value]
    if isinstance(value, dict):
        return {_without(prefix, key): _without(prefix, inner) for key, inner in value.items()}
    return value


def difference(theirs: Keys, ours: Keys) -> list[str]:
    """Say where two layouts differ, a line each."""
    values = []
    for key in sorted(theirs.keys() | ours.keys()):
        left, right = theirs.get(key), ours.get(key)
        if left == right:
            continue
        if left is None or right is None or left["type"] != "hash" or right["type"] != "hash":
            values.append(f"{key}: theirs {left}, ours {right}")
            continue
        for field in sorted(left["value"].keys() | right["value"].keys()):
            if left["value"].get(field) != right["value"].get(field):
                values.append(f"{key}.{field}: theirs {left['value'].get(field)!r}, ours {right['value'].get(field)!r}")
        if left["expires"] != right["expires"]:
            values.append(f"{key} expires: theirs {left['expires']}, ours {right['expires']}")
    return values
