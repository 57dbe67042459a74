"""A review as text of at most 80 columns."""

from __future__ import annotations

from oven_agents.review.flagged_proposals import JUDGED, Flag
from oven_agents.review.report import OPEN_LOOP, Report, changes, times, verdict
from oven_core.terminal_text import wrapped

MOST = 30
"""Flags that are shown; --json and --html have more."""
NOTICES = 8
"""Notices that are shown; --json and --html have more."""


def lines(report: Report) -> list[str]:
    out = wrapped(report.gist)
    for line in report.lines:
        out += wrapped(line)
    if report.assumed:
        out += wrapped(
            f"knobs assumed, as an attached run would have them: {', '.join(report.assumed)}; --knob NAME=VALUE adds "
            "others, --no-assume takes none"
        )
    for number, flag in enumerate(report.flags[:MOST], 1):
        out += ["", *_flag(number, flag)]
    if len(report.flags) > MOST:
        out += ["", *wrapped(f"and {len(report.flags) - MOST} more; --json and --html FILE have them")]
    out.append("")
    for step, agent, text in report.notices[:NOTICES]:
        out += wrapped(f"notice at step {step:,}, {agent}: {text}", hang=2)
    if len(report.notices) > NOTICES:
        out += [f"and {len(report.notices) - NOTICES} more notices; --json has them"]
    if report.silent:
        out += wrapped(f"listened and flagged nothing: {', '.join(report.silent)}")
    if report.cannot_fire:
        out.append("could not fire:")
        for name, reason in sorted(report.cannot_fire.items()):
            out += wrapped(f"  {name}: {reason}", hang=4)
    for name, problems in sorted(report.raised.items()):
        out += wrapped(f"{name} raised {len(problems)} times, first: {problems[0].strip().splitlines()[-1]}")
    if report.flags:
        out += ["", *wrapped(JUDGED)]
    return [*out, *([] if report.flags else [""]), *wrapped(OPEN_LOOP)]


def _flag(number: int, flag: Flag) -> list[str]:
    out = wrapped(f"{number}. step {flag.step:,} (tick {flag.tick:,}), {flag.agent}: {changes(flag)}", hang=3)
    parts = {
        "why": flag.first.vote.rationale,
        "confidence": f"{flag.confidence:.2f}",
        "decision": verdict(flag),
        "said": times(flag),
        "afterwards": f"{flag.likely}: {flag.afterwards}",
    }
    for name, lines in parts.items():
        if lines:
            out += wrapped(f"   {name + ':':<12}{lines}", hang=12)
    return out
