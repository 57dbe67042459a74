"""One budget for all models that a program asks, however often it is resumed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from oven_core.errors import ConfigError
from oven_llm.providers.metered import Meter, MeteredEndpoint, check_priced
from oven_llm.providers.provider import EndpointProvider
from oven_llm.providers.usage import cost_usd
from oven_runs.home.model_spend import Cap, ModelSpend, Spend
from oven_runs.settings.committee_settings import BudgetSettings


class Budget:
    """Caps on US dollars, tokens and calls together; no cap where nothing is given.

    A call's greatest cost is held before it is made, so that no cap is exceeded, and a call that finds no room raises
    ModelFailure `budget`. What is spent is kept in a file, of which there is one a program: the judges of a run have
    theirs (judges/accounts.py), which their processes share.
    """

    def __init__(
        self,
        usd: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        *,
        path: Path | None = None,
        called: str = "budget",
    ) -> None:
        """`path`: the file, e.g. spend.sqlite in a folder of results; one that is there is counted on from. None: in
        memory. `called`: the budget's name in errors. Raises ConfigError for a cap that is none, and a file that cannot
        be used."""
        try:
            self.caps = BudgetSettings(usd=usd, tokens=tokens, calls=calls)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join([called, *map(str, first["loc"])])
            raise ConfigError(f"{at} is {first['input']!r}: {first['msg']}; leave it out for no cap") from None
        self._called = called
        self._spend = ModelSpend(path, called, [Cap(self.caps, called)], booked_by_others=False)

    def metered(self, provider: EndpointProvider, account: str) -> MeteredEndpoint:
        """The provider, whose calls are made and booked within the caps; `account` says whose they are, such as
        "worker". Raises ConfigError where US dollars are capped, and the model's price is not known."""
        price = partial(cost_usd, provider.asked)
        if self.caps.usd is not None:
            check_priced(account, provider.model, price, self._called)
        return MeteredEndpoint(provider, Meter(self._spend, price, account))

    @property
    def accounts(self) -> dict[str, Spend]:
        """What each account has spent, in earlier processes, too; without what is held for calls under way."""
        return self._spend.spent()

    @property
    def spent(self) -> Spend:
        """What all accounts have spent."""
        return sum(self.accounts.values(), Spend())

    @property
    def cost_usd(self) -> float | None:
        """US dollars that were spent; None where some call's price is not known."""
        spent = self.spent
        return None if spent.unpriced else spent.usd

    def close(self) -> None:
        self._spend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
