"""The chart of peers: drawn from a table, of all whom the README names, and saying where and when it was taken."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from bench import chart, table
from bench.roster import HERE, PEERS, Peer, Store
from bench.table import ONWARD, Row, Table

DOCS = Path(__file__).parents[1] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
NAMED = {
    Store.SQLITE: {"huey"},
    Store.POSTGRES: {
        "procrastinate",
        "pgqueuer",
        "chancy",
        "SAQ",
        "pg-boss",
        "Graphile Worker (default)",
        "Graphile Worker (local queue)",
    },
    Store.REDIS: {"BullMQ (Node)", "BullMQ (Python)", "huey", "taskiq", "dramatiq", "SAQ", "arq", "celery", "rq"},
}
TABLE = Table(
    date="2026-11-16",
    machine="2 cores of Some & Other CPU, Python 3.11.7",
    rounds=5,
    stores={"SQLite": "SQLite 3.45", "Redis": "Redis 6.2, in memory"},
    rows=(
        Row("SQLite", "huey", "3.5.4", 1000.0, 700.0, "one thread"),
        Row("SQLite", ONWARD, "0.1.0", 20000.0, 40.0),
        Row("Redis", ONWARD, "0.1.0", 10000.0, 45.0),
        Row("Redis", "<slow>", "1", 250.0, 900.0),
        Row("Redis", "fast", "2", 12500.0, 30.0),
    ),
    verified=True,
    load=0.5,
)


def texts(picture: str) -> list[str]:
    return ["".join(text.itertext()) for text in ET.fromstring(picture).iter(f"{SVG}text")]


def test_every_peer_that_is_promised_is_measured():
    assert {store: {peer.name for peer in PEERS if peer.store is store} for store in Store} == NAMED
    for peer in PEERS:
        assert (HERE / peer.script).exists()
        assert peer.how, f"{peer.name}: how is it tuned?"


def test_a_bar_is_as_long_as_its_figure_says_and_stands_under_its_store():
    picture = chart.draw(TABLE)
    bars = {float(bar.get("y", "")): bar for bar in ET.fromstring(picture).iter(f"{SVG}rect")}
    lengths = [float(bars[y].get("width", "")) for y in sorted(bars)]
    assert lengths == [400.0, 20.0, 200.0, 250.0, 5.0]
    assert [bars[y].get("class") for y in sorted(bars)] == ["onward", "bar", "onward", "bar", "bar"]
    shown = [text.split(" ")[0] for text in texts(picture)]
    assert [name for name in shown if name in {ONWARD, "huey", "SQLite", "Redis", "fast", "<slow>"}] == [
        "SQLite",
        ONWARD,
        "huey",
        "Redis",
        ONWARD,
        "fast",
        "<slow>",
    ]


def test_a_picture_says_how_many_times_as_fast_and_when_and_on_what_it_was_taken():
    told = " ".join(texts(chart.draw(TABLE)))
    assert "Onward is 20 ×" in told
    assert "Onward is 0.8 ×" in told
    for fact in (TABLE.date, TABLE.machine, "3.5.4", "medians of 5", "SQLite 3.45", "load average 0.5"):
        assert fact in told
    assert "20\u2009000" in told


def test_the_same_table_is_the_same_picture_for_light_pages_and_dark_ones():
    again = msgspec.json.decode(msgspec.json.encode(TABLE), type=Table)
    assert chart.draw(again) == chart.draw(TABLE)
    assert "prefers-color-scheme: dark" in chart.draw(TABLE)


def test_a_table_in_words_has_every_figure():
    text = TABLE.text()
    for row in TABLE.rows:
        assert re.search(rf"{re.escape(row.name)} {row.version} +{row.per_s:,.0f}/s", text)
    assert re.search(r"<slow> 1 .* 40\.0 x", text)


def test_a_machine_is_described_and_not_named():
    assert "cores" in table.machine()
    assert socket.gethostname() not in table.machine()


def test_the_readme_shows_the_table_that_was_kept():
    kept = table.read(DOCS / "peers.json")
    assert kept.verified
    assert {store: {row.name for row in kept.of(store)} for store in Store} == {
        store: {ONWARD, *names} for store, names in NAMED.items()
    }
    assert (DOCS / "peers.svg").read_text(encoding="utf-8") == chart.draw(kept)
    assert "docs/peers.svg" in (DOCS.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.name} on {peer.store}")
def test_which_version_of_a_peer_is_installed_is_said(peer: Peer):
    queue, *_ = peer.packages
    assert re.search(r"==\d|@\d", queue)
