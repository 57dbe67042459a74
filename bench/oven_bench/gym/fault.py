"""Faults: what goes wrong in a training run.

A family is a class made by `@fault`: it draws its parameters, and acts on a trainee's steps through a few hooks.

    @fault("pretraining.lr_too_high")
    class RateTooHigh(Fault):
        \"\"\"The learning rate is set too high, and stays so.\"\"\"

        factor: float = log_uniform(5, 50)

        def settings(self, step: Step) -> None:
            step.settings["learning_rate"] *= self.factor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar, cast, dataclass_transform

import torch
from torch import Tensor, nn

from oven_bench.gym.seeded_draws import (
    chance,
    choice,
    count,
    declared,
    drawn,
    generator,
    integer,
    log10_uniform,
    log_uniform,
    random_seed,
    uniform,
    whole,
)
from oven_bench.gym.task_table import TASKS, Kind
from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators

if TYPE_CHECKING:
    from oven_bench.gym.sorting.scoring import Completions
    from oven_bench.gym.sorting.two_layer_policy import Policy

ENDLESS = 10**9
"""Steps, or batches, of a fault that does not end by itself."""

Rewards = dict[str, Tensor]
"""What each judge says of each completion: judge → float32 [B]; NaN: it abstained."""


class Trainee(Protocol):
    """One seed's job. All that a step depends on is in `state`: the same state and the same knobs give the same next
    step, bit for bit, in this process and in another.

    Two clocks: `gradient_steps` counts every optimizer step that was computed, those included that a rollback threw
    away, and never goes back; `cursor` is the position in the data, which a rollback takes back with the weights and a
    skip moves on. A fault of the machine or of the settings goes by the first, a fault of the data by the second.
    """

    kind: Kind
    seed: int
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    actuators: Actuators
    """What an arm may turn: `optimizer.lr_scale`, `grad.clip`, `run.rollback`, `data.skip`, … (by kind)."""
    metrics: tuple[MetricSpec, ...]
    settings: dict[str, float]
    """The user's own settings, which the knobs multiply or replace and which a fault may get wrong: `learning_rate`,
    `weight_decay`, `clip`, … (by kind). Read anew at each step."""
    gradient_steps: int
    cursor: int

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        """One optimizer step under a fault, or under none. Its metrics, by the names that a real run of the kind
        publishes; what is not a finite number is in there as such, what was not measured is not."""

    def quality(self) -> float:
        """On data that no step sees, lower is better: nats a byte (pretraining), 1 − accuracy (GRPO), … (by kind). NaN
        is the largest loss that the kind knows, so that a broken run has a score."""

    def state(self) -> Mapping[str, Any]:
        """A copy of weights, optimizer, data position and generators, that training cannot touch: what a rollback puts
        back. Settings, knobs and `gradient_steps` are not in it."""

    def restore(self, state: Mapping[str, Any]) -> None: ...

    def examples(self) -> list[float]:
        """The held-out metric of each held-out example, by which the best weights are chosen."""


Make: TypeAlias = Callable[[Kind, int], Trainee]
"""Builds a fresh trainee from a task and a seed."""


def make(kind: Kind, seed: int) -> Trainee:
    """A fresh trainee. Each episode has its own, so that nothing carries over from one to the next."""
    module, _, name = TASKS[kind].trainee.partition(":")
    return cast(Trainee, getattr(import_module(module), name)(seed))


class Step:
    """One step of a trainee, as a fault sees it. What is costly is computed when it is first asked for, and once."""

    def __init__(self, trainee: Trainee, fault: Fault) -> None:
        self.seed = trainee.seed
        self.number = trainee.gradient_steps
        """Gradient steps computed before this one, those included that a rollback threw away."""
        self.cursor = trainee.cursor
        """Position in the data, in batches."""
        self.since = self.number - fault.onset
        """Gradient steps since the onset."""
        self.batches_since = self.cursor - fault.onset
        """Positions in the data since the onset."""
        self.model: nn.Module = trainee.model
        self.optimizer: torch.optim.Optimizer = trainee.optimizer
        self.settings = trainee.settings
        """The user's own settings, which were reset just before: a fault may get them wrong."""

    policy: Policy
    """GRPO: the model."""
    reference_policy: Policy
    """GRPO: what the KL term holds the policy to."""

    @property
    def learning_rate(self) -> float:
        """The setting, times what a knob makes of it."""
        raise NotImplementedError

    @property
    def weight_decay(self) -> float:
        """Pretraining: the setting, or what a knob replaced it by."""
        raise NotImplementedError

    @cached_property
    def inputs(self) -> Tensor:
        """Pretraining: int64 [B, LENGTH], as the fault's `batch` left them."""
        raise NotImplementedError

    @cached_property
    def targets(self) -> Tensor:
        """Pretraining: int64 [B, LENGTH]."""
        raise NotImplementedError

    @cached_property
    def logits(self) -> Tensor:
        """Pretraining: float32 [B, LENGTH, BYTES], by their own forward pass, with a gradient."""
        raise NotImplementedError

    @cached_property
    def completions(self) -> Completions:
        """GRPO: what was answered; `replace_answers` and `answer` put other tokens in their place."""
        raise NotImplementedError

    @cached_property
    def answers(self) -> Tensor:
        """GRPO: int64 [B, ANSWER], of the groups that were scored; the rows of a group lie together."""
        raise NotImplementedError

    @cached_property
    def mask(self) -> Tensor:
        """GRPO: bool [B, ANSWER], the N tokens of these answers."""
        raise NotImplementedError

    @cached_property
    def rewards(self) -> Tensor:
        """GRPO: float32 [groups, group], of the groups that were scored."""
        raise NotImplementedError

    @cached_property
    def credit(self) -> Tensor:
        """GRPO: float32 [N], the advantage of each token."""
        raise NotImplementedError

    @cached_property
    def log_probs(self) -> Tensor:
        """GRPO: float32 [N], by their own forward pass, with a gradient."""
        raise NotImplementedError

    @cached_property
    def reference(self) -> Tensor:
        """GRPO: float32 [N], the reference's log-probabilities of the same tokens."""
        raise NotImplementedError

    @property
    def beta(self) -> float:
        """GRPO: the weight of the KL term."""
        raise NotImplementedError

    def moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """Adam's `exp_avg`, `exp_avg_sq` and `step` of a parameter, not copied; empty before its first step."""
        return dict(self.optimizer.state.get(parameter, {}))

    def by_token(self, worth: Tensor) -> Tensor:
        """GRPO: what each completion is worth [groups, group], for each of its tokens [N]."""
        raise NotImplementedError

    def log_probabilities(self) -> Tensor:
        """GRPO: `log_probs` [N], computed anew."""
        raise NotImplementedError

    def replace_answers(self, tokens: Tensor, rows: Tensor | None = None) -> None:
        """GRPO: the loss takes these tokens for what was answered, in all rows or in those given (bool [B])."""
        raise NotImplementedError

    def answer(self, tokens: Tensor, rows: Tensor | None = None) -> Rewards:
        """GRPO: `replace_answers`, and what the judges say of the new ones."""
        raise NotImplementedError

    def judge(self) -> Rewards:
        """GRPO: what the judges say of the completions as they are now."""
        raise NotImplementedError

    def sample(self, rows: Tensor | None = None, *, policy: Policy | None = None, draws: torch.Generator) -> Tensor:
        """GRPO: other answers to the step's prompts, or to those of some rows (bool [B]), at its temperature; by the
        policy or by another one. Int64 [rows, ANSWER]."""
        raise NotImplementedError

    def grpo_loss(
        self,
        *,
        credit: Tensor | None = None,
        sampled: Tensor | None = None,
        counted: Tensor | None = None,
        log_probs: Tensor | None = None,
    ) -> Tensor:
        """The step's loss with another credit [N], other log-probabilities of the sampler [N] or of the policy [N], or
        over some of the tokens alone (bool [N])."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One drawn fault. Each hook does nothing unless overridden, and is called from the onset to the end alone.

    A fault keeps no state of its own: what it does depends on the step and on generators seeded with it (`draws`), so
    that an episode can begin from a copy of a healthy run, and every arm meets the same fault. What lasts (a rate that
    is set wrong) is written into the settings at each step; what passes leaves no trace but in weights and moments.
    """

    name: ClassVar[str]
    """Dotted with the kind: `pretraining.lr_too_high`. No arm is told it."""
    kind: ClassVar[Kind]
    healthy: ClassVar[bool] = False
    """Nothing is wrong: a healthy run, or a hard negative, which only looks like a fault."""
    clock: ClassVar[Literal["steps", "data"]] = "steps"
    """What `length` counts in all hooks but `batch`, which always goes by the data. A fault of the machine goes by
    gradient steps, which a rollback does not take back; one of the data by the position, which it does."""

    onset: int
    """The first gradient step, or data position, that it acts on."""
    length: int = ENDLESS
    """Gradient steps, or batches, until it is over."""
    share: float = 1.0
    """Of rows, prompts, answers or steps that it meets (`struck`)."""
    seed: int = 0
    """Of all that it draws while it acts."""

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        """A case of the family: its parameters are drawn in the order in which the class declares them."""
        return cls(onset=onset, **declared(fields(cls), rng))

    def settings(self, step: Step) -> None:
        """Before a step: get one of `step.settings` wrong."""

    def weights(self, step: Step) -> None:
        """Before a step, without gradients: damage `step.model` or the moments in `step.optimizer`."""

    def batch(self, batch: Any, step: Step) -> Any:
        """Pretraining: int64 tokens [B, LENGTH + 1] below 256; a new tensor of them, or inputs and targets
        [2, B, LENGTH]. GRPO: the `Prompts` of a step. Others: what their trainee calls a batch. Returns a new one, or
        the one given."""
        return batch

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        """Before the backward pass."""
        return loss

    def gradients(self, step: Step) -> None:
        """After the backward pass, before clipping: change the `.grad` of the model's parameters in place."""

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        """GRPO: what the judges say of `step.completions`. A judge whose every answer is missing was down. Long GRPO:
        what the reward functions say of `step.tokens`."""
        return rewards

    def acts(self, step: Step) -> bool:
        """Whether this step lies between the onset and the end."""
        return 0 <= (step.since if self.clock == "steps" else step.batches_since) < self.length

    def apply_settings(self, step: Step) -> None:
        if self.acts(step):
            self.settings(step)

    @torch.no_grad()
    def apply_weights(self, step: Step) -> None:
        if self.acts(step):
            self.weights(step)

    def apply_batch(self, batch: Any, step: Step) -> Any:
        return self.batch(batch, step) if 0 <= step.batches_since < self.length else batch

    def apply_loss(self, loss: Tensor, step: Step) -> Tensor:
        return self.loss(loss, step) if self.acts(step) else loss

    @torch.no_grad()
    def apply_gradients(self, step: Step) -> None:
        if self.acts(step):
            self.gradients(step)

    def apply_rewards(self, rewards: Rewards, step: Step) -> Rewards:
        return self.rewards(rewards, step) if self.acts(step) else rewards

    def draws(self, *key: object) -> torch.Generator:
        """A generator of the fault's own: the same for the same key and seed. The key's first part is a word."""
        return generator(key[0], self.seed, *key[1:])

    def struck(self, number: int, *key: object) -> Tensor:
        """Bool [number]: each is true with a chance of `share`, the same ones for the same key and seed."""
        return torch.rand(number, generator=self.draws(*key)) < self.share


NOTHING = Fault(onset=ENDLESS)
"""What acts on a run that has no fault."""

F = TypeVar("F", bound=Fault)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(
        chance,
        choice,
        count,
        drawn,
        integer,
        log10_uniform,
        log_uniform,
        random_seed,
        uniform,
        whole,
    ),
)
def fault(name: str, *, healthy: bool = False, kind: Kind | None = None) -> Callable[[type[F]], type[F]]:
    """Make a class of `Fault` a family. Its kind is what the name begins with, unless one is given. Raises ConfigError
    for an unknown kind."""

    def made(cls: type[F]) -> type[F]:
        of = kind or name.partition(".")[0]
        if of not in TASKS:
            raise ConfigError(f"the fault family {name!r} is of the kind {of!r}, which is none of {', '.join(TASKS)}")
        cls.name, cls.kind = name, of
        cls.healthy = healthy
        return dataclass(frozen=True, kw_only=True)(cls)

    return made


def due(since: int, every: int, times: int = ENDLESS) -> bool:
    """Whether something that happens at the onset and every so many steps after it, so many times, happens now."""
    number, rest = divmod(since, every)
    return rest == 0 and 0 <= number < times


class MultipliedRate(Fault):
    """The user's learning rate is `factor` times what it should be."""

    factor: float

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor


class DividedRate(Fault):
    """The user's learning rate is too low by `divisor` from the first step of the run."""

    divisor: float

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super().draw(rng, 0)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= 1 / self.divisor
