"""Budget for model calls. Each call reserves its maximum cost in advance and records its actual cost afterwards."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError

from oven_core.errors import ConfigError
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Usage, cost_usd, current_tally, is_priced
from oven_runs.home.model_spend import Cap, ModelSpend, Refused, Spend
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.judge_providers import ModelEndpoint

log = logging.getLogger("oven.member")

RETRY_S: Final = 0.05
"""Seconds between checks for budget released by finished calls."""


class Budget:
    """Limits US dollars, tokens and calls. Processes share its ledger (`ModelSpend`).

    No call can exceed a cap, because its maximum cost is reserved first. An attempt that returned an error or never
    reached the endpoint costs nothing. Any other attempt without reported usage counts at its maximum cost, because
    providers also bill replies that arrive after the deadline.
    """

    def __init__(self, caps: Sequence[Cap] = (), path: Path | None = None, owner: str = "") -> None:
        """`path`: the ledger's file, whose earlier bookings count; None: in memory. `owner`: the account that this
        process spends from, with those below it; empty: all. Raises ConfigError for a file that cannot be used."""
        self.caps = tuple(caps)
        self._owner = owner
        self._spend = ModelSpend(path, self.caps, owner)
        self._reported = False

    @classmethod
    def limited_to(
        cls,
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        path: Path | None = None,
    ) -> Self:
        """Return a budget with these caps on all calls; None: no cap. Raises ConfigError for a cap of 0 or less."""
        try:
            limits = BudgetSettings(usd=usd, tokens=tokens, calls=calls)
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                f"budget.{first['loc'][0]} is {first['input']!r}: {first['msg']}; leave it out for no cap"
            ) from None
        return cls([Cap(limits, "budget")], path)

    def check_priced(self, account: str, model: ModelEndpoint) -> None:
        """Raises ConfigError if US dollars are capped for `account` and the model's price is unknown."""
        capped = [cap for cap in self.caps if cap.applies_to(account) and cap.limits.usd is not None]
        if capped and not is_priced(model):
            raise ConfigError(
                f"the price of {model.model!r}, the model of {account}, is not known, so a cap in US dollars cannot be "
                f"kept; cap {capped[0].setting}.tokens instead, or write the price into a file of providers (`price:`, "
                "US dollars per million tokens) and name that with committee.providers"
            )

    async def hold(self, account: str, most: Usage, model: ModelEndpoint) -> int | None:
        """Reserve one call's maximum usage, and wait while active calls reserve the remaining budget. Return the number
        to book it with, or None if the ledger cannot be written and nothing is capped.

        Raises ModelFailure `budget` if a cap is used up, or if the ledger cannot be written and something is capped.
        """
        spend = _spend([most], 1, model)  # unanswered until it is booked
        while True:
            try:
                hold = self._spend.hold(account, spend)
            except sqlite3.Error as error:
                self._report(error)
                if self._spend.capped:
                    raise ModelFailure("budget", "spending cannot be recorded, and it is capped") from None
                return None
            if not isinstance(hold, Refused):
                return hold
            if hold.final:
                raise ModelFailure("budget", hold.cap)
            if (tally := current_tally()) is not None:
                tally.last_fault = "budget"  # the reason if a deadline ends this wait
            await asyncio.sleep(RETRY_S)

    def book(self, hold: int, usages: Sequence[Usage], unanswered: int, model: ModelEndpoint) -> None:
        """Replace a reservation by what the call used. `unanswered`: entries of `usages` that are upper bounds."""
        try:
            self._spend.book(hold, _spend(usages, unanswered, model))
        except sqlite3.Error as error:
            self._report(error)  # the reservation stays and counts

    @property
    def accounts(self) -> dict[str, Spend]:
        """The spending of each of the owner's accounts, including earlier processes, without calls under way."""
        return self._spend.spent(self._owner)

    @property
    def spent(self) -> Spend:
        """The sum over the accounts."""
        return sum(self.accounts.values(), Spend())

    @property
    def cost_usd(self) -> float | None:
        """US dollars spent; None if the price of some call is unknown."""
        spent = self.spent
        return None if spent.unpriced else spent.usd

    def close(self) -> None:
        self._spend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _report(self, error: sqlite3.Error) -> None:
        if not self._reported:
            self._reported = True
            log.error("spending cannot be written to %s: %s", self._spend.path, error)


def _spend(usages: Sequence[Usage], unanswered: int, model: ModelEndpoint) -> Spend:
    usd = cost_usd(model, usages)
    return Spend(
        calls=len(usages),
        unanswered=unanswered,
        unpriced=len(usages) if usd is None else 0,
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        usd=usd or 0.0,
    )
