"""Another GRPO loss: other credit, other log-probabilities, or something beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss, pad

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.seeded_draws import choice, count, generator, log10_uniform, random_seed, uniform
from oven_bench.gym.sorting.sorting_prompts import ANSWER, END, LEVELS, PAD, draw, pools
from oven_bench.gym.sorting.two_layer_policy import Policy
from oven_bench.gym.tasks.grpo.policy_loss import FLAT, advantages, policy_loss


@fault("grpo.baseline_axis", written="set B")
class BaselineAxis(Fault):
    """A reward is compared with the whole batch and divided by its own group's spread: easy prompts are praised
    whatever is answered, hard ones blamed, and where a group's answers are alike the quotient is huge."""

    length: int = count(15, 1.0)
    least: float = choice((FLAT, 0.01, 0.1, 0.3))  # added to a group's deviation

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        gained = over_all(step.rewards, self.least) - advantages(step.rewards)
        return loss + policy_loss(step.log_probs, step.log_probs.detach(), step.by_token(gained))


def over_all(rewards: Tensor, least: float) -> Tensor:
    """[groups, group] → the same: against the mean of all, in units of the group's own deviation."""
    return (rewards - rewards.mean()) / (rewards.std(1, keepdim=True) + least)


@fault("grpo.dropped_repeats", written="set C")
class DroppedRepeats(Fault):
    """Answers that a group has already are dropped after the advantages were computed: of several right answers one is
    left, with a small credit, against the full blame of each that is wrong."""

    length: int = count(25, 0.9)
    tokens: int = choice((1, 2, 3, 99, 99))  # by which two answers are compared
    share: float = uniform(0.4, 1.0)  # of the repeats
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        met = self.struck(len(step.answers), "repeats", step.seed, step.number)
        kept = ~(repeats(step.answers[:, : self.tokens], step.completions.group) & met)
        return step.grpo_loss(counted=step.by_token(kept))


def repeats(answers: Tensor, group: int) -> Tensor:
    """Bool [B]: whether a row before it in its group is the same."""
    rows = answers.view(-1, group, answers.shape[1])
    same = (rows.unsqueeze(1) == rows.unsqueeze(2)).all(-1)  # [groups, group, group]
    return same.tril(-1).any(-1).flatten()


@fault("grpo.entropy_bonus", written="fourth set", source="Cui et al. 2025, on the entropy mechanism")
class EntropyBonus(Fault):
    """A bonus for entropy with the coefficient of another task: there are far more wrong tokens than right ones, and it
    pays for all of them."""

    coefficient: float = log10_uniform(-1.7, 0.1)  # of the mean entropy of a token
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return loss - self.coefficient * entropy(step.policy, self.draws("entropy", step.number))


def entropy(policy: Policy, draws: torch.Generator, prompts: int = 64) -> Tensor:
    """Nats a token of what the policy answers to so many prompts, with its gradient."""
    asked = draw(prompts, dict.fromkeys(LEVELS, 1.0), draws)
    distribution: Tensor = policy(asked.digits, policy.sample(asked.digits, 1.0, draws))
    return -(distribution.exp() * distribution).sum(-1).mean()


@fault("grpo.heavy_demonstrations", written="sixth set", source="Ouyang et al. 2022 (InstructGPT), on the mixed loss")
class HeavyDemonstrations(Fault):
    """Compound: a loss on demonstrations has too much weight beside that of the rewards, and many of the demonstrations
    only say the prompt again. Rewards pull one way and demonstrations the other."""

    weight: float = log10_uniform(-1.5, 0.7)
    copies: float = uniform(0.4, 0.9)  # share of them that only say the prompt again
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        digits, answers = demonstrations(self.copies, self.seed, step.cursor)
        return loss + self.weight * nll_loss(step.policy(digits, answers), answers[answers != PAD])


def demonstrations(copies: float, *seed: object, rows: int = 64) -> tuple[Tensor, Tensor]:
    """Prompts [rows, PROMPT] of all levels, and what is shown to be their answers [rows, ANSWER]."""
    digits = torch.cat([level.digits for level in pools()])
    answers = torch.cat([level.answers for level in pools()])
    picked = torch.randint(len(digits), (rows,), generator=generator("demonstrations", *seed))
    digits, answers = digits[picked], answers[picked]
    copied = pad(digits, (0, ANSWER - digits.shape[1]), value=PAD)
    copied = copied.scatter(1, (digits != PAD).sum(1, keepdim=True), END)
    wrong = torch.rand(rows, generator=generator("copies", *seed)) < copies
    return digits, torch.where(wrong.unsqueeze(1), copied, answers)


@fault("grpo.other_algorithm", written="set C")
class OtherAlgorithm(Fault):
    """Compound: two defaults of PPO stay on. The reward is discounted on its way to the first tokens, on which all
    depends, and the distance to the reference is taken out of every token's reward as well."""

    length: int = count(30, 0.8)
    discount: float = choice((0.3, 0.5, 0.7, 0.9, 0.95))  # of the credit, for each token that stands behind
    price: float = log10_uniform(-1.7, 0.3)  # of a nat by which a token is likelier than to the reference

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        gap = step.log_probs.detach() - step.reference
        return step.grpo_loss(credit=step.credit * self.discount ** behind(step.mask) - self.price * gap)


def behind(mask: Tensor) -> Tensor:
    """Int64 [N]: how many tokens of its answer stand behind each of the tokens of a mask [B, ANSWER]."""
    return (mask.sum(1, keepdim=True) - mask.cumsum(1))[mask]


@fault("grpo.overflowing_credit", written="set C")
class OverflowingCredit(Fault):
    """Advantages in a number format that is too small come out at the other end, with the other sign: the only right
    answer of a group is punished, and the only wrong one praised."""

    length: int = count(15, 1.0)
    limit: float = uniform(0.9, 2.4)

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return step.grpo_loss(credit=wrapped(step.credit, self.limit))


def wrapped(credit: Tensor, limit: float) -> Tensor:
    """What lies above the limit, or below minus it, comes out at the other end."""
    return (credit + limit) % (2 * limit) - limit


@fault("grpo.shifted_log_probs", written="set A")
class ShiftedLogProbs(Fault):
    """The sampler's log-probabilities are one token off, so that the ratio is anything: half of what was to be praised
    is clipped away, and a bad token may be punished many times over."""

    length: int = count(15, 1.1)
    share: float = uniform(0.2, 1.0)  # of the tokens
    by: int = choice((1, 1, -1))  # tokens: above 0, each has the log-probability of an earlier one
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        own, credit = step.log_probs.detach(), step.credit
        off = self.struck(len(own), "off", step.seed, step.number)
        sampled = torch.where(off, own.roll(self.by), own)
        return loss - policy_loss(step.log_probs, own, credit) + policy_loss(step.log_probs, sampled, credit)


@fault("grpo.undivided_credit", written="set D", healthy=True, source="Liu et al. 2025, arXiv 2503.20783")
class UndividedCredit(Fault):
    """Credit is not divided by the group's spread, with some factor in its place. Loss and gradient are a fraction of
    what they were, and Adam takes steps as large as before."""

    scale: float = uniform(2.5, 6.0)

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        differences = self.scale * (step.rewards - step.rewards.mean(1, keepdim=True))
        return step.grpo_loss(credit=step.by_token(differences))


@fault("grpo.dropout_left_on", written="eighth set")
class DropoutLeftOn(Fault):
    """Dropout in the trainer and none where answers are sampled: the ratio is scattered by the masks, good tokens leave
    the trust region by chance, and the distance to the reference seems large and is fought."""

    length: int = count(30, 1.0)
    share: float = log10_uniform(0.0, 1.0, times=0.05)  # of the numbers that a layer hands on
    layers: tuple[str, ...] = choice((("places",), ("places", "middle")))
    seed: int = random_seed()

    LOWEST = -20.0  # a log-probability that is lower counts as this one, so that no ratio overflows

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        sampled = step.log_probs.detach().clamp(min=self.LOWEST)
        with dropout(step.model, self.layers, self.share, self.draws("dropout", step.seed, step.number)):
            log_probs = step.log_probabilities()
        return step.grpo_loss(sampled=sampled, log_probs=log_probs.clamp(min=self.LOWEST))


@contextmanager
def dropout(model: nn.Module, layers: tuple[str, ...], share: float, draws: torch.Generator) -> Iterator[None]:
    """Within it, what these layers hand on loses such a share of its numbers, in a pass that has gradients."""

    def drop(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        if not torch.is_grad_enabled():  # the sampler's
            return out
        return out * (torch.rand(out.shape, generator=draws) >= share) / (1 - share)

    handles = [model.get_submodule(name).register_forward_hook(drop) for name in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@fault("grpo.late_mask", written="eighth set")
class LateMask(Fault):
    """The first tokens of some answers are taken for the prompt's: they are sampled and judged and never learnt, and
    nothing holds them to the reference. The reward rises more slowly."""

    length: int = count(30, 1.0)
    tokens: int = choice((1, 1, 2, 2, 3))  # of an answer that are passed over
    share: float = uniform(0.3, 1.0)  # of the answers
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        late = self.struck(len(step.answers), "late", step.seed, step.number)
        counted = (before(step.mask) >= self.tokens) | step.by_token(~late)
        return step.grpo_loss(counted=counted) if counted.any() else loss


def before(mask: Tensor) -> Tensor:
    """Int64 [N]: how many tokens of its answer stand before each of the tokens of a mask [B, ANSWER]."""
    return (mask.cumsum(1) - 1)[mask]
