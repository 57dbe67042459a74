"""GRPO faults of settings, loss and weights, and healthy runs that only look ill."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import nll_loss, pad

from oven_bench.gym.fault import DividedRate, Fault, MultipliedRate, Step, due, fault
from oven_bench.gym.seeded_draws import (
    choice,
    count,
    drawn,
    generator,
    log10_uniform,
    log_uniform,
    random_seed,
    uniform,
    whole,
)
from oven_bench.gym.sorting.policy import warm_weights
from oven_bench.gym.sorting.sorting_task import ANSWER, END, LEVELS, PAD, pools


@fault("grpo.healthy", healthy=True)
class Healthy(Fault):
    """Nothing is wrong."""


@fault("grpo.lr_too_high")
class RateTooHigh(MultipliedRate):
    """The learning rate is too high from the onset on."""

    factor: float = log_uniform(3, 30)


@fault("grpo.lr_too_low")
class RateTooLow(DividedRate):
    """The learning rate is too low from the first step, so the run crawls."""

    divisor: float = log_uniform(3, 100)


@fault("grpo.kl_blow_up")
class KlBlowUp(Fault):
    """The KL term is lost while the learning rate rises, and the policy drifts away from its reference."""

    factor: float = log_uniform(3, 15)

    def settings(self, step: Step) -> None:
        step.settings["beta"] = 0.0
        step.settings["learning_rate"] *= self.factor


@fault("grpo.mixture_drift")
class MixtureDrift(Fault):
    """The mixture drifts to the easiest level. The other levels are no longer trained and are forgotten."""

    mass: float = uniform(0.7, 1)  # that moves from the other levels to the easiest
    steps: int = whole(30, 5)  # that the drift takes

    def settings(self, step: Step) -> None:
        moved = self.mass * min(1.0, step.since / self.steps)
        for level in LEVELS:
            step.settings[f"data.mixture/{level}"] *= 1 - moved
        step.settings[f"data.mixture/{LEVELS[0]}"] += moved


@fault("grpo.harder_prompts", healthy=True)
class HarderPrompts(Fault):
    """The user moves on to the hardest level as planned: the reward falls and then stays flat."""

    hardest: float = uniform(0.5, 0.7)

    def settings(self, step: Step) -> None:
        rest = (1 - self.hardest) / (len(LEVELS) - 1)
        step.settings.update({f"data.mixture/{level}": rest for level in LEVELS})
        step.settings[f"data.mixture/{LEVELS[-1]}"] = self.hardest


@fault("grpo.heavy_demonstrations")
class HeavyDemonstrations(Fault):
    """A loss on demonstrations outweighs the reward's, and many demonstrations only repeat the prompt (mixed loss as in
    Ouyang et al. 2022, InstructGPT)."""

    weight: float = log10_uniform(-1.5, 0.7)
    copies: float = uniform(0.4, 0.9)  # share of demonstrations that only repeat the prompt
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        digits, answers = demonstrations(self.copies, self.seed, step.cursor)
        return loss + self.weight * nll_loss(step.policy(digits, answers), answers[answers != PAD])


def demonstrations(copies: float, *seed: object, rows: int = 64) -> tuple[Tensor, Tensor]:
    """Prompts [rows, PROMPT] of all levels with their demonstrated answers [rows, ANSWER]."""
    digits = torch.cat([level.digits for level in pools()])
    answers = torch.cat([level.answers for level in pools()])
    picked = torch.randint(len(digits), (rows,), generator=generator("demonstrations", *seed))
    digits, answers = digits[picked], answers[picked]
    copied = pad(digits, (0, ANSWER - digits.shape[1]), value=PAD)
    copied = copied.scatter(1, (digits != PAD).sum(1, keepdim=True), END)
    wrong = torch.rand(rows, generator=generator("copies", *seed)) < copies
    return digits, torch.where(wrong.unsqueeze(1), copied, answers)


@fault("grpo.other_algorithm")
class OtherAlgorithm(Fault):
    """Two PPO defaults stay on: the reward is discounted towards the first tokens, on which everything depends, and
    every token's reward loses its distance to the reference as well."""

    length: int = count(30, 0.8)
    discount: float = choice((0.3, 0.5, 0.7, 0.9, 0.95))  # of the credit, per token that follows
    price: float = log10_uniform(-1.7, 0.3)  # per nat above the reference's log-probability

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        following = (step.mask.sum(1, keepdim=True) - step.mask.cumsum(1))[step.mask]  # int64 [N], tokens behind each
        gap = step.log_probs.detach() - step.reference
        return step.grpo_loss(credit=step.credit * self.discount**following - self.price * gap)


@fault("grpo.merged_twice")
class MergedTwice(Fault):
    """Each save merges an adapter into the base but also keeps the adapter. A reload then applies everything learnt
    twice, or more often when the adapter has a scale."""

    scale: float = log10_uniform(-0.3, 0.6)
    every: int = choice((10, 20, 40))  # steps between two saves
    saves: int = choice((1, 1, 1, 2, 3))

    def weights(self, step: Step) -> None:
        if due(step.since, self.every, self.saves):
            initial = warm_weights(step.seed)
            for name, weight in step.model.named_parameters():
                weight.add_(weight - initial[name], alpha=self.scale)


@fault("grpo.misplaced_rows")
class MisplacedRows(Fault):
    """A conversion to another number of ranks joins the parts of one matrix in the wrong order. All rows are present
    and all norms unchanged, but the rows mean something else."""

    length: int = 1
    matrix: float = uniform(0.0, 1.0)  # which one, as a position among all
    share: float = drawn(lambda rng: 0.03 * 20 ** rng.random())  # of its rows

    def weights(self, step: Step) -> None:
        matrices = [parameter for parameter in step.model.parameters() if parameter.ndim == 2]
        matrix = matrices[int(self.matrix * len(matrices))]
        rows = max(2, round(self.share * len(matrix)))
        matrix[:rows] = matrix[:rows].roll(rows // 2, dims=0)
