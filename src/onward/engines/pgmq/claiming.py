"""Takes messages. What makes a claim fair, and keeps it off what others hold, is in ``0005_claiming.sql``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from onward.backoff import Backoff
from onward.clock import MICROSECOND
from onward.engine.values import Claim, ClaimRequest, Claims, Settlement, Token
from onward.engines.pgmq.manner import Manner
from onward.engines.pgmq.notes import note_of
from onward.job import JobRef
from onward.lifecycle import MAX_ATTEMPTS
from onward.postgresql.plans import Row

_backoffs = msgspec.json.Decoder(Backoff)


@dataclass(slots=True)
class Round:
    """Where a worker is on its way round the queues. Kept in memory: each worker goes its own way round."""

    last_name: str = ""


@dataclass(slots=True)
class Batches:
    """The batches that this process has taken, by how much of each is still to be settled.

    What is settled in full is told to the store with the next claim. Where that is missed, a leader finds it out.
    """

    open: dict[int, int] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)

    def took(self, claims: Iterable[Claim]) -> None:
        """Note what was taken."""
        for claim in claims:
            batch = int(claim.token[4])
            self.open[batch] = self.open.get(batch, 0) + 1

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """Note what has ended, or was lost."""
        for settlement in settlements:
            batch = int(settlement.claim.token[4])
            left = self.open.get(batch)
            if left is None:
                continue
            if left > 1:
                self.open[batch] = left - 1
            else:
                del self.open[batch]
                self.finished.append(batch)

    def hand_in(self) -> list[int]:
        """Give what may be told to the store."""
        finished, self.finished = self.finished, []
        return finished


def asked(request: ClaimRequest | None, manner: Manner, round_: Round, batches: Batches) -> list[Any]:
    """Lay a request out for the store. No more are read than there are free hands, so that a read means a run."""
    if request is None:
        return [None, False, [], [], "", 0, 0, False, 1, None, []]
    names, prefixes = named(request.queues)
    return [
        request.worker_id,
        "*" in request.queues,
        names,
        prefixes,
        round_.last_name,
        request.slots,
        request.lease // MICROSECOND,
        request.alone,
        manner.max_reads,
        manner.hows(),
        batches.hand_in(),
    ]


def named(patterns: Iterable[str]) -> tuple[list[str], list[str]]:
    """Tell names from what names begin with. A queue may be called like a pattern: then both are meant."""
    names = [pattern for pattern in patterns if pattern != "*"]
    return names, [pattern[:-1] for pattern in names if pattern.endswith("/*")]


def read_answer(
    rows: Sequence[Row], request: ClaimRequest | None, manner: Manner, round_: Round
) -> tuple[frozenset[tuple[str, int, int]], Claims]:
    """Read what an exchange answered, see the type ``onward.answer``: claims that were lost, and those that are new."""
    lost: list[tuple[str, int, int]] = []
    claims: list[Claim] = []
    suspects_wait = False
    worker = request.worker_id if request is not None else ""
    for row in rows:
        if row[3] is not None:
            claims.append(_claim_of(row, worker, manner))
        elif row[0] is not None:
            lost.append(row[:3])
        else:
            suspects_wait, round_.last_name = row[10], row[12]
    return frozenset(lost), Claims(claims=tuple(claims), suspects_wait=suspects_wait)


def token_of(queue: str, msg_id: int, read_ct: int, worker: str, batch: int, lease: int) -> Token:
    """Name a claim: the first three are the fence, the rest is what we want to know of it later."""
    return (queue, msg_id, read_ct, worker, batch, lease)


def _claim_of(row: Row, worker: str, manner: Manner) -> Claim:
    (
        queue,
        msg_id,
        read_ct,
        batch,
        waited,
        payload,
        note_text,
        lease,
        max_attempts,
        backoff,
        is_suspect,
        crashes,
        _,
    ) = row
    note = note_of(note_text)
    type_, payload = manner.understand(queue, payload, note.type)
    return Claim(
        ref=JobRef(queue, str(msg_id)),
        token=token_of(queue, msg_id, read_ct, worker, batch, lease),
        type=type_,
        payload=payload,
        attempts=note.attempts + 1,
        started=True,
        max_attempts=note.max_attempts or max_attempts or MAX_ATTEMPTS,
        crashes=crashes or 0,
        is_suspect=is_suspect,
        org_id=note.org_id,
        backoff=note.backoff or (None if backoff is None else _backoffs.decode(backoff)),
        waited=waited,
    )
