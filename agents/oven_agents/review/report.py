"""The report of a review, with output as JSON data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oven_agents.review.flagged_proposals import JUDGED, Flag, Series
from oven_agents.stats.objective import held_out, objective
from oven_core.mesh.actuator_values import show
from oven_core.protocol.messages import RunStarted
from oven_core.terminal_text import counted, wrapped

OPEN_LOOP = (
    "Open loop: the recorded run continues unchanged, whatever is decided here. After the first adopted change, it "
    "would have gone another way. No flag says that its change would have helped."
)


@dataclass
class Report:
    """The findings of a review. `measured` has the series for charts and judgements, by metric."""

    run: str
    start: RunStarted
    ticks: int
    steps: tuple[int, int]
    span: tuple[int, int]
    """First and last tick."""
    agents: Sequence[str]
    flags: list[Flag]
    cannot_fire: Mapping[str, str]
    raised: Mapping[str, list[str]]
    """Agent → tracebacks of its own code."""
    notices: Sequence[tuple[int, str, str]] = ()
    """(step, agent, text) of agents' notices to people."""
    assumed: Sequence[str] = ()
    """Knobs that the log lacks and that were announced for the review."""
    lines: Sequence[str] = ()
    """Notes on the source."""
    measured: Mapping[str, Series] = field(default_factory=dict)

    @property
    def silent(self) -> list[str]:
        """Agents that were able to flag something but did not."""
        spoke = {flag.agent for flag in self.flags}
        return [name for name in self.agents if name not in spoke and name not in self.cannot_fire]

    @property
    def likely(self) -> Counter[str]:
        return Counter(flag.likely for flag in self.flags)

    @property
    def adopted(self) -> int:
        return sum(flag.adopted for flag in self.flags)

    @property
    def gist(self) -> str:
        able = len(self.agents) - len(self.cannot_fire)
        able_agents = f"{able} of {len(self.agents)} agents"
        over = f"{counted(self.ticks, 'tick')} (steps {self.steps[0]:,} to {self.steps[1]:,})"
        if not able:
            return f"{self.run}: no agent could judge this run of {over}; why is below"
        if not self.flags:
            return f"{self.run}: nothing flagged in {over}; {able_agents} could judge it"
        likely = self.likely
        parts = [
            f"{likely['false alarm']} look{'s' * (likely['false alarm'] == 1)} like a false alarm",
            f"after {likely['harm']} the run got worse",
            f"{likely['unknown']} cannot be told",
        ]
        return (
            f"{self.run}: {counted(len(self.flags), 'flag')} in {over}, {self.adopted} would have been adopted; "
            f"{', '.join(parts)}; {able_agents} could judge it"
        )

    def plain(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "gist": self.gist,
            "ticks": self.ticks,
            "first_step": self.steps[0],
            "last_step": self.steps[1],
            "agents": list(self.agents),
            "flags": [self._flag(flag) for flag in self.flags],
            "notices": [{"step": step, "agent": agent, "text": text} for step, agent, text in self.notices],
            "adopted": self.adopted,
            "false_alarms": self.likely["false alarm"],
            "followed_by_harm": self.likely["harm"],
            "unknown": self.likely["unknown"],
            "silent": self.silent,
            "cannot_fire": dict(self.cannot_fire),
            "raised": {name: {"times": len(errors), "first": errors[0]} for name, errors in self.raised.items()},
            "objective": objective(self.start).name,
            "held_out": metric.name if (metric := held_out(self.start)) else None,
            "actuators": [spec.name for spec in self.start.actuators],
            "assumed_knobs": list(self.assumed),
            "rules": self.start.rules.model_dump(mode="json"),
            "notes": [line.strip() for line in self.lines],
            "judged_by": JUDGED,
            "open_loop": True,
        }

    def _flag(self, flag: Flag) -> dict[str, Any]:
        vote = flag.first.vote
        return {
            "agent": flag.agent,
            "tick": flag.tick,
            "step": flag.step,
            "times": len(flag.plans),
            "last_tick": flag.last.tick,
            "last_step": flag.last.step,
            "changes": [
                {
                    "actuator": cast.vote.actuator,
                    "before": cast.before,
                    "value": cast.vote.value,
                    "verdict": cast.decision.verdict if cast.decision else None,
                    "decided_value": cast.decision.value if cast.decision else None,
                    "reason": cast.decision.reason if cast.decision else None,
                }
                for cast in flag.plans[0]
            ],
            "why": vote.rationale,
            "confidence": flag.confidence,
            "symptoms": flag.symptoms,
            "target": vote.target,
            "expected_change": vote.expected_change,
            "horizon": vote.horizon,
            "adopted": flag.adopted,
            "likely": flag.likely,
            "afterwards": flag.afterwards,
        }


def changes(flag: Flag) -> str:
    """Return the changes, such as "optimizer.lr_scale 1 → 0.125, run.rollback to tick 90"."""
    entries = []
    for cast in flag.plans[0]:
        name, value = cast.vote.actuator, cast.vote.value
        if cast.before is None:
            entries.append(name if value is None else f"{name} {'to tick ' * (name == 'run.rollback')}{show(value)}")
        else:
            entries.append(f"{name} {show(cast.before)} → {show(value)}")
    return ", ".join(entries)


def verdict(flag: Flag) -> str:
    """Return the decisions, with the reasons of those that were not adopted."""
    reasons = [
        cast.decision.reason.rsplit("; ", 1)[-1]
        for cast in flag.plans[0]
        if cast.decision and cast.decision.verdict != "adopted"
    ]
    later = "; adopted later" if flag.adopted and "adopted" not in flag.verdict else ""
    return flag.verdict + (f": {'; '.join(dict.fromkeys(reasons))}" if reasons else "") + later


def times(flag: Flag) -> str:
    """Return how often and until when the flag was repeated, or an empty string if it was not."""
    return f"{len(flag.plans)} times, until step {flag.last.step:,}" if len(flag.plans) > 1 else ""


MOST = 4
"""Maximum flags in the text report, so that it fits a screen. --json and --html have all."""
NOTICES = 2
"""Maximum notices in the text report. --json and --html have all."""


def text_lines(report: Report) -> list[str]:
    """Return the report as text of at most 80 columns."""
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
        others = Counter(flag.agent for flag in report.flags[MOST:])
        by_agent = ", ".join(f"{agent} {count}" for agent, count in others.most_common())
        out += ["", *wrapped(f"and {others.total()} more ({by_agent}); --json and --html FILE have them")]
    out.append("")
    for step, agent, text in report.notices[:NOTICES]:
        out += wrapped(f"notice at step {step:,}, {agent}: {text}", hang=2)
    if len(report.notices) > NOTICES:
        out += [f"and {len(report.notices) - NOTICES} more notices; --json has them"]
    if report.silent:
        out += wrapped(f"listened and flagged nothing: {', '.join(report.silent)}")
    if len(report.cannot_fire) == len(report.agents):
        out += (
            line
            for name, why in sorted(report.cannot_fire.items())
            for line in wrapped(f"could not fire: {name}: {why}")
        )
    elif report.cannot_fire:
        names = ", ".join(sorted(report.cannot_fire))
        out += wrapped(f"could not fire: {names}; --json and --html FILE have the reasons")
    for name, problems in sorted(report.raised.items()):
        out += wrapped(f"{name} raised {counted(len(problems), 'time')}, first: {problems[0].strip().splitlines()[-1]}")
    if report.flags:
        out += ["", *wrapped(JUDGED)]
    return [*out, *([] if report.flags else [""]), *wrapped(OPEN_LOOP)]


def _flag(number: int, flag: Flag) -> list[str]:
    out = wrapped(f"{number}. step {flag.step:,} (tick {flag.tick:,}), {flag.agent}: {changes(flag)}", hang=3)
    parts = {
        "why": flag.first.vote.rationale,
        "decision": verdict(flag),
        "said": times(flag),
        "afterwards": f"{flag.likely}: {flag.afterwards}",
    }
    for name, lines in parts.items():
        if lines:
            out += wrapped(f"   {name + ':':<12}{lines}", hang=12)
    return out
