"""Faults: what goes wrong in a training run.

A family is a class made by `@fault`. It draws its parameters, and acts on a trainee's steps through a few hooks.

    @fault("pretraining.lr_too_high")
    class RateTooHigh(Fault):
        \"\"\"The learning rate is too high from the onset on.\"\"\"

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
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias, TypeVar, cast, dataclass_transform

import torch
from torch import Tensor, nn

from oven_bench.gym import seeded_draws
from oven_bench.gym.seeded_draws import declared, generator
from oven_bench.gym.task_table import TASKS, Kind
from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators

if TYPE_CHECKING:
    from oven_bench.gym.sorting.policy import Policy
    from oven_bench.gym.sorting.sorting_task import Completions

ENDLESS = 10**9
"""Length of a fault that does not end by itself."""

Rewards = dict[str, Tensor]
"""Judge → its score of each completion, float32 [B]; NaN stands for an abstention."""


class Trainee(Protocol):
    """One seed's training run. The same state and knobs give the same next step, bit for bit, in any process.

    Two clocks: `gradient_steps` counts every optimizer step, including those that a rollback discards, and never goes
    back. `cursor` is the position in the data, which a rollback moves back and a skip moves on. Faults of the machine
    or of the settings follow the first, faults of the data the second.
    """

    kind: Kind
    seed: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    actuators: Actuators
    """The knobs of an arm: `optimizer.lr_scale`, `grad.clip`, `run.rollback`, `data.skip` and others."""
    metrics: tuple[MetricSpec, ...]
    settings: dict[str, float]
    """The user's settings, which knobs multiply or replace and faults get wrong. Read anew at each step."""
    gradient_steps: int
    cursor: int

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        """Make one optimizer step, and return metrics as a real run publishes them. A metric that was not measured is
        absent; one that is not finite is there as such."""

    def quality(self) -> float:
        """Loss (pretraining) or 1 − accuracy (GRPO) on data that no step sees. For a broken run it is the largest loss
        of the task, never NaN."""

    def state(self) -> Mapping[str, Any]:
        """A copy of weights, optimizer, data position and generators, without settings, knobs and `gradient_steps`."""

    def restore(self, state: Mapping[str, Any]) -> None: ...

    def examples(self) -> list[float]:
        """The held-out metric of each held-out example, which decides which weights are best."""


Make: TypeAlias = Callable[[Kind, int], Trainee]
"""Builds a fresh trainee from a task and a seed."""


def make(kind: Kind, seed: int) -> Trainee:
    """A fresh trainee. Each episode has its own, so that nothing carries over from one to the next."""
    module, _, name = TASKS[kind].trainee.partition(":")
    return cast(Trainee, getattr(import_module(module), name)(seed))


class Step:
    """One step of a trainee, as a fault sees it. Costly values are computed when they are first read."""

    policy: Policy
    """GRPO: the model."""

    def __init__(self, trainee: Trainee, fault: Fault) -> None:
        self.seed = trainee.seed
        self.number = trainee.gradient_steps
        """Gradient steps before this one, including those that a rollback discarded."""
        self.cursor = trainee.cursor
        """Position in the data, in batches."""
        self.since = self.number - fault.onset
        """Gradient steps since the onset."""
        self.batches_since = self.cursor - fault.onset
        """Batches since the onset."""
        self.model: nn.Module = trainee.model
        self.optimizer: torch.optim.Optimizer = trainee.optimizer
        self.settings = trainee.settings
        """The user's settings, which were reset just before."""

    def moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """Adam's `exp_avg`, `exp_avg_sq` and `step` of a parameter, not copied. Empty before the first step."""
        return dict(self.optimizer.state.get(parameter, {}))

    @cached_property
    def targets(self) -> Tensor:
        """Pretraining: int64 [B, LENGTH]."""
        raise NotImplementedError

    @cached_property
    def logits(self) -> Tensor:
        """Pretraining: float32 [B, LENGTH, BYTES] with a gradient, from its own forward pass."""
        raise NotImplementedError

    @cached_property
    def completions(self) -> Completions:
        """GRPO: the sampled completions. `answer` replaces them."""
        raise NotImplementedError

    @cached_property
    def mask(self) -> Tensor:
        """GRPO: bool [B, ANSWER], the N sampled tokens of all groups that were scored."""
        raise NotImplementedError

    @cached_property
    def credit(self) -> Tensor:
        """GRPO: float32 [N], the advantage of each token."""
        raise NotImplementedError

    @cached_property
    def log_probs(self) -> Tensor:
        """GRPO: float32 [N] with a gradient, from its own forward pass."""
        raise NotImplementedError

    @cached_property
    def reference(self) -> Tensor:
        """GRPO: float32 [N], the reference's log-probabilities of the same tokens."""
        raise NotImplementedError

    def answer(self, tokens: Tensor, rows: Tensor | None = None) -> Rewards:
        """GRPO: replace the completions (of some rows, bool [B]), and return the judges' scores of all of them."""
        raise NotImplementedError

    def sample(self, rows: Tensor, *, policy: Policy, draws: torch.Generator) -> Tensor:
        """GRPO: other answers to the prompts of some rows (bool [B]), by another policy. Int64 [rows, ANSWER]."""
        raise NotImplementedError

    def grpo_loss(self, credit: Tensor) -> Tensor:
        """GRPO: the step's loss with another credit [N]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault with its drawn parameters. Each hook does nothing unless overridden, and is called only from the onset
    to the end.

    A fault has no state: its effect depends on the step and on generators with its seed (`draws`). So an episode can
    start from a copy of a healthy run, and every arm meets the same fault. A lasting fault, such as a wrong learning
    rate, writes the settings at each step; a passing one leaves traces only in weights and moments.
    """

    name: ClassVar[str]
    """The task and the family: `pretraining.lr_too_high`. No arm learns it."""
    kind: ClassVar[Kind]
    healthy: ClassVar[bool] = False
    """Whether nothing is wrong: a healthy run, or one that only looks ill."""

    onset: int
    """The first gradient step, or data position, with the fault."""
    length: int = ENDLESS
    """Gradient steps with the fault, or batches for `batch`, which follows the data."""
    share: float = 1.0
    """Share of rows, prompts, answers or steps that the fault strikes (`struck`)."""
    seed: int = 0
    """Seed of all random numbers while the fault acts."""

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        """Draw a fault of the family. Its parameters are drawn in the order of their declarations."""
        return cls(onset=onset, **declared(fields(cls), rng))

    def settings(self, step: Step) -> None:
        """Change `step.settings` before the step."""

    def weights(self, step: Step) -> None:
        """Change `step.model` or the moments in `step.optimizer` before the step, without gradients."""

    def batch(self, batch: Any, step: Step) -> Any:
        """Return another batch, or the same one. Pretraining: int64 tokens [B, LENGTH + 1], or inputs and targets
        [2, B, LENGTH]. GRPO: the `Prompts` of a step."""
        return batch

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        """Return another loss before the backward pass."""
        return loss

    def gradients(self, step: Step) -> None:
        """Change the gradients in place after the backward pass, before clipping."""

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        """GRPO: return other scores of `step.completions`. A judge with NaN everywhere is down."""
        return rewards

    def acts(self, step: Step) -> bool:
        """Whether this step is between the onset and the end."""
        return 0 <= step.since < self.length

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
        """A random generator, the same for the same key and seed. The key starts with a word."""
        return generator(key[0], self.seed, *key[1:])

    def struck(self, number: int, *key: object) -> Tensor:
        """Bool [number], each true with probability `share`; the same for the same key and seed."""
        return torch.rand(number, generator=self.draws(*key)) < self.share


NOTHING = Fault(onset=ENDLESS)
"""The fault of a healthy run."""

F = TypeVar("F", bound=Fault)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(
        seeded_draws.chance,
        seeded_draws.choice,
        seeded_draws.count,
        seeded_draws.drawn,
        seeded_draws.integer,
        seeded_draws.log10_uniform,
        seeded_draws.log_uniform,
        seeded_draws.random_seed,
        seeded_draws.uniform,
        seeded_draws.whole,
    ),
)
def fault(name: str, *, healthy: bool = False, kind: Kind | None = None) -> Callable[[type[F]], type[F]]:
    """Make a subclass of `Fault` a family. Its task is the first part of the name, unless `kind` says another one.
    Raises ConfigError for an unknown task."""

    def decorate(cls: type[F]) -> type[F]:
        task = kind or name.partition(".")[0]
        if task not in TASKS:
            raise ConfigError(f"the fault family {name!r} is for the task {task!r}; the tasks are {', '.join(TASKS)}")
        cls.name, cls.kind, cls.healthy = name, task, healthy
        return dataclass(frozen=True, kw_only=True)(cls)

    return decorate


def due(since: int, every: int, times: int = ENDLESS) -> bool:
    """Whether something happens now that happens at the onset and then every so many steps, so many times."""
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
