"""What the channels over preference pairs share: the pairs as tokens, and which of them a micro-batch has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.completion_logits import completion_logits, padded
from oven_learner.losses.pair_sampler import PairSampler
from oven_learner.losses.pair_tokens import PairTokens, tokenized
from oven_runs.traces.records import Pair


class PairChannel(Channel):
    """`pairs` of states and actions, of which each micro-batch has `batch`, in an order that is a function of `seed`,
    the trainer's step and the rank: a training that is resumed, or goes back, has those that it would have had.
    `longest`: tokens of a state and an action, beyond which a pair is left out; None: what the model can read.

    In evaluation it adds nothing: its pairs are training data. Raises ConfigError for an empty batch, and for a
    `longest` below 1.
    """

    def __init__(
        self,
        pairs: Sequence[Pair | PairTokens],
        weight: float = 0.0,
        *,
        maximum: float = 1.0,
        batch: int = 4,
        longest: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(weight, maximum=maximum)
        if batch < 1:
            raise ConfigError(f"channel.{self.name}: a batch of {batch} pairs; give 1 or more")
        if longest is not None and longest < 1:
            raise ConfigError(f"channel.{self.name}: longest {longest} tokens; give 1 or more, or None for no limit")
        self._given, self._batch, self._longest, self._seed = tuple(pairs), batch, longest, seed
        self.pairs: Sequence[PairTokens] = ()
        """Those that can be trained on; known from `bind` on."""
        self._taken = 0

    def bind(self, trainer: Any) -> None:
        """Renders the pairs. Raises ConfigError where none is left."""
        super().bind(trainer)
        self.pairs = tokenized(trainer, self._given, self.name, self._longest)
        self._given = ()
        self._sampler = PairSampler(
            len(self.pairs),
            self._batch,
            self._seed,
            trainer.accelerator.process_index,
            trainer.accelerator.num_processes,
        )
        trainer.add_callback(_CountMicroBatches(self))

    def begin_step(self) -> None:
        """No micro-batch of the step has run."""
        self._taken = 0

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """Over the next pairs of training; nothing in evaluation."""
        if not model.training:
            nothing = torch.zeros((), device=inputs["completion_ids"].device)
            return Tally(nothing, nothing)
        trainer = self._trainer
        number = trainer.state.global_step * trainer.args.gradient_accumulation_steps + self._taken
        self._taken += 1
        return self.over(model, self._sampler.at(number), inputs["completion_ids"].device)

    @abstractmethod
    def over(self, model: Any, places: Sequence[int], device: torch.device) -> Tally:
        """The term over the pairs in these places."""

    def log_probabilities(
        self, model: Any, states: Sequence[Sequence[int]], actions: Sequence[Sequence[int]], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Of each action's tokens after its state, nats at temperature 1, (rows, C), 0 where there is padding; and the
        mask."""
        ids, mask = padded(actions, device)
        logits = completion_logits(self._trainer, model, padded(states, device, left=True), (ids, mask))
        found = logits.float().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)  # (rows, C)
        return found * mask, mask


class _CountMicroBatches(TrainerCallback):
    def __init__(self, channel: PairChannel) -> None:
        self._channel = channel

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._channel.begin_step()
