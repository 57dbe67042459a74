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
from oven_llm.providers.failures import FailureKind
from oven_runs.settings.judge_providers import ModelEndpoint

TokenCount: TypeAlias = Annotated[int, Field(strict=True, ge=0)]


@dataclass(frozen=True)
class Usage:
    """Billed tokens of one reply."""

    input_tokens: TokenCount
    """Tokens of the whole prompt, including cached ones."""
    output_tokens: TokenCount
    cached_tokens: TokenCount = 0
    """Input tokens that were read from a cache."""
    written_tokens: TokenCount = 0
    """Input tokens that were written to a cache, which some APIs bill at a higher price."""

    def __add__(self, addend: Usage) -> Usage:
        return Usage(
            self.input_tokens + addend.input_tokens,
            self.output_tokens + addend.output_tokens,
            self.cached_tokens + addend.cached_tokens,
            self.written_tokens + addend.written_tokens,
        )


USAGE_ADAPTER: Final = TypeAdapter(Usage)
"""Validates token counts from an endpoint or a file."""

Price: TypeAlias = Callable[[Sequence[Usage]], float | None]
"""Returns the cost of replies in US dollars; None if the model's price is unknown."""


@dataclass
class CallTally:
    """Attempts, failures and usage of one request's calls, even if it times out, and a judge's findings."""

    context: str = ""
    """The request's trace (`traceparent`), or an empty string if it has none."""
    attempt_count: int = 0
    billable_count: int = 0
    """Attempts that may be billed: all except those that returned an error or never reached the endpoint."""
    failed_attempts: Counter[FailureKind] = field(default_factory=Counter)
    """Failed attempts by kind, including those followed by a successful one."""
    usages: list[Usage] = field(default_factory=list)
    """One entry per attempt that was or may have been billed."""
    price: Price | None = None
    """Computes the cost of `usages`; None before the first call."""
    reasons: dict[str, str] = field(default_factory=dict)
    """A judge's reasons by the id that the judge saw, including those for controls. Cached scores have no reasons."""
    last_failure: FailureKind | None = None
    """The failure of the latest attempt; None while that attempt is in progress or if it succeeded."""
    health: JudgeHealth | None = None
    """The results of the judge's checks so far; None if there are no checks."""

    def begin_attempt(self) -> None:
        self.attempt_count += 1
        self.billable_count += 1
        self.last_failure = None

    def fail_attempt(self, kind: FailureKind, *, billable: bool = True) -> None:
        """Record that the latest attempt failed, and whether it may still be billed."""
        self.failed_attempts[kind] += 1
        self.last_failure = kind
        if not billable:
            self.billable_count -= 1

    def absorb(self, source: CallTally) -> None:
        """Move another tally's attempts, failures and usage into this one."""
        self.attempt_count += source.attempt_count
        self.billable_count += source.billable_count
        self.failed_attempts += source.failed_attempts
        self.usages += source.usages
        if source.attempt_count or source.last_failure:
            self.last_failure = source.last_failure
        source.attempt_count = source.billable_count = 0
        source.usages, source.failed_attempts = [], Counter()

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


_current_tally: ContextVar[CallTally | None] = ContextVar("call_tally", default=None)


@contextlib.contextmanager
def record_calls_in(tally: CallTally) -> Iterator[CallTally]:
    """Record this task's calls in `tally` inside the `with` block."""
    token = _current_tally.set(tally)
    try:
        yield tally
    finally:
        _current_tally.reset(token)


def current_tally() -> CallTally | None:
    return _current_tally.get()


def cost_usd(endpoint: ModelEndpoint, usages: Sequence[Usage]) -> float | None:
    """Return the cost in USD, by the catalogue or genai-prices; None if neither lists the model at this address."""
    total = 0.0
    for usage in usages:
        cost = _compute_cost(endpoint, usage)
        if cost is None:
            return None
        total += cost
    return total


def _compute_cost(endpoint: ModelEndpoint, usage: Usage) -> float | None:
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
