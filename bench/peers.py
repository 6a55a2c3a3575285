"""Onward beside other queues, on SQLite, PostgreSQL and Redis: the same no-op jobs, one stop-watch, taking turns.

    python -m bench.peers [--jobs 20000] [--rounds 5] [--only NAME …] [--store NAME …] [--folder FOLDER] [--keep]

One worker process each. A round has every queue on every store once, each on an empty store, in its own process.
Peers get virtualenvs in the folder (BENCH_DIR, else one under the system's temporary folder), or come from npm; see
``roster.py`` for how each is tuned. Prints a table; ``--keep`` makes it the one that the README shows
(``docs/peers.json``, ``docs/peers.svg``).
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psycopg

from bench import chart, table
from bench.roster import PEERS, Peer, Store
from onward.bench import scenarios
from onward.bench.environment_postgres import PostgresEnvironment
from onward.bench.handlers import Handler
from onward.bench.isolated import run_isolated
from onward.bench.statistics import Measurement, run_interleaved
from onward.bench.verification import is_verified
from onward.worker.identity import onward_version
from tests.servers.redis import RedisServer

DOCS = Path(__file__).parents[1] / "docs"
CONCURRENCY = {Store.SQLITE: 100, Store.POSTGRES: 100, Store.REDIS: 50}
"""How many jobs Onward's worker runs at once: its default, and on Redis as many as the others are told."""
Fresh = Callable[[], str]
"""Gives the address of an empty store."""


class PeerStores:
    """One store of each kind, and how Onward does on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_verified = True
        self.what: dict[str, str] = {}
        self._fresh: dict[Store, Fresh] = {}

    def fresh(self, store: Store) -> str:
        """Give the address of an empty store."""
        return self._fresh[store]()

    @contextmanager
    def opened(self, stores: list[Store]) -> Iterator[None]:
        """Have the servers run for the length of a block."""
        with ExitStack() as stack:
            if Store.SQLITE in stores:
                self._fresh[Store.SQLITE] = self._fresh_sqlite
                self.what[Store.SQLITE] = f"SQLite {sqlite3.sqlite_version}"
            if Store.POSTGRES in stores:
                environment = stack.enter_context(PostgresEnvironment(None))
                url = environment.fresh()
                with psycopg.connect(url) as connection:
                    number = connection.info.server_version
                environment.remove(url)
                self._fresh[Store.POSTGRES] = partial(_fresh_postgres, environment, [])
                self.what[Store.POSTGRES] = f"PostgreSQL {number // 10_000}.{number % 10_000}, fsync on"
            if Store.REDIS in stores:
                server = stack.enter_context(RedisServer(port=True))
                with server.client() as client:
                    self.what[Store.REDIS] = f"Redis {client.info('server')['redis_version']}, in memory"
                self._fresh[Store.REDIS] = partial(_fresh_redis, server)
            yield

    def _fresh_sqlite(self) -> str:
        for file in self.folder.glob("peers.db*"):
            file.unlink()
        return str(self.folder / "peers.db")

    def onward(self, store: Store, jobs: int) -> Measurement:
        """Fill an empty store, and drain it with Onward."""
        address = self.fresh(store)
        url = f"sqlite:///{address}" if store is Store.SQLITE else address
        run_isolated(scenarios.fill, url, Handler.ASYNC, jobs)
        drained = run_isolated(scenarios.drain, url, jobs, CONCURRENCY[store])
        self.is_verified &= len(drained.ran) == jobs and is_verified(url, drained.ran)
        return drained.measurement


def _fresh_postgres(environment: PostgresEnvironment, used: list[str]) -> str:
    while used:
        environment.remove(used.pop())
    used.append(environment.fresh())
    return used[0]


def _fresh_redis(server: RedisServer) -> str:
    with server.client() as client:
        client.flushall()
    return server.tcp_url


def compare(folder: Path, stores: list[Store], names: list[str], jobs: int, rounds: int) -> table.Table:
    """Let all take turns, and say what was found."""
    peer_stores = PeerStores(folder)
    peers = [peer for peer in PEERS if peer.store in stores and (not names or peer.name in names)]
    versions = {(peer.store, peer.name): peer.install(folder) for peer in peers}
    how = {(peer.store, peer.name): peer.how for peer in peers}
    with peer_stores.opened(stores):
        measures: dict[tuple[Store, str], Callable[[], Measurement]] = {}
        for store in stores:
            measures[store, table.ONWARD] = partial(peer_stores.onward, store, jobs)
        for peer in peers:
            measures[peer.store, peer.name] = partial(_drained, peer_stores, peer, jobs)
        variants: Mapping[str, Callable[[], Measurement]] = {
            f"{name} on {store}": do for (store, name), do in measures.items()
        }
        measurements = run_interleaved(rounds, variants, lambda line: print(line, file=sys.stderr, flush=True))
    rows = [
        table.Row(
            store,
            name,
            versions.get((store, name), onward_version()),
            round(measurements.rate(variant), 1),
            round(measurements.cpu_per_job(variant) * 1e6, 1),
            how.get((store, name), f"{CONCURRENCY[store]} at once, results kept"),
        )
        for (store, name), variant in zip(measures, variants, strict=True)
    ]
    return table.Table(
        date=datetime.now(tz=UTC).date().isoformat(),
        machine=table.machine(),
        rounds=rounds,
        stores=peer_stores.what,
        rows=tuple(rows),
        verified=peer_stores.is_verified,
        load=round(os.getloadavg()[0], 2),
    )


def _drained(peer_stores: PeerStores, peer: Peer, jobs: int) -> Measurement:
    return peer.drain(peer_stores.folder, peer_stores.fresh(peer.store), jobs)


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000, help="for the fast ones; others get fewer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="a peer's name; can be given more than once")
    parser.add_argument("--store", action="append", type=Store, help="one of SQLite, PostgreSQL and Redis; likewise")
    default = os.environ.get("BENCH_DIR") or str(Path(tempfile.gettempdir()) / "onward-peers")
    parser.add_argument("--folder", type=Path, default=Path(default), help="where virtualenvs are kept")
    parser.add_argument("--keep", action="store_true", help="keep the table, and draw it for the README")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    found = compare(
        given.folder.absolute(),
        [store for store in Store if not given.store or store in given.store],
        given.only,
        given.jobs,
        given.rounds,
    )
    print(found.text())
    if given.keep:
        table.write(found, DOCS / "peers.json")
        (DOCS / "peers.svg").write_text(chart.draw(found), encoding="utf-8")
    sys.exit(0 if found.verified else 1)


if __name__ == "__main__":
    main()
