"""Faults: what goes wrong in a training run. A family draws cases; a case acts on a trainee through a few hooks."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import torch

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Kind, Trainee


class Case:
    """One drawn fault. Every hook does nothing unless overridden, and does nothing before `onset`.

    A case keeps no state of its own: what it does depends on the trainee, on `gradient_steps` or `cursor`, and on
    generators seeded with them (`generator`), so that an episode can begin from a copy of a healthy run, and every arm
    meets the same fault. What lasts (a rate that is set wrong) is written into the trainee's settings at each step;
    what passes (a bad stretch of data, a spike) acts within its time alone, and must leave no trace but in the weights
    and moments.
    """

    onset: int
    """The first gradient step, or data position, that it acts on; 0 is the first of the run."""

    def settings(self, trainee: Trainee) -> None:
        """Before a step: get one of `trainee.settings` wrong (they were reset to the user's own just before)."""

    def weights(self, trainee: Trainee) -> None:
        """Before a step: damage `trainee.model` or the moments in `trainee.optimizer`."""

    def batch(self, batch: Any, cursor: int) -> Any:
        """What is read at this position. Pretraining: int64 tokens [batch, length + 1], below 256. GRPO: the prompts of
        a step. Returns a new one, or the one given."""
        return batch

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        """Before the backward pass."""
        return loss

    def gradients(self, trainee: Trainee) -> None:
        """After the backward pass, before clipping: change the `.grad` of `trainee.model`'s parameters in place."""

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """GRPO: what the judges say of each completion, by judge: {judge: float32 [batch]}; NaN: it abstained. A judge
        whose every answer is missing was down."""
        return rewards


class Family:
    """A kind of fault. `draw` gives another severity and onset for each generator."""

    name: ClassVar[str]
    """Dotted with the kind: `pretraining.lr_too_high`. No arm is told it."""
    kind: ClassVar[Kind]
    healthy: ClassVar[bool] = False
    """Nothing is wrong: a healthy run, or a hard negative, which only looks like a fault. What an arm changes here is
    at best for nothing."""

    def draw(self, rng: Random, onset: int) -> Case:
        """`onset`: where the episode has it begin (a gradient step past the prefix); a family whose fault is there from
        the start sets its case's to 0. Severity is the family's to draw, from mild to severe."""
        raise NotImplementedError


def generator(*seed: object) -> torch.Generator:
    """Seeded by the values: the same for the same ones, in any process."""
    made = torch.Generator()
    made.manual_seed(Random(repr(seed)).getrandbits(63))
    return made
