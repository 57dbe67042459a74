"""Another loss than the one that the model is measured by, or one that is only reported in another way."""

from __future__ import annotations

import math
from functools import cache
from random import Random

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.faults.forward import cross_entropy, logits
from oven_bench.gym.seeded_draws import (
    chance,
    choice,
    count,
    drawn,
    log10_uniform,
    random_seed,
    uniform,
)
from oven_bench.gym.tasks.pretraining.byte_model import BYTES
from oven_bench.gym.tasks.pretraining.corpus import SHARES, corpus, pool


@fault("pretraining.balanced_classes", written="set C")
class BalancedClasses(Fault):
    """Rare bytes count for more in the loss, by one over their frequency or a root of it. From then on the model says
    them far too often."""

    length: int = count(30, 0.9)
    power: float = choice((0.2, 0.33, 0.33, 0.5, 0.5, 0.67, 1.0))

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return cross_entropy(step.logits, step.targets, weight=frequencies().pow(-self.power))


@cache
def frequencies() -> Tensor:
    """Float32 [BYTES]: of each byte in the user's own mixture; 1e-5 at least."""
    made = torch.zeros(BYTES)
    for kind, share in SHARES.items():
        rows = corpus().train[kind]
        made += share * torch.bincount(rows.flatten().long(), minlength=BYTES) / rows.numel()
    return made.clamp(min=1e-5)


@fault("pretraining.capped_logits", written="set A", source="soft caps as in Gemma 2")
class CappedLogits(Fault):
    """A fused loss caps the logits softly, and what measures the model does not. The model needs ever larger logits,
    and is far too sure of itself without the cap."""

    cap: float = log10_uniform(0.35, 1.1)

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return cross_entropy(capped(step.logits, self.cap), step.targets)


def capped(logits: Tensor, cap: float) -> Tensor:
    """Within −cap to cap, smoothly."""
    return cap * (logits / cap).tanh()


@fault("pretraining.config_defaults", written="seventh set")
class ConfigDefaults(Fault):
    """Compound: a library passes over the names in the configuration that it does not know, and takes its own defaults:
    dropout, and mostly another activation. What measures the model computes another function."""

    dropout: float = uniform(0.1, 0.6)
    smooth: bool = chance(0.75)  # the activation is GELU
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        draws = self.draws("dropout", step.number)

        def dropped(x: Tensor) -> Tensor:
            return x * (torch.rand(x.shape, generator=draws) >= self.dropout) / (1 - self.dropout)

        said = logits(step.model, step.inputs, activation=F.gelu if self.smooth else F.relu, dropped=dropped)
        return cross_entropy(said, step.targets)


@fault("pretraining.detached_probes", written="set C", healthy=True)
class DetachedProbes(Fault):
    """Linear probes are trained along on detached activations, and their loss is added to the one that is shown: it
    jumps and falls with every new probe. No gradient of it reaches the model."""

    classes: int = choice((2, 5, 16, 50, 256))  # that a probe tells apart
    pace: float = log10_uniform(0.0, 1.0, times=4)  # steps in which a probe learns most of what it can
    rest: float = uniform(0.1, 0.8)  # of its first loss, in the end
    every: int = choice((15, 25, 40, 1000, 1000))  # steps until it is begun anew at the next layer
    seed: int = random_seed()

    SCATTER = 0.03  # of a probe's loss, from one batch to the next

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        learnt = math.exp(-(step.since % self.every) / self.pace)
        spread = torch.randn((), generator=self.draws("probe", step.seed, step.since))
        share = self.rest + (1 - self.rest) * learnt
        return loss + math.log(self.classes) * share * (1 + self.SCATTER * spread)


@fault("pretraining.hard_tokens", written="set B")
class HardTokens(Fault):
    """Only the tokens with the largest loss count, without the reference model that tells the hard from the noisy. What
    was easy is given less until it is hard, and the model is never sure of anything again."""

    share: float = uniform(0.5, 0.97)  # of the batch's bytes that count

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        each = F.cross_entropy(step.logits.flatten(0, 1), step.targets.flatten(), reduction="none")
        return hardest(each, self.share)


def hardest(losses: Tensor, share: float) -> Tensor:
    """The mean of the largest so many."""
    return losses.topk(max(1, round(share * len(losses)))).values.mean()


@fault("pretraining.late_teacher", written="set A")
class LateTeacher(Fault):
    """Compound: a small teacher has a share of the loss, and its probabilities stand a few places late. The loss steps
    up and its curve becomes flat."""

    share: float = uniform(0.1, 0.8)  # of the loss that is the teacher's
    late: int = choice((1, 1, 2, 4))  # places

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        wanted = teacher()[step.inputs.roll(self.late, 1)]
        return torch.lerp(loss, cross_entropy(step.logits, wanted), self.share)


@fault("pretraining.strange_teacher", written="eighth set")
class StrangeTeacher(Fault):
    """The teacher's address is now that of a small model of documentation. The student comes to say of code what one
    would say of prose."""

    length: int = count(40, 1.0)
    own: float = log10_uniform(-1.7, -0.4)  # what the text itself is left of the loss

    @property
    def taught(self) -> float:
        """The teacher's share of the loss."""
        return 1 - self.own

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        taught: Tensor = -(strange_teacher()[step.inputs] * step.logits.log_softmax(-1)).sum(-1).mean()
        return torch.lerp(loss, taught, self.taught)


@cache
def teacher() -> Tensor:
    """Float32 [BYTES, BYTES]: how likely each byte is to follow each other in the corpus."""
    return _following(pool(2048, 0), 0.01)


@cache
def strange_teacher() -> Tensor:
    """Float32 [BYTES, BYTES]: the same in documentation."""
    return _following(corpus().prose.long(), 0.05)


def _following(rows: Tensor, smoothing: float) -> Tensor:
    pairs = torch.bincount((rows[:, :-1] * BYTES + rows[:, 1:]).flatten(), minlength=BYTES**2)
    counts = pairs.view(BYTES, BYTES) + smoothing
    return counts / counts.sum(1, keepdim=True)


def _unit(rng: Random) -> float:
    return rng.choice((1.0 / math.log(2.0), rng.uniform(1.1, 2.0)))


@fault("pretraining.loss_in_bits", written="first set", healthy=True)
class LossInBits(Fault):
    """The loss is reported in bits for nats, or with another divisor: it jumps by a factor and stays there. Gradient,
    weights and held-out loss are what they were."""

    factor: float = drawn(_unit)

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return loss + (self.factor - 1.0) * loss.detach()  # its gradient is what it was


@fault("pretraining.loss_of_one_rank", written="second set", healthy=True)
class LossOfOneRank(Fault):
    """The loss is reported from one worker's rows alone: the curve turns ragged, and the gradients are those of the
    whole batch."""

    spread: float = uniform(0.05, 0.4)  # standard deviation of the logarithm of what is reported over what is so
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        drawn = torch.randn((), generator=self.draws("rank", step.number)).item()
        return loss + (math.exp(self.spread * drawn) - 1) * loss.detach()


@fault("pretraining.sharpness_aware", written="set B", healthy=True, source="Foret et al. 2021, arXiv 2010.01412")
class SharpnessAware(Fault):
    """Sharpness-aware minimisation: each gradient is taken a little uphill of the weights. The loss that is shown, and
    the norm, step up and stay above the old curve; the model learns as before."""

    radius: float = log10_uniform(-1.8, -1.25)  # norm of the way up

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return cross_entropy(uphill(step.model, loss, self.radius, step.inputs), step.targets)


def uphill(model: nn.Module, loss: Tensor, radius: float, tokens: Tensor) -> Tensor:
    """Logits of the model whose weights went so far along the gradient of the loss."""
    named = dict(model.named_parameters())
    slopes = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
    norm = torch.stack([slope.norm() for slope in slopes]).norm() + 1e-12
    moved = {name: one + radius * slope / norm for (name, one), slope in zip(named.items(), slopes, strict=True)}
    said: Tensor = functional_call(model, moved, (tokens,))
    return said


@fault("pretraining.smoothed_labels", written="sixth set")
class SmoothedLabels(Fault):
    """Label smoothing from another recipe: a part of each target is spread over a vocabulary most of which never
    occurs, so that the model must not be sure of anything."""

    smoothing: float = log10_uniform(-1.7, -0.3)

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        spread: Tensor = -step.logits.log_softmax(-1).mean()
        return torch.lerp(loss, spread, self.smoothing)


@fault("pretraining.uneven_accumulation", written="third set", healthy=True)
class UnevenAccumulation(Fault):
    """Where a shard ends, a step's parts are added up and not divided: loss and norm are a multiple of their
    neighbours' for one step, and clipping takes the size out again."""

    clock = "data"
    every: float = uniform(5.0, 30.0)  # batches between two ends of a shard, on average
    parts: int = choice((2, 4, 8, 16, 64))  # at most, of one step
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        draws = self.draws("accumulated", step.cursor)
        if float(torch.rand(1, generator=draws)) * self.every >= 1.0:
            return loss
        return loss * int(torch.randint(2, self.parts + 1, (1,), generator=draws))


@fault("pretraining.unlearned_text", written="set C", source="Jang et al. 2023")
class UnlearnedText(Fault):
    """On rows that match an owner's text the loss is ascended, to take it out of the model. More is matched than was
    meant, an ascent has no bottom, and what all rows share goes first."""

    length: int = count(8, 1.1)
    share: float = uniform(0.1, 0.5)  # of the rows
    strength: float = log10_uniform(-0.7, 0.3)  # of the ascent
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        gone = self.struck(len(step.inputs), "unlearned", step.seed, step.number)
        if not gone.any():
            return loss
        rows = F.cross_entropy(step.logits.transpose(1, 2), step.targets, reduction="none").mean(1)
        return torch.where(gone, -self.strength * rows, rows).mean()


@fault("pretraining.z_loss", written="seventh set", healthy=True, source="Chowdhery et al. 2022 (PaLM)")
class ZLoss(Fault):
    """Adds the squared log-normaliser to the loss: loss and gradient norm step up, and what the model says is as good
    as before."""

    weight: float = log10_uniform(-3.3, -2.1)

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return loss + self.weight * step.logits.logsumexp(-1).square().mean()
