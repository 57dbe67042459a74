"""Renders a review as one HTML file with inline SVG charts, without scripts or external resources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from oven_agents.review.flagged_proposals import HOW_JUDGED, Flag, Series
from oven_agents.review.report import OPEN_LOOP, Report, describe_changes, describe_repetitions, describe_verdict
from oven_agents.stats.objective import held_out_metric, objective

MAX_CHARTS = 8
"""Maximum number of charts. Others are omitted."""
MAX_ROWS = 500
"""Maximum number of flags and notices in a table. `--json` prints all of them."""
WIDTH = 900
"""Width of a chart in pixels."""
HEIGHT = 180
"""Height of a chart in pixels. Several charts fit on a screen."""
LEFT = 64
"""Left margin in pixels, for the axis labels."""
RIGHT = 8
"""Right margin in pixels."""
TOP = 18
"""Top margin in pixels, for the numbers of flags."""
BOTTOM = 22
"""Bottom margin in pixels, for the ticks."""
MAX_COLUMNS = 400
"""Maximum number of columns in a chart. Each shows the range of a metric over a few ticks."""
VISIBLE_SHARE = 0.99
"""Share of the columns that the axis covers, so that a spike does not flatten the rest."""
CROP_FACTOR = 1.0
"""Distance from the axis, as a multiple of its length, beyond which values are cropped. Closer ones extend the axis."""
MAX_MARKS = 200
"""Maximum number of flags in a chart."""
CSS_CLASSES = {"false alarm": "alarm", "harm": "harm", "unknown": "unknown"}

STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #fff; --soft: #6a737d; --line: #d8dee4; --band: #3b6ea8;
  --harm: #c0392b; --alarm: #b7791f; --unknown: #7d5ba6; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e6e6; --bg: #16191d; --soft: #9aa4ae; --line: #343b43;
  --band: #7fb0e6; --harm: #ff7b6b; --alarm: #e8b64c; --unknown: #c3a2ec; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); margin: 2rem auto;
  max-width: 960px; padding: 0 1rem; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.soft { color: var(--soft); } figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .9rem; }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--line); } .band { fill: var(--band); stroke: var(--band); stroke-width: 1.2; fill-opacity: .45; }
g.harm line { stroke: var(--harm); } g.alarm line { stroke: var(--alarm); } g.unknown line { stroke: var(--unknown); }
svg g.harm text { fill: var(--harm); } svg g.alarm text { fill: var(--alarm); }
svg g.unknown text { fill: var(--unknown); }
b.harm { color: var(--harm); } b.alarm { color: var(--alarm); } b.unknown { color: var(--unknown); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; border-top: 1px solid var(--line); }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
"""


def render(report: Report) -> str:
    """Return the report as an HTML page."""
    title = f"Review of {escape(report.run)}"
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{title}</title><style>{STYLE}</style></head>\n"
    )
    parts = (
        _render_source(report),
        _render_charts(report),
        _render_table(report),
        _render_notices(report),
        _render_agents(report),
        f"<h2>How to read this</h2><p>{escape(HOW_JUDGED)}</p><p>{escape(OPEN_LOOP)}</p>\n",
    )
    return f"{head}<body><h1>{escape(report.summary)}</h1>\n{''.join(parts)}</body></html>\n"


def _render_source(report: Report) -> str:
    notes = [note.strip() for note in report.source_notes]
    if report.assumed_knobs:
        notes.append(f"Knobs assumed, as in an attached run: {', '.join(report.assumed_knobs)}.")
    return "".join(f'<p class="soft">{escape(note)}</p>\n' for note in notes)


def headline_metrics(report: Report) -> list[str]:
    """Return the run's objective, and its held-out metric if it has one."""
    metric = held_out_metric(report.start)
    return [objective(report.start).name, *([metric.name] if metric else [])]


def charted_metrics(report: Report) -> list[str]:
    """Return the metrics with a chart: headline metrics, targets of flags, learning rate and gradient norm."""
    targets = [flag.first.vote.target for flag in report.flags]
    names = dict.fromkeys([*headline_metrics(report), *targets, "learning_rate", "grad_norm"])
    return [name for name in names if name in report.series][:MAX_CHARTS]


def _render_charts(report: Report) -> str:
    charts = [
        render_chart(name, report.series[name], report.flags, *report.tick_range) for name in charted_metrics(report)
    ]
    legend = ""
    if report.flags:
        legend = '<p class="soft">Numbered lines are flags: <b class="harm">harm</b>, <b class="alarm">false alarm</b>'
        limit = f"; the first {MAX_MARKS}" if len(report.flags) > MAX_MARKS else ""
        legend += f', <b class="unknown">unknown</b>{limit}.</p>'
    return "\n".join([legend, *charts]) + "\n"


def _render_table(report: Report) -> str:
    if not report.flags:
        return ""
    rows = "\n".join(_render_row(number, flag) for number, flag in enumerate(report.flags[:MAX_ROWS], 1))
    more = len(report.flags) - MAX_ROWS
    rest = f'<p class="soft">and {more:,} more; --json has them</p>' if more > 0 else ""
    names = "".join(f"<th>{name}</th>" for name in ("", "step", "agent", "change and reason", "decision", "afterwards"))
    return f'<h2>Flags</h2><div class="scroll"><table><tr>{names}</tr>\n{rows}\n</table></div>{rest}\n'


def _render_row(number: int, flag: Flag) -> str:
    times = describe_repetitions(flag)
    repetitions = f'<br/><span class="soft">repeated {escape(times)}</span>' if times else ""
    return (
        f'<tr><td class="number">{number}</td>'
        f'<td class="number">{flag.step:,}<br/><span class="soft">tick {flag.tick:,}</span></td>'
        f"<td>{escape(flag.agent)}</td>"
        f"<td><b>{escape(describe_changes(flag))}</b><br/>{escape(flag.first.vote.rationale)}{repetitions}</td>"
        f'<td>{escape(describe_verdict(flag))}<br/><span class="soft">confidence {flag.confidence:.2f}</span></td>'
        f'<td><b class="{CSS_CLASSES[flag.likely_kind]}">{flag.likely_kind}</b><br/>{escape(flag.afterwards)}</td></tr>'
    )


def _render_notices(report: Report) -> str:
    if not report.notices:
        return ""
    rows = "\n".join(
        f'<tr><td class="number">{step:,}</td><td>{escape(agent)}</td><td>{escape(text)}</td></tr>'
        for step, agent, text in report.notices[:MAX_ROWS]
    )
    more = len(report.notices) - MAX_ROWS
    rest = f'<p class="soft">and {more:,} more; --json has them</p>' if more > 0 else ""
    return f"<h2>Notices</h2><table><tr><th>step</th><th>agent</th><th></th></tr>\n{rows}\n</table>{rest}\n"


def _render_agents(report: Report) -> str:
    rows = [(name, "raised flags") for name in dict.fromkeys(flag.agent for flag in report.flags)]
    rows += [(name, "raised no flags") for name in report.silent_agents]
    rows += [(name, f"cannot fire: {why}") for name, why in sorted(report.cannot_fire.items())]
    rows += [
        (name, f"raised {len(errors)} exceptions, first: {errors[0].strip().splitlines()[-1]}")
        for name, errors in report.tracebacks.items()
    ]
    cells = "\n".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<h2>Agents</h2><table>\n{cells}\n</table>\n"


@dataclass(frozen=True, slots=True)
class _ColumnRange:
    """The range of a metric over the ticks of one column."""

    column: int
    low: float
    high: float


def render_chart(name: str, series: Series, flags: Sequence[Flag], first: int, last: int) -> str:
    """Return a metric's chart with numbered flags from tick `first` to `last`. It is empty without finite values."""
    ranges = _column_ranges(series, first, last)
    if not ranges:
        return ""
    low, high = _axis(ranges)
    span = (high - low) or abs(high) or 1.0

    def x(tick: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (tick - first) / max(1, last - first)

    def y(value: float) -> float:
        share = min(max((value - low) / span, 0.0), 1.0)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    column_width = max(1, last - first) / MAX_COLUMNS
    tops = [f"{x(first + (item.column + 0.5) * column_width):.1f},{y(item.high):.1f}" for item in ranges]
    bottoms = [f"{x(first + (item.column + 0.5) * column_width):.1f},{y(item.low):.1f}" for item in reversed(ranges)]
    grid = "".join(
        f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>'
        for value in dict.fromkeys((low, (low + high) / 2, high))
    )
    marks = "".join(_render_mark(number, flag, x(flag.tick)) for number, flag in enumerate(flags[:MAX_MARKS], 1))
    outside = sum(item.high > high or item.low < low for item in ranges)
    note = f"; {outside} of {len(ranges)} columns extend beyond the axis" if outside else ""
    return (
        f"<figure><figcaption>{escape(name)}{note}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)} over the run">{grid}'
        f'<polygon points="{" ".join(tops + bottoms)}" class="band"/>{marks}'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">tick {first:,}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{last:,}</text></svg></figure>'
    )


def _render_mark(number: int, flag: Flag, x: float) -> str:
    tooltip = escape(f"{number}: {flag.agent}, step {flag.step:,}: {flag.first.vote.rationale}"[:200])
    return (
        f'<g class="{CSS_CLASSES[flag.likely_kind]}"><title>{tooltip}</title>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text x="{x:.1f}" y="{TOP - 5}" text-anchor="middle">{number}</text></g>'
    )


def _column_ranges(series: Series, first: int, last: int) -> list[_ColumnRange]:
    extremes: dict[int, tuple[float, float]] = {}
    for tick, value in zip(series.ticks, series.values, strict=True):
        if math.isfinite(value):
            column = min(MAX_COLUMNS - 1, MAX_COLUMNS * (tick - first) // max(1, last - first))
            low, high = extremes.get(column, (value, value))
            extremes[column] = min(low, value), max(high, value)
    return [_ColumnRange(column, low, high) for column, (low, high) in sorted(extremes.items())]


def _axis(ranges: Sequence[_ColumnRange]) -> tuple[float, float]:
    """Return the lowest and the highest value on the axis, without those beyond VISIBLE_SHARE and CROP_FACTOR."""
    lows, highs = sorted(item.low for item in ranges), sorted(item.high for item in ranges)
    outside_count = int((1 - VISIBLE_SHARE) * len(ranges))
    low, high = lows[outside_count], highs[len(highs) - 1 - outside_count]
    margin = CROP_FACTOR * (high - low)
    if not margin or lows[0] >= low - margin:
        low = lows[0]
    if not margin or highs[-1] <= high + margin:
        high = highs[-1]
    return low, high
