"""What one request met on its way: HTTP attempts, faults by kind, tokens. Kept while it runs, so that an abstention
that came of a time-out still says what was spent and what was in the way."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from oven_agents.judges.failures import Kind


@dataclass(frozen=True)
class Usage:
    """Tokens that one answer was billed for."""

    input_tokens: int
    """Of the whole prompt, what came from a cache included."""
    output_tokens: int
    cached_tokens: int = 0


@dataclass
class Ledger:
    """`faults` counts each attempt that failed, also where a later one succeeded."""

    context: str = ""
    """The trace that the request came with."""
    attempts: int = 0
    faults: Counter[Kind] = field(default_factory=Counter)
    usages: list[Usage | None] = field(default_factory=list)
    """One entry an answer; None where it did not say."""
    last: Kind | None = None
    """How the newest attempt failed; None while it is under way, or went well."""

    def begin(self) -> None:
        self.attempts += 1
        self.last = None

    def fault(self, kind: Kind) -> None:
        self.faults[kind] += 1
        self.last = kind

    @property
    def input_tokens(self) -> int:
        return sum(usage.input_tokens for usage in self.usages if usage is not None)

    @property
    def output_tokens(self) -> int:
        return sum(usage.output_tokens for usage in self.usages if usage is not None)


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
