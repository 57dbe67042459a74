"""Caps of one supervised run, and what it has used of them."""

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
    """Of a run as a whole, supervisor and workers together; None: no cap. Raises ConfigError for one that is not above
    zero. A call is made as long as no cap is reached, so those under way may go over it."""

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
    """What the calls of one model took."""

    usage: Usage = NONE
    """Of the calls that said what they used."""
    calls: int = 0
    """That were answered, by a refusal too."""
    failed: int = 0
    """That were made and not answered: the cap on calls counts them, too."""
    unmetered: int = 0
    """Of those: calls that did not say what they used."""
    usd: float = 0.0
    unpriced: int = 0
    """Of the answered calls: those whose price is not known."""

    def add(self, response: LMResponse) -> None:
        self.calls += 1
        used = response.usage
        if used is None:
            self.unmetered += 1
        else:
            self.usage += used
        if response.usd is None:
            self.unpriced += 1
        else:
            self.usd += response.usd

    @property
    def cost_usd(self) -> float | None:
        """None where a price is not known; nothing was asked: 0."""
        return None if self.unpriced else self.usd


class Meter:
    """What both models have used, held against the caps. For several threads."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.supervisor, self.worker = Account(), Account()
        self._guessed_tokens = 0
        self._began = time.monotonic()
        self._lock = threading.Lock()

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; None: no cap."""
        return None if self.caps.seconds is None else max(0.0, self.caps.seconds - self.elapsed)

    @property
    def cost_usd(self) -> float | None:
        """US dollars so far; None where a price is not known."""
        costs = self.supervisor.cost_usd, self.worker.cost_usd
        return None if costs[0] is None or costs[1] is None else costs[0] + costs[1]

    def admit(self) -> None:
        """Raises CapReachedError where no further call may be made."""
        with self._lock:
            tokens = self._guessed_tokens + sum(
                one.usage.input_tokens + one.usage.output_tokens for one in (self.supervisor, self.worker)
            )
            used: dict[Cap, float] = {
                "usd": self.supervisor.usd + self.worker.usd,
                "tokens": tokens,
                "calls": sum(one.calls + one.failed for one in (self.supervisor, self.worker)),
                "seconds": self.elapsed,
            }
        for cap, unit in _UNITS.items():
            most = getattr(self.caps, cap)
            if most is not None and used[cap] >= most:
                raise CapReachedError(cap, f"the cap of {most:g} {unit} is reached ({used[cap]:.4g} used)")
        if self.caps.usd is not None and (self.supervisor.unpriced or self.worker.unpriced):
            raise ConfigError(unpriced(self.caps.usd, "a model"))

    def enter(self, account: Account, response: LMResponse, prompt_bytes: int) -> None:
        """A call that was answered. One that does not say what it used counts for the cap as a token per byte, which
        is more than any tokenizer makes of it."""
        with self._lock:
            account.add(response)
            if response.usage is None:
                self._guessed_tokens += prompt_bytes + len(response.text.encode(errors="replace"))

    def enter_failed(self, account: Account, calls: int = 1) -> None:
        """Calls that were made and not answered."""
        with self._lock:
            account.failed += calls


def unpriced(usd: float, model: str) -> str:
    """Why a cap in US dollars cannot be kept."""
    return (
        f"the cap of {usd:g} US dollars cannot be kept, since the price of {model} is not known; cap tokens or calls "
        "instead"
    )
