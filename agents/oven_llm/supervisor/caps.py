"""Caps on one supervised run, and what it has used of them."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, fields
from typing import Final, Literal

from oven_core.errors import ConfigError
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.loop import MAX_ERRORS
from oven_llm.supervisor.models import LMResponse

Cap = Literal["usd", "tokens", "calls", "seconds"]
NONE: Final = Usage(0, 0)
_UNITS: Final[dict[Cap, str]] = {"usd": "US dollars", "tokens": "tokens", "calls": "calls", "seconds": "seconds"}


@dataclass(frozen=True)
class Caps:
    """Caps on a run as a whole, supervisor and worker together; None sets no cap. A call is made as long as no cap is
    reached, so calls in flight may exceed it. Raises ConfigError for a cap that is not above 0."""

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None
    errors: int = MAX_ERRORS
    """Turns in a row that may fail, and calls of the supervisor in a row."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"the cap {field.name} is {value}; give a number above 0, or none")


class CapReachedError(Exception):
    """No further call may be made."""

    def __init__(self, cap: Cap, detail: str) -> None:
        super().__init__(detail)
        self.cap: Cap = cap


@dataclass
class Account:
    """The usage of one model's calls."""

    usage: Usage = NONE
    """Tokens of the calls that reported them."""
    calls: int = 0
    """Answered calls, refusals included."""
    failed: int = 0
    """Calls without an answer. The cap on calls counts them too."""
    unmetered: int = 0
    """Answered calls that did not report their tokens."""
    usd: float = 0.0
    unpriced: int = 0
    """Answered calls of unknown price."""

    def add(self, response: LMResponse) -> None:
        """Add an answered call."""
        self.calls += 1
        if response.usage is None:
            self.unmetered += 1
        else:
            self.usage += response.usage
        if response.usd is None:
            self.unpriced += 1
        else:
            self.usd += response.usd

    @property
    def cost_usd(self) -> float | None:
        """None if a price is unknown; 0 without calls."""
        return None if self.unpriced else self.usd


class Meter:
    """The usage of both models, compared with the caps. Thread-safe."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.supervisor, self.worker = Account(), Account()
        self._estimated_tokens = 0
        self._began = time.monotonic()
        self._lock = threading.Lock()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the cap; None without a cap."""
        return None if self.caps.seconds is None else max(0.0, self.caps.seconds - self.elapsed)

    @property
    def cost_usd(self) -> float | None:
        """US dollars so far; None if a price is unknown."""
        supervisor, worker = self.supervisor.cost_usd, self.worker.cost_usd
        return None if supervisor is None or worker is None else supervisor + worker

    def admit(self) -> None:
        """Raise CapReachedError if no further call may be made. Raises ConfigError if the cap on US dollars cannot be
        kept, because a price is unknown."""
        accounts = (self.supervisor, self.worker)
        with self._lock:
            tokens = sum(account.usage.input_tokens + account.usage.output_tokens for account in accounts)
            used: dict[Cap, float] = {
                "usd": sum(account.usd for account in accounts),
                "tokens": self._estimated_tokens + tokens,
                "calls": sum(account.calls + account.failed for account in accounts),
                "seconds": self.elapsed,
            }
        for cap, unit in _UNITS.items():
            limit = getattr(self.caps, cap)
            if limit is not None and used[cap] >= limit:
                raise CapReachedError(cap, f"the cap of {limit:g} {unit} is reached ({used[cap]:.4g} used)")
        if self.caps.usd is not None and (self.supervisor.unpriced or self.worker.unpriced):
            raise ConfigError(unpriced(self.caps.usd, "a model"))

    def add(self, account: Account, response: LMResponse, prompt_bytes: int) -> None:
        """Add an answered call. Without a usage report it counts one token per byte, more than any tokenizer makes."""
        with self._lock:
            account.add(response)
            if response.usage is None:
                self._estimated_tokens += prompt_bytes + len(response.text.encode(errors="replace"))

    def add_failed(self, account: Account, calls: int = 1) -> None:
        """Add calls without an answer."""
        with self._lock:
            account.failed += calls


def unpriced(usd: float, model: str) -> str:
    """Return the error message for a cap in US dollars that cannot be kept."""
    return (
        f"the cap of {usd:g} US dollars cannot be kept, because the price of {model} is unknown; cap tokens or calls "
        "instead"
    )
