"""`channel.replay`: what teachers would have done at the policy's own steps, as preferences; and its control,
`channel.imitation`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.losses.channel import Tally
from oven_learner.losses.pair_channel import PairChannel
from oven_learner.losses.pair_tokens import PairTokens
from oven_learner.teachers.registry import has_reference, reference
from oven_runs.traces.records import Pair

AT_ONCE = 8
"""Pairs whose reference log-probabilities are computed in one pass: their logits are in memory together."""


class ReplayPreference(PairChannel):
    """Direct preference optimisation over pairs (Rafailov et al. 2023, arXiv 2305.18290, eq. 7): mean over pairs of
    −log σ(β·(Δ_chosen − Δ_rejected)), Δ an action's log-probability minus the reference's, both summed over its tokens.
    `beta` is DPO's own; the weight in the loss is the channel's.

    `anchor`: "start", the policy as it was when the weight first rose above 0, whose log-probabilities are computed
    once and kept (in checkpoints, too); or "reference", the trainer's reference model, asked each time, so that
    `teacher.active` acts. Gauges are over the same pairs; the margin has β in it, as TRL's `rewards/margins`.

    Raises ConfigError for a β that is not above 0, and, before training and before a weight above 0, for an anchor that
    is not there.
    """

    name = "replay"
    unit = "nats per pair"
    gauges: ClassVar[tuple[MetricSpec, ...]] = (
        MetricSpec(name="accuracy", better="up", unit="share of pairs whose chosen action gained more"),
        MetricSpec(name="margin", better="up", unit="nats that the chosen gained over the rejected, times DPO's β"),
    )

    def __init__(
        self,
        pairs: Sequence[Pair | PairTokens],
        weight: float = 0.0,
        *,
        maximum: float = 1.0,
        beta: float = 0.1,
        anchor: Literal["start", "reference"] = "start",
        batch: int = 4,
        longest: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(pairs, weight, maximum=maximum, batch=batch, longest=longest, seed=seed)
        if not (math.isfinite(beta) and beta > 0):
            raise ConfigError(f"channel.replay: beta {beta:g}; give a finite one above 0, DPO's own is 0.1")
        if anchor not in ("start", "reference"):
            raise ConfigError(f"channel.replay: anchor {anchor!r}; give 'start' or 'reference'")
        self.beta, self.anchor = beta, anchor
        self._start: Any = None

    def bind(self, trainer: Any) -> None:
        """Renders the pairs. Raises ConfigError where none is left."""
        super().bind(trainer)
        if self.anchor == "start":
            self._start = StartingPolicy(self.pairs, trainer.accelerator.device)

    @property
    def module(self) -> nn.Module | None:
        """The starting policy's log-probabilities."""
        start: nn.Module | None = self._start
        return start

    def check(self) -> None:
        """Raises ConfigError where the pairs have no reference."""
        if self.anchor == "reference" and not has_reference(self._trainer):
            raise ConfigError(
                "channel.replay: the pairs have no reference, since the trainer has none; give it one by a GRPO beta "
                "above 0, an adapter or Teachers(trainer), or anchor='start', the policy as it is at the start"
            )

    def over(self, model: Any, places: Sequence[int], device: torch.device) -> Tally:
        """The loss summed over the pairs, and their number."""
        before = self._reference(places, device)  # (2, pairs)
        found = self._scores(model, places, device)  # (2, pairs)
        gained = self.beta * (found - before)
        apart = gained[0] - gained[1]
        total = -logsigmoid(apart).sum()
        count = torch.tensor(len(places), device=device)
        seen = apart.detach()
        return Tally(total, count, {"accuracy": ((seen > 0).float().sum(), count), "margin": (seen.sum(), count)})

    def _scores(self, model: Any, places: Sequence[int], device: torch.device) -> Tensor:
        """(2, pairs): the log-probability of the chosen and of the rejected action, in nats."""
        pairs = [self.pairs[place] for place in places]
        actions = [*(pair.chosen for pair in pairs), *(pair.rejected for pair in pairs)]
        found, _ = self.log_probabilities(model, [pair.state for pair in pairs] * 2, actions, device)
        return found.sum(-1).view(2, len(pairs))

    @torch.no_grad()
    def _reference(self, places: Sequence[int], device: torch.device) -> Tensor:
        """The same of the reference."""
        if self._start is None:
            with reference(self._trainer) as model:
                return self._scores(model, places, device)
        if not self._start.known:
            self._start.put(self._measured(device))
        kept: Tensor = self._start.of(places)
        return kept

    def _measured(self, device: torch.device) -> Tensor:
        """(2, all pairs) of the policy as it is now, without dropout; each rank computes a part."""
        accelerator = self._trainer.accelerator
        policy = accelerator.unwrap_model(self._trainer.model)
        whole = torch.zeros(2, len(self.pairs), device=device)
        own = range(accelerator.process_index, len(self.pairs), accelerator.num_processes)
        trained = policy.training
        policy.eval()
        try:
            for first in range(0, len(own), AT_ONCE):
                places = list(own[first : first + AT_ONCE])
                whole[:, places] = self._scores(policy, places, device)
        finally:
            policy.train(trained)
        summed: Tensor = accelerator.reduce(whole, reduction="sum")
        return summed


class StartingPolicy(nn.Module):
    """The log-probabilities that the policy gave both actions of each pair, once; 8 bytes a pair."""

    def __init__(self, pairs: Sequence[PairTokens], device: torch.device) -> None:
        super().__init__()
        said = repr([(one.state, one.chosen, one.rejected) for one in pairs])
        self._pairs = hashlib.sha256(said.encode()).hexdigest()
        self.register_buffer("nats", torch.full((2, len(pairs)), math.nan, device=device))

    def get_extra_state(self) -> dict[str, str]:
        """Which pairs they are of."""
        return {"pairs": self._pairs}

    def set_extra_state(self, state: dict[str, str]) -> None:
        """Raises ConfigError for those of other pairs."""
        if state["pairs"] != self._pairs:
            raise ConfigError(
                "channel.replay: the checkpoint is of a training on other pairs; resume with the same file of pairs, "
                "in the same order, or begin a training anew"
            )

    @property
    def known(self) -> bool:
        """Whether they were computed. A pair may have NaN for its own: computed once more, its start would be another
        policy."""
        return not bool(self.get_buffer("nats").isnan().all())

    def put(self, nats: Tensor) -> None:
        """(2, pairs)."""
        self.get_buffer("nats").copy_(nats)

    def of(self, places: Sequence[int]) -> Tensor:
        """(2, places)."""
        return self.get_buffer("nats")[:, list(places)]


class ReplayImitation(PairChannel):
    """Negative log-likelihood per token of the chosen actions alone: supervised fine-tuning on what teachers would have
    done, to see what the comparison with the policy's own action adds."""

    name = "imitation"
    unit = "nats per token of the chosen action"

    def over(self, model: Any, places: Sequence[int], device: torch.device) -> Tally:
        """The negative log-likelihood summed over the actions' tokens, and their number."""
        pairs = [self.pairs[place] for place in places]
        found, mask = self.log_probabilities(
            model, [pair.state for pair in pairs], [pair.chosen for pair in pairs], device
        )
        return Tally(-found.sum(), mask.sum())
