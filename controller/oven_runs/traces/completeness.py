"""What a file of traces has and lacks: every step without a whole (state, action, reward), by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oven_runs.traces.comparable_actions import Unusable, action
from oven_runs.traces.jsonl import BadLine
from oven_runs.traces.records import Message, Trace, TraceStep

EXAMPLES = 3
"""Places shown for each kind."""
UNPARSED: Final = "unparsed_calls"
"""In a trace's `meta`: the steps whose calls the trainer could not read and took for texts."""
LOST_BEFORE: Final = "lost_before"
"""In a trace's `meta`: how many traces before it could not be recorded."""
TOKENS_LOST: Final = "tokens_lost"
"""In a trace's `meta`: the sampled tokens could not be told apart by step."""


@dataclass
class Completeness:
    """Counts over a file. A step may be counted under several kinds; it is whole where it is under none."""

    traces: int = 0
    steps: int = 0
    whole_traces: int = 0
    """Those with steps, each of them whole, and not truncated."""
    whole_steps: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    steps_lacking: Counter[str] = field(default_factory=Counter)
    unusable: Counter[str] = field(default_factory=Counter)
    """Actions that cannot be compared, as calls of tools that are not there: whole, since the policy did that."""
    traces_lacking: Counter[str] = field(default_factory=Counter)
    bad_lines: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Kind → where it was found first."""

    @property
    def whole(self) -> bool:
        """Whether nothing is lacking; a file without a trace is not whole."""
        return self.traces > 0 and self.whole_traces == self.traces and not self.traces_lacking and not self.bad_lines

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "traces": self.traces,
            "whole_traces": self.whole_traces,
            "steps": self.steps,
            "whole_steps": self.whole_steps,
            "ended": dict(self.ended),
            "steps_lacking": dict(self.steps_lacking),
            "unusable_actions": dict(self.unusable),
            "traces_lacking": dict(self.traces_lacking),
            "bad_lines": dict(self.bad_lines),
            "examples": self.examples,
            "whole": self.whole,
        }

    def note(self, counter: Counter[str], kind: str, where: str, count: int = 1) -> None:
        """Count `count` of `kind`, and keep where it is if few are kept yet."""
        counter[kind] += count
        places = self.examples.setdefault(kind, [])
        if len(places) < EXAMPLES:
            places.append(where)


def check(found: Iterable[Trace | BadLine]) -> Completeness:
    """Counts over what a format reads."""
    made = Completeness()
    seen: set[str] = set()
    for one in found:
        if isinstance(one, BadLine):
            made.note(made.bad_lines, one.fault, f"line {one.number}: {one.detail}")
            continue
        made.traces += 1
        made.ended[one.ended] += 1
        kinds = list(_trace_lacks(one))
        if one.id in seen:
            kinds.append("its id is another trace's, too")
        seen.add(one.id)
        if isinstance(lost := one.meta.get(LOST_BEFORE), int) and lost > 0:
            made.note(made.traces_lacking, "traces before it are lost", f"{one.id}: {lost}", lost)
        if isinstance(unparsed := one.meta.get(UNPARSED), list):
            for place in unparsed:
                made.note(made.unusable, "call_not_parsed", f"{one.id}, step {place}")
        whole = bool(one.steps) and not kinds and one.ended != "truncated"
        for kind in kinds:
            made.note(made.traces_lacking, kind, one.id)
        known = True
        for at, (step, state) in enumerate(zip(one.steps, one.states(), strict=True)):
            if step.state is not None:
                known = True
            lacking = list(_step_lacks(one, step, state, known))
            for kind in lacking:
                made.note(made.steps_lacking, kind, f"{one.id}, step {at}")
            made_of = action(step.action, one.tools)
            if isinstance(made_of, Unusable):
                made.note(made.unusable, made_of.kind, f"{one.id}, step {at}")
            known = known and step.result is not None
            made.steps += 1
            made.whole_steps += not lacking
            whole = whole and not lacking
        made.whole_traces += whole
    return made


def _trace_lacks(trace: Trace) -> Iterator[str]:
    if not trace.steps:
        yield "no steps"
    if not trace.prompt and (not trace.steps or trace.steps[0].state is None):
        yield "no prompt"
    if trace.ended == "unknown":
        yield "how it ended is not said"
    if trace.reward is None:
        yield "no reward"
    if trace.meta.get(TOKENS_LOST):
        yield "its sampled tokens are not told apart by step"


def _step_lacks(trace: Trace, step: TraceStep, state: Sequence[Message], known: bool) -> Iterator[str]:
    """`known`: all that came before it was recorded."""
    if not state:
        yield "state: empty"
    elif not known:
        yield "state: an earlier result is missing"
    if step.action.role != "assistant":
        yield f"action: a message of the role {step.action.role}"
    if not step.action.calls and not step.action.content.strip() and step.sampled is None:
        yield "action: neither a call, nor a text, nor tokens"
    if step.reward is None:
        yield "reward: missing" if trace.reward is None else "reward: the trace has one, the step none"
    if step.result is None:
        yield "result: missing"
    else:
        answered = {message.call_id for message in step.result if message.role == "tool"}
        if any(call.id not in answered for call in step.action.calls):
            yield "result: a call without an answer"
    if step.sampled is not None:
        sizes = {len(one) for one in (step.sampled.logprobs, step.sampled.entropies) if one is not None}
        if sizes - {len(step.sampled.ids)}:
            yield "tokens: not as many log-probabilities or entropies"
