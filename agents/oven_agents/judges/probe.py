"""One real call to a judge's endpoint: whether it can judge, and what of what was asked for it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from oven_agents.judges.failures import Kind
from oven_agents.judges.providers.provider import Provider
from oven_controller.settings.judge_providers import SchemaMode

PROBE_S = 30.0
"""For the call with its retries: a model that reasons takes a while even for two short answers."""


@dataclass(frozen=True)
class ProbeResult:
    """What one call told. It holds no text of the endpoint's."""

    provider: str
    """As in the settings."""
    model: str
    latency_s: float
    failure: Kind | None = None
    """Why it cannot judge; None: it can."""
    detail: str = ""
    remedy: str = ""
    schema: SchemaMode | None = None
    """What its answers are held to; None: not known, since it gave none."""
    top_logprobs: int = 0
    """Alternatives a token that came; 0: no log-probabilities, or not asked for."""
    usd_per_million: tuple[float, float] | None = None
    """Of tokens in and out; None: not known."""
    lacks: tuple[str, ...] = ()
    """A sentence for each thing that was asked for and is not to be had."""

    @property
    def can_judge(self) -> bool:
        return self.failure is None


async def probe(provider: Provider, timeout_s: float = PROBE_S) -> ProbeResult:
    """Ask once, as a member asks. Never raises for what the endpoint does; ends by `timeout_s`. What the endpoint
    refuses the provider asks no more of it, so a judge is probed with the provider that it will use."""
    raise NotImplementedError
