"""Limits the cost of model calls. Each call reserves its maximum cost in advance and books its actual cost later."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Self

from pydantic import ValidationError

from oven_core.errors import ConfigError
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Usage, cost_usd, current_tally, is_priced
from oven_runs.home.model_spend import Cap, ModelSpend, Refusal, Spend
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.judge_providers import ModelEndpoint

log = logging.getLogger("oven.member")

RETRY_S: Final = 0.05
"""Seconds between two attempts to reserve budget while other calls are in progress."""


class Budget(AbstractContextManager["Budget"]):
    """A budget with caps on US dollars, tokens and calls. Several processes can share its ledger (`ModelSpend`).

    No call can exceed a cap, because its maximum cost is reserved first. An attempt that returned an error or never
    reached the endpoint costs nothing. Any other attempt without reported usage counts at its maximum cost, because
    providers also bill replies that arrive after the deadline."""

    def __init__(self, caps: Sequence[Cap] = (), path: Path | None = None, owner: str = "") -> None:
        """Open the ledger in the file `path`, or in memory if it is None. Earlier bookings in the file count. `owner`
        is the account that this process spends from, with its subaccounts; an empty string stands for all accounts.
        Raises ConfigError if the file cannot be used."""
        self.caps = tuple(caps)
        self._owner = owner
        self._ledger = ModelSpend(path, self.caps, owner)
        self._failure_logged = False

    @classmethod
    def with_caps(
        cls, usd: float | None = None, tokens: int | None = None, calls: int | None = None, path: Path | None = None
    ) -> Self:
        """Return a budget with these caps, where None means no cap. Raises ConfigError for a cap of 0 or less."""
        try:
            limits = BudgetSettings(usd=usd, tokens=tokens, calls=calls)
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                f"budget.{first['loc'][0]} is {first['input']!r}: {first['msg']}; omit it for no cap"
            ) from None
        return cls([Cap(limits, "budget")], path)

    def check_priced(self, account: str, endpoint: ModelEndpoint) -> None:
        """Raise ConfigError if `account` has a cap in US dollars and the model's price is unknown."""
        usd_caps = [cap for cap in self.caps if cap.applies_to(account) and cap.limits.usd is not None]
        if usd_caps and not is_priced(endpoint):
            raise ConfigError(
                f"the price of {endpoint.model!r}, the model of {account}, is unknown, so a cap in US dollars cannot "
                f"be enforced; set {usd_caps[0].setting}.tokens instead, or add the price (`price:`, US dollars per "
                "million tokens) to the providers file that committee.providers names"
            )

    async def reserve(self, account: str, max_usage: Usage, endpoint: ModelEndpoint) -> int | None:
        """Reserve one call's maximum usage, and wait while calls in progress reserve the rest of the budget. Return the
        reservation's number, or None if the ledger cannot be written and there are no caps. Raises ModelFailure
        `budget` if a cap is used up, or if the ledger cannot be written and there are caps."""
        spend = _total_spend([max_usage], 1, endpoint)  # the call counts as unanswered until it is booked
        while True:
            try:
                reservation = self._ledger.reserve(account, spend)
            except sqlite3.Error as error:
                self._log_failure(error)
                if self._ledger.capped:
                    raise ModelFailure("budget", "spending is capped but cannot be recorded") from None
                return None
            if not isinstance(reservation, Refusal):
                return reservation
            if reservation.final:
                raise ModelFailure("budget", reservation.reason)
            if (tally := current_tally()) is not None:
                tally.last_failure = "budget"  # the reported reason if a deadline ends this wait
            await asyncio.sleep(RETRY_S)

    def book(self, reservation: int, usages: Sequence[Usage], unanswered_count: int, endpoint: ModelEndpoint) -> None:
        """Replace a reservation with the actual usage, of which `unanswered_count` entries are only upper bounds."""
        try:
            self._ledger.book(reservation, _total_spend(usages, unanswered_count, endpoint))
        except sqlite3.Error as error:
            self._log_failure(error)  # the reservation continues to count

    @property
    def accounts(self) -> dict[str, Spend]:
        """The spending of each of the owner's accounts, including earlier processes, without calls in progress."""
        return self._ledger.spent(self._owner)

    @property
    def spent(self) -> Spend:
        """The total spending of the owner's accounts."""
        return sum(self.accounts.values(), Spend())

    @property
    def cost_usd(self) -> float | None:
        """US dollars spent; None if the price of a call is unknown."""
        spent = self.spent
        return None if spent.unpriced else spent.usd

    def close(self) -> None:
        self._ledger.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _log_failure(self, error: sqlite3.Error) -> None:
        if not self._failure_logged:
            self._failure_logged = True
            log.error("could not record spending in %s: %s", self._ledger.path, error)


def _total_spend(usages: Sequence[Usage], unanswered_count: int, endpoint: ModelEndpoint) -> Spend:
    usd = cost_usd(endpoint, usages)
    return Spend(
        calls=len(usages),
        unanswered=unanswered_count,
        unpriced=len(usages) if usd is None else 0,
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        usd=usd or 0.0,
    )
