"""Draws a table of peers as bars, in plain SVG: the same table is the same picture, byte for byte.

    python -m bench.chart          draws docs/peers.json again, into docs/peers.svg

Colours are chosen for a light page, and again for a dark one: whoever shows the picture says which it is.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from bench import table
from bench.table import ONWARD, Row, Table

_WIDTH = 860
_NAMES = 270
"""Where bars begin."""
_BARS = 400
"""How long the longest is."""
_LINE = 22
_BAR = 14
_HEAD = 44
_GAP = 34
_FOOT = 46
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.store { font-weight: 600; }
.quiet { fill: #59636e; font-size: 12px; }
.number { font-variant-numeric: tabular-nums; }
.bar { fill: #a8b1bb; }
.onward { fill: #1f6feb; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .bar { fill: #59636e; }
  .onward { fill: #4493f8; }
}
""".strip()


def draw(found: Table) -> str:
    """Draw it."""
    longest = max(row.per_s for row in found.rows)
    parts: list[str] = []
    y = _HEAD
    for store, what in found.stores.items():
        parts.append(f'<text class="store" x="0" y="{y}">{escape(what)}</text>')
        y += 10
        for row in found.of(store):
            parts += _bar(found, row, y, round(_BARS * row.per_s / longest, 1))
            y += _LINE
        y += _GAP
    height = y - _GAP + _FOOT
    foot = [
        f"One worker process each, every job accounted for; medians of {found.rounds} rounds, in turns. {found.date}.",
        f"{found.machine}, load average {found.load:.1f}.",
    ]
    for number, line in enumerate(foot):
        parts.append(f'<text class="quiet" x="0" y="{height - 20 + 16 * number}">{escape(line)}</text>')
    title = "No-op jobs run per second (longer is better)"
    box = f'viewBox="-8 0 {_WIDTH} {height + 8}" width="{_WIDTH}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{title}">',
            f"<style>\n{_STYLE}\n</style>",
            f'<text class="title" x="0" y="18">{title}</text>',
            *parts,
            "</svg>\n",
        ]
    )


def _bar(found: Table, row: Row, y: int, length: float) -> list[str]:
    is_ours = row.name == ONWARD
    kind = "onward" if is_ours else "bar"
    rate = f"{row.per_s:,.0f}".replace(",", "\u2009")
    times = "" if is_ours else f'<tspan class="quiet" dx="8">Onward is {_times(found.times(row))} ×</tspan>'
    base = y + _BAR - 3
    return [
        f'<text x="16" y="{base}">{escape(row.name)} <tspan class="quiet">{escape(row.version)}</tspan></text>',
        f'<rect class="{kind}" x="{_NAMES}" y="{y}" width="{length}" height="{_BAR}" rx="2"/>',
        f'<text class="number" x="{_NAMES + length + 6:g}" y="{base}">{rate}{times}</text>',
    ]


def _times(times: float) -> str:
    return f"{times:.1f}" if times < 10 else f"{times:.0f}"


if __name__ == "__main__":
    docs = Path(__file__).parents[1] / "docs"
    (docs / "peers.svg").write_text(draw(table.read(docs / "peers.json")), encoding="utf-8")
