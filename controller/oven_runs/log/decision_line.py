"""Describe a decision in one line: the change, the verdict, who supported it, who objected, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from oven_core.protocol.messages import Decision, TallyLine, Value, Vote
from oven_core.terminal_text import clean, shorten
from oven_runs.log.explanation import short_id
from oven_runs.log.run_summary import format_value, verdict_text

MAX_NAMES: Final = 5
"""Maximum number of agents that a line names for each side."""
MIN_REASON_COLUMNS: Final = 24
"""Minimum length of a reason that is cut. A line names fewer agents for it, unless naming one is still too long."""
MAX_SHARES: Final = 3
"""Maximum number of changed shares of a mixture in a line."""
_COMMON_PREFIXES: Final = ("optimizer.", "run.")
"""Prefixes without which a knob's name is still clear."""
Side: TypeAlias = Literal["for", "against", "abstains"]


@dataclass(frozen=True, slots=True)
class Voice:
    """One agent's part in a ballot."""

    agent: str
    side: Side
    reason: str
    remark: str = ""
    """The reason why its vote does not count ("shadow" or "newcomer"); empty if it counts."""

    @classmethod
    def from_line(cls, line: TallyLine) -> Self:
        """Convert a line of a decision's tally. The line must not be silent."""
        is_ignored_newcomer = line.newcomer and not line.weight
        remark = "shadow" if line.shadow else "newcomer" if is_ignored_newcomer else ""
        return cls(line.agent, _side(line.stance), line.rationale, remark)

    @classmethod
    def from_vote(cls, agent: str, vote: Vote) -> Self:
        """Convert a vote on a ballot that is still open."""
        return cls(agent, _side(vote.stance), vote.rationale)

    @property
    def name(self) -> str:
        return f"{self.agent} ({self.remark})" if self.remark else self.agent


def _side(stance: str) -> Side:
    if stance in ("propose", "for"):
        return "for"
    return "against" if stance == "against" else "abstains"


def voices(tally: Iterable[TallyLine]) -> list[Voice]:
    """Return the agents that voted: supporters with the proposers first, then objectors, then abstentions."""
    order = ("propose", "for", "against", "abstain")
    lines = sorted((line for line in tally if line.stance in order), key=lambda line: order.index(line.stance))
    return [Voice.from_line(line) for line in lines]


def sides_text(all_voices: Sequence[Voice], max_names: int = MAX_NAMES) -> str:
    """Name the supporters and the objectors, for example "learning_rate, graph for; no one against"."""
    parts = []
    for side in ("for", "against"):
        names = [voice.name for voice in all_voices if voice.side == side]
        more = f" and {len(names) - max_names} more" if len(names) > max_names else ""
        parts.append(f"{', '.join(names[:max_names]) or 'no one'}{more} {side}")
    return "; ".join(parts)


def short_knob(actuator: str) -> str:
    """Return the knob's name without a prefix that says nothing: `lr_scale` for `optimizer.lr_scale`."""
    prefix = next((prefix for prefix in _COMMON_PREFIXES if actuator.startswith(prefix)), "")
    return actuator.removeprefix(prefix)


def change_text(before: Value, value: Value) -> str:
    """Describe a change. Of a mixture, name only the shares that change most. Of an action, name only its argument."""
    if isinstance(before, dict) and isinstance(value, dict):
        changes = {name: abs(share - before.get(name, 0.0)) for name, share in value.items()}
        largest = sorted(changes, key=lambda name: (-changes[name], name))[:MAX_SHARES]
        pairs = (f"{name} {before.get(name, 0.0):.2g} → {value[name]:.2g}" for name in largest if changes[name])
        return ", ".join(pairs) or format_value(value)
    if before is None:
        return "" if value is None else f"→ {format_value(value)}"
    return f"{format_value(before)} → {format_value(value)}"


def main_reason(decision: Decision) -> str:
    """Return the part of the reason that matters most: why the change was proposed, ordered or rejected."""
    rationale = next((line.rationale for line in decision.tally if line.stance == "propose"), "")
    if decision.command:  # an operator ordered or approved it
        return decision.reason
    if decision.verdict == "advised":
        return f"approve with `oven-controller approve {decision.actuator}`" + (f"; {rationale}" if rationale else "")
    if verdict_text(decision.verdict, decision.reason) != "rejected":
        return rationale or decision.reason
    _, _, rest = decision.reason.partition(rationale) if rationale else ("", "", decision.reason)
    _, has_weights, cause = rest.partition(" against; ")  # the weights of both sides come before the cause
    return cause if has_weights else rest.lstrip(" ;") or decision.reason


def headline(decision: Decision, before: Value) -> str:
    """Return the change and its verdict, for example "lr_scale 1 → 4 adopted". `before` is the value before it."""
    verdict = verdict_text(decision.verdict, decision.reason)
    parts = (short_knob(decision.actuator), change_text(before, decision.value), verdict)
    return " ".join(part for part in parts if part)


def decision_line(decision: Decision, step: int, before: Value, columns: int) -> str:
    """Describe a decision in at most `columns` characters, if the names allow that.

    `before` is the value before the change. A reason that is too long is cut, with the command that shows all of it."""
    all_voices, reason = voices(decision.tally), clean(main_reason(decision))
    heads = []
    for max_names in range(MAX_NAMES, 0, -1):
        sides = f" ({sides_text(all_voices, max_names)})" if all_voices else ""
        heads.append(clean(f"step {step}: {headline(decision, before)}{sides}: "))
    if len(heads[0]) + len(reason) <= columns:
        return heads[0] + reason
    number, _, index = short_id(decision.id).partition("-")
    hint = f" (explain {number}-{index})" if decision.plan else f" (explain {number})"
    free_columns = columns - len(hint)
    minima = (MIN_REASON_COLUMNS, 1)
    head = next((head for least in minima for head in heads if len(head) + least <= free_columns), heads[-1])
    return head + shorten(reason, free_columns - len(head)) + hint
