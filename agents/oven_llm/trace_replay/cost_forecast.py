"""Forecasts the cost of a replay before any call is paid for. Pure.

Tokens per text, the share of a state that comes from a provider's cache, and the length of answers differ between
models. So ask about a few traces first (`traces replay --first 3`), into the same file, where nothing is paid twice.
The forecast is fitted to the bill for those, teacher by teacher. Without them it rests on usual values, and says so.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, linear_regression
from typing import Any, Final

from oven_llm.providers.usage import Usage, cost_usd
from oven_runs.settings.judge_providers import ModelEndpoint
from oven_runs.traces.records import Message, Reply, Tool, Trace

CHARACTERS_PER_TOKEN: Final = 3.6
"""For code and English with JSON around it, without replies. Vocabularies of 100,000 tokens or more give 3 to 4.2."""
MIN_CACHED: Final = 1024
"""Tokens below which no large provider caches a prompt."""
USUALLY_CACHED: Final = 0.9
"""Share of a state's prefix that comes from the provider's cache, without replies."""
ASSUMED: Final = (
    f"without replies, it assumes that {USUALLY_CACHED:.0%} of a state's repeated part come from the cache, and that "
    "answers are as long as the student's; those of a reasoning model are longer"
)
"""The basis of a forecast without replies."""
DRAWS: Final = 200
"""Bootstrap draws of traces for the interval."""
UNFITTED: Final = 2.0
"""Factor by which the true cost may differ from a forecast without replies, in either direction: it multiplies three
guesses."""


@dataclass(frozen=True, slots=True)
class StateSize:
    """The size of one state as it is sent, in characters."""

    trace: str
    step: int
    characters: int
    """All messages and tools, with the overhead of their form."""
    prefix: int
    """The state before it, with which this one begins; 0 for the first state and after a rewrite."""
    action: int
    """The student's action there: the first guess at an answer's length."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One teacher's tokens as a function of a state's size."""

    per_state: float
    """Tokens added to every state."""
    per_character: float
    cached: float
    """Share of the prefix that is read from the cache, for a prefix of MIN_CACHED tokens or more."""
    cached_short: float
    """The same for a shorter prefix."""
    cached_first: float
    """Tokens read from the cache at a trace's first state."""
    out: float
    """Tokens of all answers to a state."""
    surcharge: float
    """Billed cost divided by the cost of the tokens: writing to a cache may cost extra."""
    seconds: float | None
    """Per state; None without replies."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected cost of one teacher's states."""

    teacher: str
    states: int
    """States that it must still be asked about."""
    fitted_to: int
    """States whose replies it rests on; 0 means usual values."""
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    usd: float | None
    """None if the price is unknown."""
    low: float | None
    high: float | None
    """`low` and `high` contain the true cost with about 95 % confidence."""
    seconds: float | None
    """With all of the teacher's lanes in use; None without replies."""
    spent: float | None = 0.0
    """US dollars that its replies have cost so far; None if the price of one is unknown."""


@dataclass
class _Bill:
    """The bill of one state, over its samples."""

    size: StateSize
    tokens_in: int = 0
    cached: int = 0
    out: int = 0
    usd: float | None = 0.0
    seconds: float = 0.0
    samples: int = 0


def state_sizes(trace: Trace) -> list[StateSize]:
    """Return the size of each of the trace's states, in order."""
    tools = sum(_tool_size(tool) for tool in trace.tools)
    sizes: list[StateSize] = []
    characters = tools + _message_size(trace.prompt)
    for number, step in enumerate(trace.steps):
        if step.state is not None:
            characters = tools + _message_size(step.state)
        prefix = 0 if step.state is not None or not sizes else sizes[-1].characters
        sizes.append(StateSize(trace.id, number, characters, prefix, _message_size((step.action,))))
        characters += _message_size((step.action, *(step.result or ())))
    return sizes


def forecast(
    teacher: str,
    samples: int,
    lanes: int,
    endpoint: ModelEndpoint,
    remaining: Sequence[StateSize],
    replies: Iterable[Reply],
    sizes: Mapping[tuple[str, int], StateSize],
) -> Forecast:
    """Return the forecast for the `remaining` states from the replies of this teacher. `sizes`: of all states, by trace
    and step."""
    bills = _bills(teacher, replies, sizes)
    complete = [bill for bill in bills if bill.tokens_in and bill.samples >= samples]
    fit = _fit(complete, endpoint) if complete else _usual(samples, remaining, endpoint)
    tokens_in, cached, out = _total(fit, remaining)
    usd = _usd(endpoint, fit, tokens_in, cached, out)
    low, high = _interval(complete, endpoint, remaining, usd)
    return Forecast(
        teacher=teacher,
        states=len(remaining),
        fitted_to=len(complete),
        tokens_in=tokens_in,
        tokens_cached=cached,
        tokens_out=out,
        usd=usd,
        low=low,
        high=high,
        seconds=None if fit.seconds is None else fit.seconds * len(remaining) / lanes,
        spent=_sum(bill.usd for bill in bills),
    )


def as_json(forecasts: Sequence[Forecast]) -> dict[str, Any]:
    """Return the output of `--json`. Unknown prices are null."""
    sums = {name: _sum(getattr(item, name) for item in forecasts) for name in ("usd", "low", "high", "spent")}
    teachers = {
        item.teacher: {name: value for name, value in asdict(item).items() if name != "teacher"} for item in forecasts
    }
    return {**sums, "teachers": teachers}


def lines(forecasts: Sequence[Forecast]) -> list[str]:
    """Return the output for people."""
    text = []
    for item in forecasts:
        cost = (
            "price unknown" if item.usd is None else f"${item.usd:.4f} (${item.low or 0:.4f} to ${item.high or 0:.4f})"
        )
        basis = f"fitted to {item.fitted_to} states" if item.fitted_to else ASSUMED
        cached = 100 * item.tokens_cached / item.tokens_in if item.tokens_in else 0
        duration = "" if item.seconds is None else f"; {item.seconds / 60:.1f} min"
        text.append(
            f"{item.teacher}: {item.states} states, {item.tokens_in:,} tokens in ({cached:.0f} % cached), "
            f"{item.tokens_out:,} out: {cost}{duration}; {basis}"
        )
    total = _sum(item.usd for item in forecasts)
    if forecasts and total is not None:
        text.append(f"total: ${total:.4f}")
    elif forecasts:
        unknown = ", ".join(item.teacher for item in forecasts if item.usd is None)
        text.append(
            f"total: unknown, because the price of {unknown} is unknown; set `price:` (US dollars per million tokens) "
            "in the file of teachers"
        )
    if any(not item.fitted_to and item.states for item in forecasts):
        text.append("for a fitted forecast, ask about a few traces first: `traces replay … --first 3`")
    return text


def _message_size(messages: Iterable[Message]) -> int:
    return sum(
        len(message.content) + 8 + sum(len(call.name) + len(call.arguments) + 16 for call in message.calls)
        for message in messages
    )


def _tool_size(tool: Tool) -> int:
    return len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters)) + 32


def _bills(teacher: str, replies: Iterable[Reply], sizes: Mapping[tuple[str, int], StateSize]) -> list[_Bill]:
    bills: dict[tuple[str, int], _Bill] = {}
    for reply in replies:
        key = (reply.trace, reply.step)
        if reply.teacher != teacher or key not in sizes or not reply.tokens_in + reply.tokens_out:
            continue
        bill = bills.setdefault(key, _Bill(sizes[key]))
        bill.tokens_in += reply.tokens_in
        bill.cached += reply.tokens_cached
        bill.out += reply.tokens_out
        bill.usd = None if bill.usd is None or reply.usd is None else bill.usd + reply.usd
        bill.seconds = max(bill.seconds, reply.seconds or 0.0)
        bill.samples += 1
    return list(bills.values())


def _usual(samples: int, remaining: Sequence[StateSize], endpoint: ModelEndpoint) -> Fit:
    """Return the fit that ASSUMED describes. One request gives all samples, except with Anthropic's API. There each
    sample is a request, and those after the first read the state from the cache."""
    requests = samples if endpoint.wire == "anthropic" else 1
    cached = (requests - 1 + USUALLY_CACHED) / requests
    out = samples * fmean(size.action for size in remaining) / CHARACTERS_PER_TOKEN if remaining else 0.0
    return Fit(8.0 * requests, requests / CHARACTERS_PER_TOKEN, cached, 0.0, 0.0, out, 1.0, None)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, None if a value is unknown."""
    known = list(values)
    return None if None in known else math.fsum(value for value in known if value is not None)


def _fit(bills: Sequence[_Bill], endpoint: ModelEndpoint) -> Fit:
    per_state, per_character = _line(bills)
    long_prefixes: list[tuple[float, float]] = []
    short_prefixes: list[tuple[float, float]] = []
    first: list[int] = []
    for bill in bills:
        if not bill.size.prefix:
            first.append(bill.cached)
            continue
        prefix = per_state + per_character * bill.size.prefix
        (long_prefixes if prefix >= MIN_CACHED else short_prefixes).append((bill.cached, prefix))
    token_costs = [cost_usd(endpoint, [Usage(bill.tokens_in, bill.out, bill.cached)]) for bill in bills]
    priced = [(bill.usd, cost) for bill, cost in zip(bills, token_costs, strict=True) if bill.usd is not None and cost]
    return Fit(
        per_state=per_state,
        per_character=per_character,
        cached=_ratio(long_prefixes),
        cached_short=_ratio(short_prefixes),
        cached_first=fmean(first) if first else 0.0,
        out=fmean(bill.out for bill in bills),
        surcharge=_ratio(priced) if priced else 1.0,
        seconds=fmean(bill.seconds for bill in bills),
    )


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the sum of the first values divided by the sum of the second values; 0 without any."""
    total = sum(whole for _, whole in pairs)
    return sum(part for part, _ in pairs) / total if total else 0.0


def _line(bills: Sequence[_Bill]) -> tuple[float, float]:
    """Return the tokens at size 0 and the tokens per character, by least squares. The line goes through 0 if the sizes
    hardly differ, or if it would have a negative intercept."""
    sizes = [float(bill.size.characters) for bill in bills]
    tokens = [float(bill.tokens_in) for bill in bills]
    if max(sizes) > 1.2 * min(sizes):
        line = linear_regression(sizes, tokens)
        if line.intercept >= 0 and line.slope > 0:
            return line.intercept, line.slope
    return 0.0, sum(tokens) / max(1.0, sum(sizes))


def _total(fit: Fit, states: Sequence[StateSize]) -> tuple[int, int, int]:
    """Return the tokens in, cached, and out of these states."""
    tokens = [_tokens(fit, size) for size in states]
    tokens_in, cached, out = (round(sum(column)) for column in zip(*tokens, strict=True)) if tokens else (0, 0, 0)
    return tokens_in, cached, out


def _tokens(fit: Fit, size: StateSize) -> tuple[float, float, float]:
    tokens_in = fit.per_state + fit.per_character * size.characters
    if not size.prefix:
        return tokens_in, min(tokens_in, fit.cached_first), fit.out
    prefix = fit.per_state + fit.per_character * size.prefix
    share = fit.cached if prefix >= MIN_CACHED else fit.cached_short
    return tokens_in, min(tokens_in, share * prefix), fit.out


def _usd(endpoint: ModelEndpoint, fit: Fit, tokens_in: int, cached: int, out: int) -> float | None:
    if not tokens_in + out:
        return 0.0
    cost = cost_usd(endpoint, [Usage(tokens_in, out, cached)])
    return None if cost is None else cost * fit.surcharge


def _interval(
    bills: Sequence[_Bill], endpoint: ModelEndpoint, remaining: Sequence[StateSize], usd: float | None
) -> tuple[float | None, float | None]:
    """Return a percentile bootstrap over the traces that were asked about. For a single trace it would be a point, so
    the uncertainty of an unfitted forecast is used."""
    if usd is None:
        return None, None
    by_trace: dict[str, list[_Bill]] = defaultdict(list)
    for bill in bills:
        by_trace[bill.size.trace].append(bill)
    if len(by_trace) < 2 or not remaining:
        return usd / UNFITTED, usd * UNFITTED
    rng, names = random.Random(0), list(by_trace)
    costs = []
    for _ in range(DRAWS):
        fit = _fit([bill for name in rng.choices(names, k=len(names)) for bill in by_trace[name]], endpoint)
        costs.append(_usd(endpoint, fit, *_total(fit, remaining)) or 0.0)
    costs.sort()
    return costs[int(0.025 * DRAWS)], costs[DRAWS - 1 - int(0.025 * DRAWS)]
