"""Tracks the usage of model calls: tokens, cost in US dollars, HTTP attempts and failures."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias

from pydantic import Field, TypeAdapter

from oven_core.protocol.committee_requests import JudgeHealth
from oven_llm.providers.failures import Kind
from oven_runs.settings.judge_providers import ModelEndpoint

Count: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
"""A number of tokens. `USAGE` validates counts from an endpoint or a file."""


@dataclass(frozen=True)
class Usage:
    """Billed tokens of one reply."""

    input_tokens: Count
    """Tokens of the whole prompt, including cached ones."""
    output_tokens: Count
    cached_tokens: Count = 0
    """Input tokens that were read from a cache."""
    written_tokens: Count = 0
    """Input tokens that were written to a cache, which some APIs bill at a higher price."""

    def __add__(self, other_usage: Usage) -> Usage:
        return Usage(
            self.input_tokens + other_usage.input_tokens,
            self.output_tokens + other_usage.output_tokens,
            self.cached_tokens + other_usage.cached_tokens,
            self.written_tokens + other_usage.written_tokens,
        )


USAGE: Final = TypeAdapter(Usage)

Price: TypeAlias = Callable[[Sequence[Usage]], float | None]
"""Returns the price of replies in US dollars; None if it is unknown."""


@dataclass
class CallTally:
    """Attempts, failures and usage of the calls made for one purpose. It is updated during the calls, so it is also
    complete after a timeout."""

    context: str = ""
    """The request's trace."""
    attempts: int = 0
    billable_count: int = 0
    """Attempts that may be billed: all except those that returned an error or never reached the endpoint."""
    faults: Counter[Kind] = field(default_factory=Counter)
    """Failed attempts by kind, including those followed by a successful one."""
    usages: list[Usage] = field(default_factory=list)
    """One entry per attempt that was or may have been billed."""
    price: Price | None = None
    """Price of the model; None before the first call."""
    reasons: dict[str, str] = field(default_factory=dict)
    """A judge's reasons by the id that the judge saw, including those for controls. Cached scores have no reasons."""
    last_fault: Kind | None = None
    """The failure of the latest attempt; None while it is in progress or if it succeeded."""
    health: JudgeHealth | None = None
    """The results of the judge's checks so far; None if there are no checks."""

    def begin_attempt(self) -> None:
        self.attempts += 1
        self.billable_count += 1
        self.last_fault = None

    def fail_attempt(self, kind: Kind, *, billable: bool = True) -> None:
        """Record that the latest attempt failed, and whether it may still be billed."""
        self.faults[kind] += 1
        self.last_fault = kind
        self.billable_count -= not billable

    def absorb(self, source: CallTally) -> None:
        """Move another tally's attempts, failures and usage into this one."""
        self.attempts += source.attempts
        self.billable_count += source.billable_count
        self.faults += source.faults
        self.usages += source.usages
        if source.attempts or source.last_fault:
            self.last_fault = source.last_fault
        source.attempts = source.billable_count = 0
        source.usages, source.faults = [], Counter()

    @property
    def input_tokens(self) -> int:
        return sum(usage.input_tokens for usage in self.usages)

    @property
    def output_tokens(self) -> int:
        return sum(usage.output_tokens for usage in self.usages)

    @property
    def cost_usd(self) -> float | None:
        """The cost in US dollars; None if it is unknown or no model was called."""
        return self.price(self.usages) if self.price is not None and self.usages else None


_current: ContextVar[CallTally | None] = ContextVar("call_tally", default=None)


@contextlib.contextmanager
def record_calls_in(tally: CallTally) -> Iterator[CallTally]:
    """Record this task's calls in `tally` inside the `with` block."""
    token = _current.set(tally)
    try:
        yield tally
    finally:
        _current.reset(token)


def current_tally() -> CallTally | None:
    return _current.get()


def cost_usd(endpoint: ModelEndpoint, usages: Sequence[Usage]) -> float | None:
    """Return the cost of these replies in US dollars, from the catalogue's price or otherwise from genai-prices. Return
    None if neither lists the model at this address."""
    total = 0.0
    for usage in usages:
        cost = _cost(endpoint, usage)
        if cost is None:
            return None
        total += cost
    return total


def is_priced(endpoint: ModelEndpoint) -> bool:
    """Return whether the model's price is known."""
    return cost_usd(endpoint, [Usage(1, 1)]) is not None


def _cost(endpoint: ModelEndpoint, usage: Usage) -> float | None:
    if (price := endpoint.price) is not None:
        read_price = price.input if price.cached_input is None else price.cached_input
        write_price = price.input if price.cache_write is None else price.cache_write
        uncached_tokens = usage.input_tokens - usage.cached_tokens - usage.written_tokens
        input_cost = uncached_tokens * price.input + usage.cached_tokens * read_price
        return (input_cost + usage.written_tokens * write_price + usage.output_tokens * price.output) / 1e6
    try:
        from genai_prices import Usage as PricedUsage
        from genai_prices import calc_price
    except ImportError:
        return None
    priced_usage = PricedUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens or None,
        cache_write_tokens=usage.written_tokens or None,
    )
    try:
        # The model's name alone does not identify the provider: a private server may use any name.
        if endpoint.price_id:
            calculation = calc_price(priced_usage, endpoint.model, provider_id=endpoint.price_id)
        else:
            calculation = calc_price(priced_usage, endpoint.model, provider_api_url=endpoint.base_url)
    except (LookupError, ValueError):
        return None
    return float(calculation.total_price)
