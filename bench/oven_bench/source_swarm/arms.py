"""Who steers a run of the experiment, and what it starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeAlias

from oven_bench.fixed_rules import Alone, Rule, RuleLink
from oven_bench.gym.arms.controller import SHUFFLES, controller_link, prior
from oven_bench.gym.arms.in_memory_link import LoopLink
from oven_bench.source_swarm.decision_cycle import SourceSwarm
from oven_bench.source_swarm.rules import FIRST_GRAPH_WEIGHT, as_coded, as_written
from oven_core.protocol.messages import Receipt

SERVED: Final = "int4"
"""In what precision the weights are served at the end. The source's contest scored weights in 6 bits; of what the knob
has, 4 bits are where training for it can matter."""
Scores: TypeAlias = Literal["graph", "shuffled", "none"]
AnyLink: TypeAlias = RuleLink | LoopLink


@dataclass(frozen=True, slots=True)
class Arm:
    """`scores`: the token scores that scale the embedding and weight the loss: a graph's, the same ones on other
    tokens, or none. `link`: the other end of a run, from the seed."""

    name: str
    about: str
    scores: Scores
    link: Callable[[int], AnyLink]
    ahead: bool = True
    """Whether multi-token prediction is on at the start."""

    def start(self, files: Mapping[Scores, str]) -> dict[str, object]:
        """The recipe's settings: what the source starts from. `files`: where scores lie."""
        found: dict[str, object] = {"max_grad_norm": 0.3, "schedule": "cosine", "served": SERVED}
        found["mtp_weight"] = 0.1 if self.ahead else 0.0
        if self.scores != "none":
            found |= {"token_prior": files[self.scores], "kg_weight": FIRST_GRAPH_WEIGHT}
        return found


def _ruled(rule: Callable[[], Rule]) -> Callable[[int], RuleLink]:
    return lambda seed: RuleLink(rule())


def _ours(graph: Scores) -> Callable[[int], LoopLink]:
    """The mesh with all installed agents, and the graph of remedies that diagnoses: as it is, shuffled, or none."""

    def link(seed: int) -> LoopLink:
        shuffled = Random(seed).randrange(SHUFFLES) if graph == "shuffled" else None
        return controller_link(f"source-swarm-{seed}", None, None if graph == "none" else prior(shuffled))

    return link


_ALL: Final = (
    Arm("plain", "no controller, no graph, no tokens ahead", "none", _ruled(Alone), ahead=False),
    Arm("alone", "the source's start, no controller", "graph", _ruled(Alone)),
    Arm("source.as_coded", "its four agents; any proposal of .6 or more is applied", "graph",
        _ruled(lambda: SourceSwarm(as_coded, SERVED))),
    Arm("source.as_written", "its four agents; one of .85, or two that agree, and below .3 a veto", "graph",
        _ruled(lambda: SourceSwarm(as_written, SERVED))),
    Arm("source.with_rate", "as coded, with the rate's agent that it left out", "graph",
        _ruled(lambda: SourceSwarm(as_coded, SERVED, with_rate=True))),
    Arm("ours", "all installed agents and the mesh", "graph", _ours("graph")),
    Arm("ours.without", "the same without a graph: no scores, and none that diagnoses", "none", _ours("none")),
    Arm("ours.shuffled", "the same with both graphs shuffled", "shuffled", _ours("shuffled")),
)  # fmt: skip
ARMS: Final[Mapping[str, Arm]] = {arm.name: arm for arm in _ALL}


def applied(link: AnyLink) -> Sequence[Receipt]:
    """What changed the run, oldest first."""
    if isinstance(link, RuleLink):
        receipts: Sequence[Receipt] = link.receipts
    else:
        receipts = [event.body for event in link.events if isinstance(event.body, Receipt)]
    return [receipt for receipt in receipts if receipt.status == "applied"]
