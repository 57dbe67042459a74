"""The judges of one member: the one that it was configured with, and those that requests name in its place.

A request says which model has to score it, so that no model scores for another: not while one is swapped, and not
after this process was started again, which knows nothing of earlier swaps. A model that only was named is connected to
when it is first asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from oven_agents.judges import providers
from oven_agents.judges.adversarial_controls import Controls
from oven_agents.judges.failures import JudgeFailure
from oven_agents.judges.judge import Judge
from oven_agents.judges.providers.provider import Provider
from oven_agents.judges.usage import Ledger, OnCall, cost_usd
from oven_controller.errors import OvenError
from oven_controller.protocol.judge_models import JudgeModel
from oven_controller.protocol.requests import Completion, ScoreRequest
from oven_controller.settings.judges import with_judge
from oven_controller.settings.model import MemberSettings

log = logging.getLogger("oven.member")

KEPT = 2
"""Judges that stay connected: the one that is asked now and the one before it, whose requests may still be out."""

_Made = TypeVar("_Made")
Key = tuple[JudgeModel | None, int]
"""What a request names: a model, and which swap of the member's that was."""


@dataclass
class Seated:
    """A judge with its connection, and how many requests are with it."""

    judge: Judge
    provider: Provider
    settings: MemberSettings
    users: int = 0


class Seat:
    """Use `score` as a Judge's. `close` lets all connections go."""

    def __init__(self, name: str, settings: MemberSettings, key: str, on_call: OnCall | None = None) -> None:
        """`settings` and `key` are the configured ones. Raises ConfigError when its SDK is not installed."""
        self._name, self._settings, self._on_call = name, settings, on_call
        first = self._seated(settings, providers.connect(name, settings, key))
        self._seated_by: dict[Key, Seated] = {(None, 0): first}
        self._connecting = asyncio.Lock()

    async def score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        """As `Judge.score`, by the model that the request names. Raises JudgeFailure."""
        seated = await self._of(request)
        seated.users += 1
        ledger.price = partial(cost_usd, seated.provider.name, seated.settings.base_url, seated.settings.model)
        try:
            return await seated.judge.score(request, ledger)
        finally:
            seated.users -= 1
            await self._let_go()

    async def probe(self, model: JudgeModel, seconds: float, ledger: Ledger) -> str:
        """One small question to another model, within the time, through all that a verdict goes through. What it lacks,
        in words; empty if nothing. Raises JudgeFailure."""
        settings, provider = await self._connected(model)
        try:
            async with asyncio.timeout(seconds):
                await Judge(settings.role, provider, None, self._on_call).score(_sample(seconds), ledger)
        except TimeoutError:
            raise JudgeFailure(ledger.last or "timeout", f"no verdict within {seconds:.3g} s") from None
        finally:
            await provider.close()
        return ""

    async def close(self) -> None:
        """Let all connections go."""
        for seated in self._seated_by.values():
            await seated.provider.close()

    async def _of(self, request: ScoreRequest) -> Seated:
        key: Key = (request.judge, request.swap)
        async with self._connecting:
            if key not in self._seated_by:
                if request.judge is None:
                    settings = self._settings
                    found = self._seated(settings, await _unless_refused(self._configured))
                else:
                    found = self._seated(*await self._connected(request.judge))
                log.info("judges with %s from now on", found.settings.model)
                self._seated_by[key] = found
            else:
                self._seated_by[key] = self._seated_by.pop(key)  # the newest stands last
            return self._seated_by[key]

    def _seated(self, settings: MemberSettings, provider: Provider) -> Seated:
        return Seated(Judge(settings.role, provider, Controls(), self._on_call), provider, settings)

    def _configured(self) -> Provider:
        return providers.connect(self._name, self._settings, providers.key_of(self._name, self._settings))

    async def _connected(self, model: JudgeModel) -> tuple[MemberSettings, Provider]:
        """Raises JudgeFailure with what is to be mended."""

        def connect() -> tuple[MemberSettings, Provider]:
            settings = with_judge(self._settings, model)
            return settings, providers.connect(self._name, settings, providers.key_of(self._name, settings))

        return await _unless_refused(connect)

    async def _let_go(self) -> None:
        idle = [key for key, seated in [*self._seated_by.items()][:-KEPT] if not seated.users]
        for key in idle:
            await self._seated_by.pop(key).provider.close()


async def _unless_refused(connect: Callable[[], _Made]) -> _Made:
    """In a thread: to import an SDK for the first time takes a second or two, and requests are out meanwhile."""
    try:
        return await asyncio.to_thread(connect)
    except OvenError as error:
        raise JudgeFailure("not_configured", str(error)) from None


def _sample(seconds: float) -> ScoreRequest:
    """A group that any judge can tell apart."""
    return ScoreRequest(
        run="",
        group="probe",
        prompt="How much is 2 + 2?",
        completions=(Completion(id="a1", text="2 + 2 is 4."), Completion(id="b2", text="I will not answer that.")),
        deadline_s=seconds,
    )
