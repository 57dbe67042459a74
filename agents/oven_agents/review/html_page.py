"""Renders a review as one HTML file with inline SVG charts, without scripts or external resources."""

from __future__ import annotations

from html import escape

from oven_agents.review.chart import Mark, render_chart
from oven_agents.review.flagged_proposals import HOW_JUDGED, Flag
from oven_agents.review.page import render_page
from oven_agents.review.report import OPEN_LOOP, Report, describe_changes, describe_repetitions, describe_verdict
from oven_agents.stats.objective import held_out_metric, objective

MAX_CHARTS = 8
"""Maximum number of charts. Others are omitted."""
MAX_ROWS = 500
"""Maximum number of flags and notices in a table. `--json` prints all of them."""
MAX_MARKS = 200
"""Maximum number of flags in a chart."""
CSS_CLASSES = {"false alarm": "alarm", "harm": "harm", "unknown": "unknown"}


def render(report: Report) -> str:
    """Return the report as an HTML page."""
    parts = (
        _render_source(report),
        _render_charts(report),
        _render_table(report),
        _render_notices(report),
        _render_agents(report),
        f"<h2>How to read this</h2><p>{escape(HOW_JUDGED)}</p><p>{escape(OPEN_LOOP)}</p>\n",
    )
    return render_page(f"Review of {escape(report.run)}", escape(report.summary), "".join(parts))


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
    marks = [_mark(number, flag) for number, flag in enumerate(report.flags[:MAX_MARKS], 1)]
    charts = [render_chart(name, report.series[name], marks, *report.tick_range) for name in charted_metrics(report)]
    legend = ""
    if report.flags:
        legend = '<p class="soft">Numbered lines are flags: <b class="harm">harm</b>, <b class="alarm">false alarm</b>'
        limit = f"; the first {MAX_MARKS}" if len(report.flags) > MAX_MARKS else ""
        legend += f', <b class="unknown">unknown</b>{limit}.</p>'
    return "\n".join([legend, *charts]) + "\n"


def _mark(number: int, flag: Flag) -> Mark:
    text = f"{number}: {flag.agent}, step {flag.step:,}: {flag.first.vote.rationale}"
    return Mark(str(number), flag.tick, CSS_CLASSES[flag.likely_kind], text)


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
