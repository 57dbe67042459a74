"""What one request met on its way, and its cost: HTTP attempts, faults by kind, tokens, US dollars. Kept while it runs,
so that an abstention that came of a time-out still says what was spent and what was in the way."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeAlias

from oven_core.protocol.committee_requests import JudgeHealth
from oven_llm.genai_telemetry import CallRecord
from oven_llm.providers.failures import Kind
from oven_runs.settings.judge_providers import ModelEndpoint


@dataclass(frozen=True)
class Usage:
    """Tokens that one answer was billed for."""

    input_tokens: int
    """Of the whole prompt, what came from a cache included."""
    output_tokens: int
    cached_tokens: int = 0
    """Of the input: read from a cache."""
    written_tokens: int = 0
    """Of the input: written to a cache, which costs more than other input where an API bills it."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.written_tokens + other.written_tokens,
        )

    def plain(self) -> dict[str, int]:
        """As JSON has it in logs."""
        return asdict(self)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """From `plain`, or from a log that says nothing of caches. Raises ValueError for what is not such an object:
        unknown tokens are not 0."""
        try:
            counts = [plain["input_tokens"], plain["output_tokens"]]
            counts += [plain.get("cached_tokens", 0), plain.get("written_tokens", 0)]
        except (LookupError, TypeError, AttributeError):
            raise ValueError("its usage lacks input_tokens or output_tokens") from None
        for tokens in counts:
            if type(tokens) is not int or tokens < 0:
                raise ValueError(f"its usage has {str(tokens)[:40]!r} for a number of tokens")
        return cls(*counts)


Price: TypeAlias = Callable[[Sequence[Usage | None]], float | None]
"""US dollars for answers; None where they cannot be priced."""


@dataclass
class Ledger:
    """`faults` counts each attempt that failed, also where a later one succeeded."""

    context: str = ""
    """The trace that the request came with."""
    attempts: int = 0
    billable: int = 0
    """Attempts that were answered, or may have been without our knowledge: all but those that an error answered, and
    those that never reached the endpoint."""
    faults: Counter[Kind] = field(default_factory=Counter)
    usages: list[Usage | None] = field(default_factory=list)
    """One entry an answer; None where it did not say."""
    price: Price | None = None
    """Of the model that was asked; None before one was."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why the judge gave which score, by the id that it was shown; of answers from a cache, which holds no text, none.
    Ids of known answers are among them."""
    last: Kind | None = None
    """How the newest attempt failed; None while it is under way, or went well."""
    health: JudgeHealth | None = None
    """What was found out about the judge so far; None: it is not tested."""

    def begin(self) -> None:
        self.attempts += 1
        self.billable += 1
        self.last = None

    def fault(self, kind: Kind, *, billable: bool = True) -> None:
        """What was wrong with the newest attempt, and whether it may be billed all the same."""
        self.faults[kind] += 1
        self.last = kind
        self.billable -= not billable

    def absorb(self, other: Ledger) -> None:
        """Takes over what another one's questions used and met, and empties it: it is reported once."""
        self.usages += other.usages
        self.faults += other.faults
        other.usages, other.faults = [], Counter()

    def absorb_attempts(self, other: Ledger, unknown: Sequence[Usage] = ()) -> None:
        """Takes over the attempts of one call, and the usages that are counted for those of no known one."""
        self.attempts += other.attempts
        self.billable += other.billable
        self.faults.update(other.faults)
        self.last = other.last
        self.usages += unknown

    @property
    def input_tokens(self) -> int:
        return sum(usage.input_tokens for usage in self.usages if usage is not None)

    @property
    def output_tokens(self) -> int:
        return sum(usage.output_tokens for usage in self.usages if usage is not None)

    @property
    def cost_usd(self) -> float | None:
        """None where it is not known, or nothing was asked."""
        return self.price(self.usages) if self.price is not None else None


_open: ContextVar[Ledger | None] = ContextVar("ledger", default=None)


@contextlib.contextmanager
def opened(ledger: Ledger) -> Iterator[Ledger]:
    """Attempts made inside, in this task, are entered here."""
    token = _open.set(ledger)
    try:
        yield ledger
    finally:
        _open.reset(token)


def current() -> Ledger | None:
    return _open.get()


def cost_usd(asked: ModelEndpoint, usages: Sequence[Usage | None]) -> float | None:
    """US dollars for these answers, by the catalogue's price, else by genai-prices' list. None when there is none, when
    one did not say what it used, and when the list (or this installation) has no such model behind that address. Calls
    that never answered are not in it."""
    if not usages:
        return None
    total = 0.0
    for usage in usages:
        cost = None if usage is None else _priced(asked, usage)
        if cost is None:
            return None
        total += cost
    return total


def _priced(asked: ModelEndpoint, usage: Usage) -> float | None:
    if (price := asked.price) is not None:
        cached = price.input if price.cached_input is None else price.cached_input
        written = price.input if price.cache_write is None else price.cache_write
        fresh = usage.input_tokens - usage.cached_tokens - usage.written_tokens
        costs = fresh * price.input + usage.cached_tokens * cached + usage.written_tokens * written
        return (costs + usage.output_tokens * price.output) / 1e6
    try:
        from genai_prices import Usage as Priced
        from genai_prices import calc_price
    except ImportError:
        return None
    priced = Priced(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens or None,
        cache_write_tokens=usage.written_tokens or None,
    )
    try:
        # An address is never guessed at by the model's name: one's own server may call its model anything.
        if asked.priced_as:
            found = calc_price(priced, asked.model, provider_id=asked.priced_as)
        else:
            found = calc_price(priced, asked.model, provider_api_url=asked.base_url)
    except (LookupError, ValueError):
        return None
    return float(found.total_price)


OnCall: TypeAlias = Callable[[CallRecord], None]
