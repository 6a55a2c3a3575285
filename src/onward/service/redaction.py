"""Hides secrets in everything that is shown (S6): values by the names of their keys, and the same values in text.

A payload names its secrets, so the values found there are hidden wherever else they occur: in errors, tracebacks,
progress, log lines and the result. Text is also searched for what secrets look like (``password=…``, ``Bearer …``,
``//user:password@``), because an error may quote what no payload has.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from onward import bulk_operation
from onward.engine.values import LogLine
from onward.job import FailedAttempt, Job

REDACTED: Final = "[redacted]"
DEFAULT_KEYS: Final = (
    "password", "passwd", "passphrase", "secret", "token", "authorization", "api_key", "private_key", "credential",
    "card", "cookie", "session",
)  # fmt: skip
"""Keys whose values are hidden in every App. A key of several words is hidden if one of them, or some in a row, is
listed: ``card`` hides ``creditCard`` and ``card_number``, and not ``discard``."""
ALL: Final = "*"

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_SHORTEST: Final = 4
"""Characters of a value that is hidden in text too. Shorter ones occur by accident."""
_MOST_VALUES: Final = 200
"""Values of one payload that are looked for in text."""
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_URL_PASSWORD: Final = re.compile(r"(://[^\s/:@]*:)[^\s/@]+@")


class Redactor:
    """Hides what is not to be shown."""

    def __init__(self, keys: Iterable[str] = (), *, tasks: Mapping[str, Sequence[str]] | None = None) -> None:
        """Set up.

        Args:
            keys: names of keys, besides :data:`DEFAULT_KEYS`.
            tasks: further ones, by task.
        """
        self._keys = Keys((*DEFAULT_KEYS, *keys))
        self._tasks = {
            task: Keys((*DEFAULT_KEYS, *keys, *(name for name in names if name != ALL)), everything=ALL in names)
            for task, names in (tasks or {}).items()
            if names
        }

    def keys_of(self, type: str | None) -> Keys:
        """Return the keys that are hidden in jobs of a task."""
        return self._keys if type is None else self._tasks.get(type, self._keys)

    def job(self, job: Job) -> Job:
        """Return a job as it may be shown."""
        keys = self.keys_of(job.type)
        secrets = keys.values_in(job.payload)
        secrets |= keys.values_in(job.result)
        text = keys.text_redactor(secrets)
        return msgspec.structs.replace(
            job,
            payload=_own_names(job, keys.redact(job.payload, text)),
            result=keys.redact(job.result, text),
            last_error=text(job.last_error),
            errors=tuple(self._attempt(attempt, text) for attempt in job.errors),
            progress_message=text(job.progress_message),
            idempotency_key=text(job.idempotency_key),
            dedupe_key=self._dedupe_key(job, keys, text),
        )

    def payload(self, type: str, payload: Any) -> Any:
        """Return the payload of a job that is not stored as a job, such as a schedule's."""
        keys = self.keys_of(type)
        return keys.redact(payload, keys.text_redactor(keys.values_in(payload)))

    def lines(self, job: Job, lines: Sequence[LogLine]) -> list[LogLine]:
        """Return the log lines of a job."""
        keys = self.keys_of(job.type)
        text = keys.text_redactor(keys.values_in(job.payload) | keys.values_in(job.result))
        return [msgspec.structs.replace(line, line=text(line.line) or "") for line in lines]

    def text(self, type: str | None, text: str | None, job: Job | None = None) -> str | None:
        """Return text about a job: with the job's own values hidden, where the job is known."""
        keys = self.keys_of(type)
        secrets = frozenset() if job is None else keys.values_in(job.payload) | keys.values_in(job.result)
        return keys.text_redactor(secrets)(text)

    def _attempt(self, attempt: FailedAttempt, text: TextRedactor) -> FailedAttempt:
        return msgspec.structs.replace(attempt, message=text(attempt.message) or "", traceback=text(attempt.traceback))

    @staticmethod
    def _dedupe_key(job: Job, keys: Keys, text: TextRedactor) -> str | None:
        # It contains the payload itself where the arguments make the key (H4).
        if job.dedupe_key is None:
            return None
        head = f"{job.type}::{job.org_id or 'global'}::"
        if job.dedupe_key.startswith(head):
            try:
                arguments = msgspec.json.decode(job.dedupe_key[len(head) :])
            except (msgspec.DecodeError, RecursionError):
                return text(job.dedupe_key)
            return head + msgspec.json.encode(keys.redact(arguments, text)).decode()
        return text(job.dedupe_key)


def _own_names(job: Job, shown: Any) -> Any:
    """Put the actor of a change by filter back: ``token:ci`` reads like an assignment, and is a name."""
    if job.type == bulk_operation.TYPE:
        with contextlib.suppress(KeyError, TypeError):  # a payload by hand
            plan, audit = job.payload["plan"], job.payload["plan"]["audit"]
            shown_audit = shown["plan"]["audit"] | {"actor": audit["actor"]}
            return {"plan": shown["plan"] | {"audit": shown_audit, "token_id": plan["token_id"]}}
    return shown


class Keys:
    """Names of keys whose values are hidden."""

    def __init__(self, names: Sequence[str], *, everything: bool = False) -> None:
        self._names = {tuple(_words(name)) for name in names}
        self._joined = {"".join(name) for name in self._names}
        self._everything = everything
        self._known: dict[str, bool] = {}
        alternatives = "|".join(r"[\W_]*".join(map(re.escape, name)) for name in sorted(self._names, reverse=True))
        # "password": "x" and password=x and Password is x, up to the end of the value.
        self._assigned = re.compile(
            rf"""(?ix) ( (?:{alternatives}) s? [\w-]* ["']? \s* (?:=>|:=|[:=]) \s* )
                 ( \[redacted\] | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [^\s,;&"')\]}}]+ )"""
        )

    def hides(self, key: str) -> bool:
        """Whether the value of a key is hidden."""
        known = self._known.get(key)
        if known is None:
            if len(self._known) > 10_000:  # keys are untrusted input
                self._known.clear()
            known = self._known[key] = self._matches(key)
        return known

    def _matches(self, key: str) -> bool:
        words = [_singular(word) for word in _words(key)]
        if any(word in self._joined for word in words):
            return True
        return any(
            tuple(words[at : at + len(name)]) == name or "".join(words[at : at + 2]) == "".join(name)
            for name in self._names
            for at in range(len(words) - len(name) + 1)
        )

    def redact(self, value: Any, text: TextRedactor) -> Any:
        """Return a JSON value without what is hidden."""
        if self._everything:
            return None if value is None else REDACTED
        return self._redact(value, text)

    def _redact(self, value: Any, text: TextRedactor) -> Any:
        if isinstance(value, dict):
            return {
                text(key) or "": (REDACTED if member is not None else None) if self.hides(key)
                else self._redact(member, text)
                for key, member in value.items()
            }  # fmt: skip
        if isinstance(value, list):
            return [self._redact(member, text) for member in value]
        return text(value) if isinstance(value, str) else value

    def values_in(self, value: Any) -> frozenset[str]:
        """Collect the texts that are hidden in a JSON value, as they would occur elsewhere."""
        found: set[str] = set()
        self._collect(value, found, hidden=self._everything)
        return frozenset(found)

    def _collect(self, value: Any, found: set[str], *, hidden: bool) -> None:
        if len(found) >= _MOST_VALUES:
            return
        if isinstance(value, dict):
            for key, member in value.items():
                self._collect(member, found, hidden=hidden or self.hides(key))
        elif isinstance(value, list):
            for member in value:
                self._collect(member, found, hidden=hidden)
        elif hidden and value is not None and not isinstance(value, bool):
            shown = str(value)
            if len(shown) >= _SHORTEST:
                found.add(shown)
                # As repr() and json.dumps() write it: a traceback quotes arguments so.
                found.add(repr(shown)[1:-1])
                found.add(msgspec.json.encode(shown).decode()[1:-1])

    def text_redactor(self, secrets: frozenset[str]) -> TextRedactor:
        """Make a function that hides these values, and what looks like a secret, in text."""
        return TextRedactor(self._assigned, secrets)


class TextRedactor:
    """Hides values in text."""

    def __init__(self, assigned: re.Pattern[str], secrets: frozenset[str]) -> None:
        self._assigned = assigned
        # The longest first: one may contain another.
        self._secrets = sorted(secrets, key=len, reverse=True)

    def __call__(self, text: str | None) -> str | None:
        """Return the text without them."""
        if not text:
            return text
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, REDACTED)
        if " " in text:  # before assignments: the first word of "Authorization: Bearer …" is not the secret
            text = _BEARER.sub(rf"\1 {REDACTED}", text)
        if "=" in text or ":" in text:
            text = self._assigned.sub(rf"\1{REDACTED}", text)
            if "://" in text:
                text = _URL_PASSWORD.sub(rf"\1{REDACTED}@", text)
        return text


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(key)]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
