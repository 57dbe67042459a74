"""`channel.replay`: preferences for teachers' actions at the policy's own steps, and its control
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
"""Pairs per pass when reference log-probabilities are computed. All their logits are in memory together."""


class ReplayPreference(PairChannel):
    """Direct preference optimisation over pairs (Rafailov et al. 2023, arXiv 2305.18290, eq. 7): the mean of −log
    σ(β·(Δ_chosen − Δ_rejected)). Δ is an action's log-probability minus the reference's, both summed over tokens.
    `beta` is DPO's own. The channel's weight scales the term in the loss.

    `anchor` is the reference. "start" is the policy when the weight first rose above 0. Its log-probabilities are
    computed once and kept, also in checkpoints. "reference" is the trainer's reference model, computed each time, so
    that `teacher.active` takes effect. Gauges are over the same pairs. The margin includes β, like TRL's
    `rewards/margins`.

    Raises ConfigError for a β that is not above 0. Before training and before a weight above 0 it also raises
    ConfigError if the anchor is missing.
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
        """Tokenize the pairs. Raises ConfigError if none is usable."""
        super().bind(trainer)
        if self.anchor == "start":
            self._start = StartingPolicy(self.pairs, trainer.accelerator.device)

    @property
    def module(self) -> nn.Module | None:
        """The starting policy's log-probabilities."""
        start: nn.Module | None = self._start
        return start

    def check(self) -> None:
        """Raise ConfigError if there is no reference for the pairs."""
        if self.anchor == "reference" and not has_reference(self._trainer):
            raise ConfigError(
                "channel.replay: the trainer has no reference model; add one with a GRPO beta above 0, an adapter or "
                "Teachers(trainer), or use anchor='start' for the starting policy"
            )

    def tally_pairs(self, model: Any, indices: Sequence[int], device: torch.device) -> Tally:
        """Return the loss summed over the pairs, and their number."""
        before = self._reference(indices, device)  # (2, pairs)
        scores = self._scores(model, indices, device)  # (2, pairs)
        gained = self.beta * (scores - before)
        apart = gained[0] - gained[1]
        total = -logsigmoid(apart).sum()
        count = torch.tensor(len(indices), device=device)
        margins = apart.detach()
        return Tally(total, count, {"accuracy": ((margins > 0).float().sum(), count), "margin": (margins.sum(), count)})

    def _scores(self, model: Any, indices: Sequence[int], device: torch.device) -> Tensor:
        """Return (2, pairs): the log-probabilities of the chosen and the rejected actions, in nats."""
        pairs = [self.pairs[index] for index in indices]
        actions = [*(pair.chosen for pair in pairs), *(pair.rejected for pair in pairs)]
        log_probs, _ = self.log_probabilities(model, [pair.state for pair in pairs] * 2, actions, device)
        return log_probs.sum(-1).view(2, len(pairs))

    @torch.no_grad()
    def _reference(self, indices: Sequence[int], device: torch.device) -> Tensor:
        """Return the same for the reference."""
        if self._start is None:
            with reference(self._trainer) as model:
                return self._scores(model, indices, device)
        if not self._start.measured:
            self._start.store(self._measured(device))
        start_scores: Tensor = self._start.select(indices)
        return start_scores

    def _measured(self, device: torch.device) -> Tensor:
        """Return (2, all pairs) for the current policy, without dropout. Each rank computes a part."""
        accelerator = self._trainer.accelerator
        policy = accelerator.unwrap_model(self._trainer.model)
        whole = torch.zeros(2, len(self.pairs), device=device)
        own = range(accelerator.process_index, len(self.pairs), accelerator.num_processes)
        was_training = policy.training
        policy.eval()
        try:
            for first in range(0, len(own), AT_ONCE):
                indices = list(own[first : first + AT_ONCE])
                whole[:, indices] = self._scores(policy, indices, device)
        finally:
            policy.train(was_training)
        summed: Tensor = accelerator.reduce(whole, reduction="sum")
        return summed


class StartingPolicy(nn.Module):
    """The starting policy's log-probabilities of both actions of each pair. Memory: 8 bytes per pair."""

    def __init__(self, pairs: Sequence[PairTokens], device: torch.device) -> None:
        super().__init__()
        identity = repr([(pair.state, pair.chosen, pair.rejected) for pair in pairs])
        self._pairs = hashlib.sha256(identity.encode()).hexdigest()
        self.register_buffer("nats", torch.full((2, len(pairs)), math.nan, device=device))

    def get_extra_state(self) -> dict[str, str]:
        """Return the digest of the pairs."""
        return {"pairs": self._pairs}

    def set_extra_state(self, state: dict[str, str]) -> None:
        """Raise ConfigError if the checkpoint has other pairs."""
        if state["pairs"] != self._pairs:
            raise ConfigError(
                "channel.replay: the checkpoint has other pairs; resume with the same pairs in the same order, "
                "or start a new training"
            )

    @property
    def measured(self) -> bool:
        """Whether they were computed. Single pairs may be NaN: computing them later would use another policy."""
        return not bool(self.get_buffer("nats").isnan().all())

    def store(self, nats: Tensor) -> None:
        """Store the log-probabilities, (2, pairs)."""
        self.get_buffer("nats").copy_(nats)

    def select(self, indices: Sequence[int]) -> Tensor:
        """Return (2, indices)."""
        return self.get_buffer("nats")[:, list(indices)]


class ReplayImitation(PairChannel):
    """Negative log-likelihood per token of the chosen actions alone: supervised fine-tuning on the teachers' actions.

    A control that shows how much the comparison with the policy's own action adds.
    """

    name = "imitation"
    unit = "nats per token of the chosen action"

    def tally_pairs(self, model: Any, indices: Sequence[int], device: torch.device) -> Tally:
        """Return the negative log-likelihood summed over the actions' tokens, and their number."""
        pairs = [self.pairs[index] for index in indices]
        log_probs, mask = self.log_probabilities(
            model, [pair.state for pair in pairs], [pair.chosen for pair in pairs], device
        )
        return Tally(-log_probs.sum(), mask.sum())
