"""The base class of channels over preference pairs: their tokens, and which pairs each micro-batch uses."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from oven_core.errors import ConfigError
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.completion_logits import completion_logits, padded
from oven_learner.losses.pair_tokens import PairTokens, tokenized
from oven_runs.traces.records import Pair


@dataclass(frozen=True)
class PairSampler:
    """Chooses the pairs of each micro-batch as a function of its number, so that a resume needs no state.

    Pairs come in shuffled epochs. Of each consecutive `ranks` × `batch` pairs, rank r gets the r-th `batch`. Together
    the ranks see the same pairs as one process with a batch of `ranks` × `batch`.
    """

    pairs: int
    batch: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    _orders: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def micro_batch(self, number: int) -> list[int]:
        """Return the indices of the pairs in micro-batch `number`; 0 is the first of training."""
        first = (number * self.ranks + self.rank) * self.batch
        return [
            self._order(position // self.pairs)[position % self.pairs] for position in range(first, first + self.batch)
        ]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            if len(self._orders) > 1:  # a batch may end one epoch and begin the next
                self._orders.clear()
            order = list(range(self.pairs))
            random.Random(f"{self.seed}:{epoch}").shuffle(order)
            self._orders[epoch] = order
        return self._orders[epoch]


class PairChannel(Channel):
    """A channel over `pairs` of states and actions. Each micro-batch uses `batch` of them.

    The order is a function of `seed`, the trainer's step and the rank, so a resumed or rolled-back run sees the same
    pairs. `longest` limits state plus action, in tokens; longer pairs are skipped. None means the model's context
    length.

    The pairs are training data, so evaluation ignores them. Raises ConfigError for a `batch` or a `longest` below 1.
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
        self._untokenized, self._batch, self._longest, self._seed = tuple(pairs), batch, longest, seed
        self.pairs: Sequence[PairTokens] = ()
        """The usable pairs; empty before `bind`."""
        self._micro_batches = 0

    def bind(self, trainer: Any) -> None:
        """Tokenize the pairs. Raises ConfigError if none is usable."""
        super().bind(trainer)
        self.pairs = tokenized(trainer, self._untokenized, self.name, self._longest)
        self._untokenized = ()
        self._sampler = PairSampler(
            len(self.pairs),
            self._batch,
            self._seed,
            trainer.accelerator.process_index,
            trainer.accelerator.num_processes,
        )
        trainer.add_callback(_CountMicroBatches(self))

    def begin_step(self) -> None:
        """Reset the micro-batch counter at the start of a step."""
        self._micro_batches = 0

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """Return the tally over the next training pairs; an empty one in evaluation."""
        if not model.training:
            nothing = torch.zeros((), device=inputs["completion_ids"].device)
            return Tally(nothing, nothing)
        trainer = self._trainer
        number = trainer.state.global_step * trainer.args.gradient_accumulation_steps + self._micro_batches
        self._micro_batches += 1
        return self.tally_pairs(model, self._sampler.micro_batch(number), inputs["completion_ids"].device)

    @abstractmethod
    def tally_pairs(self, model: Any, indices: Sequence[int], device: torch.device) -> Tally:
        """Return the tally over the pairs at these indices."""

    def log_probabilities(
        self, model: Any, states: Sequence[Sequence[int]], actions: Sequence[Sequence[int]], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each action token after its state, in nats at temperature 1, and the mask.

        Both are (rows, C). Padding has the value 0.
        """
        ids, mask = padded(actions, device)
        logits = completion_logits(self._trainer, model, padded(states, device, pad_left=True), (ids, mask))
        log_probs = logits.float().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)  # (rows, C)
        return log_probs * mask, mask


class _CountMicroBatches(TrainerCallback):
    def __init__(self, channel: PairChannel) -> None:
        self._channel = channel

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._channel.begin_step()
