"""The report of a review, as JSON data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oven_agents.review.flagged_proposals import HOW_JUDGED, Flag, Series
from oven_agents.stats.objective import held_out_metric, objective
from oven_core.mesh.actuator_values import show
from oven_core.protocol.messages import RunStarted
from oven_core.terminal_text import counted, wrapped

OPEN_LOOP = (
    "Open loop: the recorded run continues unchanged, whatever is decided here. After the first adopted change, a live "
    "run would have been different. A flag does not mean that its change would have helped."
)


@dataclass
class Report:
    """The result of a review. `series` has the measurements for charts and judgements, by metric."""

    run: str
    start: RunStarted
    tick_count: int
    step_range: tuple[int, int]
    """Lowest and highest step."""
    tick_range: tuple[int, int]
    agents: Sequence[str]
    flags: list[Flag]
    cannot_fire: Mapping[str, str]
    tracebacks: Mapping[str, list[str]]
    """Agent → tracebacks of exceptions in its code."""
    notices: Sequence[tuple[int, str, str]] = ()
    """(step, agent, text) of agents' notices to people."""
    assumed_knobs: Sequence[str] = ()
    """Knobs that are not in the log and were added for the review."""
    source_notes: Sequence[str] = ()
    """Remarks about the log for readers of the report."""
    series: Mapping[str, Series] = field(default_factory=dict)

    @property
    def silent_agents(self) -> list[str]:
        """Agents that were able to flag something but did not."""
        flagging_agents = {flag.agent for flag in self.flags}
        return [name for name in self.agents if name not in flagging_agents and name not in self.cannot_fire]

    @property
    def kind_counts(self) -> Counter[str]:
        """Number of flags by their likely kind."""
        return Counter(flag.likely_kind for flag in self.flags)

    @property
    def adopted_count(self) -> int:
        """Number of flags whose change would have been adopted."""
        return sum(flag.adopted for flag in self.flags)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        able_count = len(self.agents) - len(self.cannot_fire)
        able_agents = f"{able_count} of {len(self.agents)} agents"
        extent = f"{counted(self.tick_count, 'tick')} (steps {self.step_range[0]:,} to {self.step_range[1]:,})"
        if not able_count:
            return f"{self.run}: no agent could judge this run of {extent}; the reasons are below"
        if not self.flags:
            return f"{self.run}: no flags in {extent}; {able_agents} could judge it"
        counts = self.kind_counts
        parts = [
            f"{counts['false alarm']} {'looks' if counts['false alarm'] == 1 else 'look'} like a false alarm",
            f"the run got worse after {counts['harm']}",
            f"{counts['unknown']} unknown",
        ]
        return (
            f"{self.run}: {counted(len(self.flags), 'flag')} in {extent}, {self.adopted_count} would have been "
            f"adopted; {', '.join(parts)}; {able_agents} could judge it"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "gist": self.summary,
            "ticks": self.tick_count,
            "first_step": self.step_range[0],
            "last_step": self.step_range[1],
            "agents": list(self.agents),
            "flags": [self._flag_as_json(flag) for flag in self.flags],
            "notices": [{"step": step, "agent": agent, "text": text} for step, agent, text in self.notices],
            "adopted": self.adopted_count,
            "false_alarms": self.kind_counts["false alarm"],
            "followed_by_harm": self.kind_counts["harm"],
            "unknown": self.kind_counts["unknown"],
            "silent": self.silent_agents,
            "cannot_fire": dict(self.cannot_fire),
            "raised": {name: {"times": len(errors), "first": errors[0]} for name, errors in self.tracebacks.items()},
            "objective": objective(self.start).name,
            "held_out": metric.name if (metric := held_out_metric(self.start)) else None,
            "actuators": [spec.name for spec in self.start.actuators],
            "assumed_knobs": list(self.assumed_knobs),
            "rules": self.start.rules.model_dump(mode="json"),
            "notes": [note.strip() for note in self.source_notes],
            "judged_by": HOW_JUDGED,
            "open_loop": True,
        }

    def _flag_as_json(self, flag: Flag) -> dict[str, Any]:
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
            "likely": flag.likely_kind,
            "afterwards": flag.afterwards,
        }


def describe_changes(flag: Flag) -> str:
    """Return the changes, such as "optimizer.lr_scale 1 → 0.125, run.rollback to tick 90"."""
    descriptions = []
    for cast in flag.plans[0]:
        name, value = cast.vote.actuator, cast.vote.value
        if cast.before is None:
            prefix = "to tick " if name == "run.rollback" else ""
            descriptions.append(name if value is None else f"{name} {prefix}{show(value)}")
        else:
            descriptions.append(f"{name} {show(cast.before)} → {show(value)}")
    return ", ".join(descriptions)


def describe_verdict(flag: Flag) -> str:
    """Return the verdicts, with the last reason of each decision that was not adopted."""
    reasons = [
        cast.decision.reason.rsplit("; ", 1)[-1]
        for cast in flag.plans[0]
        if cast.decision and cast.decision.verdict != "adopted"
    ]
    later = "; adopted later" if flag.adopted and "adopted" not in flag.verdict else ""
    return flag.verdict + (f": {'; '.join(dict.fromkeys(reasons))}" if reasons else "") + later


def describe_repetitions(flag: Flag) -> str:
    """Return the number of repetitions and the last step of a flag, or an empty string if it was not repeated."""
    return f"{len(flag.plans)} times, until step {flag.last.step:,}" if len(flag.plans) > 1 else ""


MAX_FLAGS = 4
"""Maximum number of flags in the text report, so that it fits on a screen. `--json` and `--html` have all of them."""
MAX_NOTICES = 2
"""Maximum number of notices in the text report. `--json` and `--html` have all of them."""


def text_lines(report: Report) -> list[str]:
    """Return the report as text of at most 80 columns."""
    output = wrapped(report.summary)
    for note in report.source_notes:
        output += wrapped(note)
    if report.assumed_knobs:
        output += wrapped(
            f"knobs assumed, as in an attached run: {', '.join(report.assumed_knobs)}; add others with --knob "
            "NAME=VALUE, or use none with --no-assume"
        )
    for number, flag in enumerate(report.flags[:MAX_FLAGS], 1):
        output += ["", *_flag_lines(number, flag)]
    if len(report.flags) > MAX_FLAGS:
        others = Counter(flag.agent for flag in report.flags[MAX_FLAGS:])
        by_agent = ", ".join(f"{agent} {count}" for agent, count in others.most_common())
        output += ["", *wrapped(f"and {others.total()} more ({by_agent}); --json and --html FILE have them")]
    output.append("")
    for step, agent, text in report.notices[:MAX_NOTICES]:
        output += wrapped(f"notice at step {step:,}, {agent}: {text}", hang=2)
    if len(report.notices) > MAX_NOTICES:
        output += [f"and {len(report.notices) - MAX_NOTICES} more notices; --json has them"]
    if report.silent_agents:
        output += wrapped(f"raised no flags: {', '.join(report.silent_agents)}")
    if len(report.cannot_fire) == len(report.agents):
        output += (
            line for name, why in sorted(report.cannot_fire.items()) for line in wrapped(f"cannot fire: {name}: {why}")
        )
    elif report.cannot_fire:
        names = ", ".join(sorted(report.cannot_fire))
        output += wrapped(f"cannot fire: {names}; --json and --html FILE have the reasons")
    for name, problems in sorted(report.tracebacks.items()):
        first = problems[0].strip().splitlines()[-1]
        output += wrapped(f"{name} raised an exception {counted(len(problems), 'time')}, first: {first}")
    if report.flags:
        output += ["", *wrapped(HOW_JUDGED)]
    return [*output, *([] if report.flags else [""]), *wrapped(OPEN_LOOP)]


def _flag_lines(number: int, flag: Flag) -> list[str]:
    output = wrapped(
        f"{number}. step {flag.step:,} (tick {flag.tick:,}), {flag.agent}: {describe_changes(flag)}", hang=3
    )
    parts = {
        "why": flag.first.vote.rationale,
        "decision": describe_verdict(flag),
        "repeated": describe_repetitions(flag),
        "afterwards": f"{flag.likely_kind}: {flag.afterwards}",
    }
    for name, text in parts.items():
        if text:
            output += wrapped(f"   {name + ':':<12}{text}", hang=12)
    return output
