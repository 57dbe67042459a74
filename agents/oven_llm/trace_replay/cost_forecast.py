"""What a replay will cost, before it is paid for. Pure.

How many tokens a text is, how much of a state comes from a provider's cache and how long answers are differs from
model to model. So a few traces are asked about first (`traces replay --first 3`), into the same file, where nothing is
paid for twice; the forecast is fitted to what those were billed, teacher by teacher. Without them it rests on usual
values, and says so.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import Any, Final

from oven_llm.providers.usage import Usage, cost_usd
from oven_runs.settings.judge_providers import ModelEndpoint
from oven_runs.traces.records import Message, Reply, Tool, Trace

CHARACTERS_PER_TOKEN: Final = 3.6
"""Of code and English with JSON around it, where no reply tells: vocabularies of 100,000 and more tokens lie between 3
and 4.2."""
LEAST_CACHED: Final = 1024
"""Tokens below which no large provider caches a prompt."""
USUALLY_CACHED: Final = 0.9
"""Share of what a state repeats that comes from the provider's cache, where no reply tells."""
ASSUMED: Final = (
    f"fitted to no reply, it assumes that {USUALLY_CACHED:.0%} of what a state repeats come from the cache and that "
    "answers are as long as the student's, which those of a model that reasons are not"
)
"""What a forecast without replies rests on."""
DRAWS: Final = 200
"""Resamples of traces for the interval."""
UNFITTED: Final = 2.0
"""By which factor the true cost may differ from a forecast without replies, either way: three guesses multiplied."""


@dataclass(frozen=True, slots=True)
class StateSize:
    """One state as it is sent."""

    trace: str
    step: int
    characters: int
    """Of all messages and tools, with what their form adds."""
    prefix: int
    """Of the state before it, which is where this one begins; 0 at the first one, or after a rewrite."""
    action: int
    """Of what the student did there: the first guess at an answer's length."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One teacher's tokens by the size of a state."""

    per_state: float
    """Tokens that come with every state."""
    per_character: float
    cached: float
    """Share of the prefix that is read from the cache, where the prefix has LEAST_CACHED tokens or more."""
    cached_short: float
    """The same of a shorter prefix."""
    cached_first: float
    """Tokens read from the cache at a trace's first state."""
    out: float
    """Tokens of all answers to a state."""
    surcharge: float
    """What was billed by what the tokens come to: writing to a cache may cost extra."""
    seconds: float | None
    """Of a state; None: no reply tells."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one teacher's states will cost."""

    teacher: str
    states: int
    """Still to be asked about."""
    fitted_to: int
    """States whose replies it rests on; 0: usual values."""
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    usd: float | None
    """None: the price is not known."""
    low: float | None
    high: float | None
    """Where the true cost lies with about 95 % confidence."""
    seconds: float | None
    """With the teacher's lanes in use; None: no reply tells."""
    spent: float | None = 0.0
    """US dollars that its replies have cost already; None: the price of one is not known."""


@dataclass
class _Billed:
    """What one state was billed, over its samples."""

    size: StateSize
    tokens_in: int = 0
    cached: int = 0
    out: int = 0
    usd: float | None = 0.0
    seconds: float = 0.0
    samples: int = 0


def state_sizes(trace: Trace) -> list[StateSize]:
    """Of each of its states, in their order."""
    tools = sum(_tool_size(tool) for tool in trace.tools)
    found: list[StateSize] = []
    size = tools + _size(trace.prompt)
    for step, one in enumerate(trace.steps):
        rewritten = one.state is not None
        if one.state is not None:
            size = tools + _size(one.state)
        prefix = 0 if rewritten or not found else found[-1].characters
        found.append(StateSize(trace.id, step, size, prefix, _size((one.action,))))
        size += _size((one.action, *(one.result or ())))
    return found


def forecast(
    teacher: str,
    samples: int,
    lanes: int,
    asked: ModelEndpoint,
    left: Sequence[StateSize],
    replies: Iterable[Reply],
    sizes: Mapping[tuple[str, int], StateSize],
) -> Forecast:
    """For the states `left`, from the replies of this teacher. `sizes`: of all states, by trace and step."""
    billed = _billed(teacher, replies, sizes)
    whole = [one for one in billed if one.tokens_in and one.samples >= samples]
    fit = _fit(whole, asked) if whole else _usual(samples, left, asked)
    tokens = [_tokens(fit, size) for size in left]
    into, cached, out = (round(sum(of)) for of in zip(*tokens, strict=True)) if tokens else (0, 0, 0)
    usd = _usd(asked, fit, into, cached, out)
    low, high = _ends(whole, asked, left, usd)
    return Forecast(
        teacher=teacher,
        states=len(left),
        fitted_to=len(whole),
        tokens_in=into,
        tokens_cached=cached,
        tokens_out=out,
        usd=usd,
        low=low,
        high=high,
        seconds=None if fit.seconds is None else fit.seconds * len(left) / lanes,
        spent=_sum(one.usd for one in billed),
    )


def as_json(found: Sequence[Forecast]) -> dict[str, Any]:
    """For `--json`; null where a price is not known."""
    return {
        **{name: _sum(getattr(one, name) for one in found) for name in ("usd", "low", "high", "spent")},
        "teachers": {
            one.teacher: {
                name: getattr(one, name)
                for name in ("states", "fitted_to", "tokens_in", "tokens_cached", "tokens_out", "usd", "low", "high")
            }
            | {"seconds": one.seconds, "spent": one.spent}
            for one in found
        },
    }


def lines(found: Sequence[Forecast]) -> list[str]:
    """For people."""
    said = []
    for one in found:
        cost = "price unknown" if one.usd is None else f"${one.usd:.4f} (${one.low or 0:.4f} to ${one.high or 0:.4f})"
        basis = f"fitted to {one.fitted_to} states" if one.fitted_to else ASSUMED
        cached = 100 * one.tokens_cached / one.tokens_in if one.tokens_in else 0
        took = "" if one.seconds is None else f"; {one.seconds / 60:.1f} min"
        said.append(
            f"{one.teacher}: {one.states} states, {one.tokens_in:,} tokens in ({cached:.0f} % cached), "
            f"{one.tokens_out:,} out: {cost}{took}; {basis}"
        )
    whole = _sum(one.usd for one in found)
    if found and whole is not None:
        said.append(f"together: ${whole:.4f}")
    elif found:
        unknown = ", ".join(one.teacher for one in found if one.usd is None)
        said.append(
            f"together: unknown, for the price of {unknown} is not known; write `price:` (US dollars per million "
            "tokens) into the file of teachers"
        )
    if any(not one.fitted_to and one.states for one in found):
        said.append("for a forecast that is fitted, ask about a few traces first: `traces replay … --first 3`")
    return said


def _size(messages: Iterable[Message]) -> int:
    return sum(
        len(message.content) + 8 + sum(len(call.name) + len(call.arguments) + 16 for call in message.calls)
        for message in messages
    )


def _tool_size(tool: Tool) -> int:
    return len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) + 32


def _billed(teacher: str, replies: Iterable[Reply], sizes: Mapping[tuple[str, int], StateSize]) -> list[_Billed]:
    found: dict[tuple[str, int], _Billed] = {}
    for reply in replies:
        key = (reply.trace, reply.step)
        if reply.teacher != teacher or key not in sizes or not reply.tokens_in + reply.tokens_out:
            continue
        one = found.setdefault(key, _Billed(sizes[key]))
        one.tokens_in += reply.tokens_in
        one.cached += reply.tokens_cached
        one.out += reply.tokens_out
        one.usd = None if one.usd is None or reply.usd is None else one.usd + reply.usd
        one.seconds = max(one.seconds, reply.seconds or 0.0)
        one.samples += 1
    return list(found.values())


def _usual(samples: int, left: Sequence[StateSize], asked: ModelEndpoint) -> Fit:
    """As ASSUMED says, with all samples of one request; Anthropic's API draws one a request, and reads the state of the
    others from the cache."""
    requests = samples if asked.wire == "anthropic" else 1
    cached = (requests - 1 + USUALLY_CACHED) / requests
    out = samples * fmean(size.action for size in left) / CHARACTERS_PER_TOKEN if left else 0.0
    return Fit(8.0 * requests, requests / CHARACTERS_PER_TOKEN, cached, 0.0, 0.0, out, 1.0, None)


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one is not known."""
    found = list(values)
    return None if None in found else math.fsum(one for one in found if one is not None)


def _fit(billed: Sequence[_Billed], asked: ModelEndpoint) -> Fit:
    per_state, per_character = _line(billed)
    long, short, first = _Share(), _Share(), list[int]()
    for one in billed:
        if not one.size.prefix:
            first.append(one.cached)
            continue
        prefix = per_state + per_character * one.size.prefix
        (long if prefix >= LEAST_CACHED else short).add(one.cached, prefix)
    reckoned = [cost_usd(asked, [Usage(one.tokens_in, one.out, one.cached)]) for one in billed]
    pairs = [(one.usd, due) for one, due in zip(billed, reckoned, strict=True) if one.usd is not None and due]
    due = sum(due for _, due in pairs)
    return Fit(
        per_state=per_state,
        per_character=per_character,
        cached=long.share,
        cached_short=short.share,
        cached_first=fmean(first) if first else 0.0,
        out=fmean(one.out for one in billed),
        surcharge=sum(usd for usd, _ in pairs) / due if due else 1.0,
        seconds=fmean(one.seconds for one in billed),
    )


def _line(billed: Sequence[_Billed]) -> tuple[float, float]:
    """Tokens at size 0, and tokens per character, by least squares; through 0 where the sizes do not differ, or the
    line would fall below it."""
    sizes = [float(one.size.characters) for one in billed]
    tokens = [float(one.tokens_in) for one in billed]
    if max(sizes) > 1.2 * min(sizes):
        line = linear_regression(sizes, tokens)
        if line.intercept >= 0 and line.slope > 0:
            return line.intercept, line.slope
    return 0.0, sum(tokens) / max(1.0, sum(sizes))


@dataclass
class _Share:
    part: float = 0.0
    whole: float = 0.0

    def add(self, part: float, whole: float) -> None:
        self.part += part
        self.whole += whole

    @property
    def share(self) -> float:
        return self.part / self.whole if self.whole else 0.0


def _tokens(fit: Fit, size: StateSize) -> tuple[float, float, float]:
    """(in, cached, out) of one state."""
    into = fit.per_state + fit.per_character * size.characters
    if not size.prefix:
        return into, min(into, fit.cached_first), fit.out
    prefix = fit.per_state + fit.per_character * size.prefix
    share = fit.cached if prefix >= LEAST_CACHED else fit.cached_short
    return into, min(into, share * prefix), fit.out


def _usd(asked: ModelEndpoint, fit: Fit, into: int, cached: int, out: int) -> float | None:
    if not into + out:
        return 0.0
    found = cost_usd(asked, [Usage(into, out, cached)])
    return None if found is None else found * fit.surcharge


def _ends(
    billed: Sequence[_Billed], asked: ModelEndpoint, left: Sequence[StateSize], usd: float | None
) -> tuple[float | None, float | None]:
    """Percentile bootstrap over the traces that were asked about; of one trace it would be a point, so that the usual
    uncertainty stands there."""
    if usd is None:
        return None, None
    traces: dict[str, list[_Billed]] = defaultdict(list)
    for one in billed:
        traces[one.size.trace].append(one)
    if len(traces) < 2 or not left:
        return usd / UNFITTED, usd * UNFITTED
    chance, names = random.Random(0), list(traces)
    drawn = []
    for _ in range(DRAWS):
        fit = _fit([one for name in chance.choices(names, k=len(names)) for one in traces[name]], asked)
        into, cached, out = (round(sum(of)) for of in zip(*(_tokens(fit, size) for size in left), strict=True))
        drawn.append(_usd(asked, fit, into, cached, out) or 0.0)
    drawn.sort()
    return drawn[int(0.025 * DRAWS)], drawn[DRAWS - 1 - int(0.025 * DRAWS)]
