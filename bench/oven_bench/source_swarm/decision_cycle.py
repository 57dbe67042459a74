"""The source's swarm at the other end of a learner's link: a decision cycle every so many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from oven_bench.fixed_rules import Change
from oven_bench.source_swarm import rules
from oven_bench.source_swarm.rules import Gauges, Proposal
from oven_core.errors import ConfigError
from oven_core.protocol.messages import Observation, RunStarted

CYCLES: Final = 9
"""Decision cycles in a run: the source has one each 800 steps, and expects nine of them in its run of 7,000."""
NEEDED: Final = (rules.GRAPH, rules.TOKENS_AHEAD, rules.CLIP, rules.PRECISION, rules.RATE)

Consensus = Callable[[Sequence[Proposal]], list[Proposal]]


class SourceSwarm:
    """A rule for `RuleLink`. It is given what the source's own swarm lacked: knobs that act when they are turned,
    progress against the run's true horizon, and gradient norms that are not 0.

    `bits`: the precision that quantisation-aware training is turned on in. `with_rate`: the fifth agent, too, which the
    source wrote and left out of its swarm.
    """

    def __init__(self, consensus: Consensus, bits: str, *, with_rate: bool = False) -> None:
        self._consensus, self._bits, self._with_rate = consensus, bits, with_rate
        self._every = self._steps = 0
        self._losses: list[float] = []
        self._peak = 0.0
        self._graph_weight, self._scale = rules.FIRST_GRAPH_WEIGHT, 1.0
        self._quantised = False

    def start(self, run: RunStarted) -> None:
        """Raises ConfigError for a run that lacks one of its knobs, or an end."""
        missing = sorted(set(NEEDED) - {spec.name for spec in run.actuators})
        if missing or run.horizon.max_steps is None:
            raise ConfigError(f"the source's swarm needs {', '.join(missing) or 'a number of steps'} in the run")
        self._steps = run.horizon.max_steps
        self._every = max(1, round(self._steps / CYCLES))

    def look(self, observation: Observation) -> list[Change]:
        loss, rate = (observation.metrics.get(name) for name in ("loss", "learning_rate"))
        if loss is None or rate is None:  # a reading of what is held out, and no step
            return []
        self._losses.append(loss)
        self._peak = max(self._peak, rate)
        if observation.step % self._every:
            return []
        gauges = Gauges(
            progress=observation.step / self._steps,
            schedule=rate / self._peak if self._peak > 0 else 1.0,
            grad_norm=observation.metrics.get("grad_norm", 0.0),
            losses=self._losses,
            quantised=self._quantised,
            rate_scale=self._scale,
        )
        passed = self._consensus(self._proposals(gauges))
        for one in passed:
            if one.actuator == rules.PRECISION:
                self._quantised = True
            elif one.actuator == rules.RATE and isinstance(one.value, float):
                self._scale = one.value
        return [(one.actuator, one.value) for one in passed]

    def _proposals(self, gauges: Gauges) -> list[Proposal]:
        """In the order of the source's swarm."""
        weight = rules.graph_weight(gauges, self._graph_weight)
        if weight is not None and isinstance(weight.value, float):
            self._graph_weight = weight.value  # whatever became of it: its agent remembers what it said
        found = [rules.precision(gauges, self._bits), weight, rules.clip(gauges), rules.tokens_ahead(gauges)]
        found += [rules.rate(gauges)] if self._with_rate else []
        return [one for one in found if one is not None]
