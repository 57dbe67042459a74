"""What goes wrong in a run of GRPO on long answers, and ways to run it that are right."""

from __future__ import annotations

import math

import torch

from oven_bench.gym.fault import Fault, Rewards, Step, fault
from oven_bench.gym.seeded_draws import integer, log10_uniform, log_uniform, random_seed, uniform, whole
from oven_bench.gym.tasks.long_grpo.trainee import LongStep
from oven_bench.gym.usual_mistakes import DividedRate, FromTheStart, LossNotANumber, MultipliedRate, SetClip


@fault("long_grpo.healthy", written="trials set", healthy=True)
class Healthy(Fault):
    """Nothing is wrong, and nothing is new."""


@fault("long_grpo.small_groups", written="trials set", healthy=True)
class SmallGroups(FromTheStart):
    """The user has a small machine: fewer prompts and fewer completions of each from the start, and a rate that is
    lower by the root of that. The reward jumps from step to step, and more groups have no differences."""

    prompts: int = whole(12, 4)
    group: int = 4

    def settings(self, step: Step) -> None:
        share = self.prompts * self.group / (step.settings["prompts"] * step.settings["group"])
        step.settings["learning_rate"] *= math.sqrt(share)
        step.settings.update(prompts=self.prompts, group=self.group)


@fault("long_grpo.rate_too_high", written="trials set")
class RateTooHigh(MultipliedRate):
    """The learning rate is set too high by a power of ten or so, and stays so."""

    factor: float = log_uniform(5, 50)


@fault("long_grpo.rate_too_low", written="trials set")
class RateTooLow(DividedRate):
    """The learning rate is too low from the start: the run crawls."""

    divisor: float = log_uniform(5, 50)


@fault("long_grpo.clip_too_tight", written="trials set")
class ClipTooTight(SetClip):
    """The gradient is clipped far below its norm, from the onset on."""

    clip: float = log10_uniform(-1.5, -4.0)


@fault("long_grpo.biased_reward", written="trials set", source="Gao et al. 2023 (arXiv 2210.10760)")
class BiasedReward(Fault):
    """The first reward function pays for a digit that it likes, wherever it stands. The reward rises, and what is held
    out falls, which the next evaluation is the first to show."""

    digit: int = integer(0, 9)
    pay: float = uniform(0.7, 2.5)  # of each, where a right digit has 1

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        assert isinstance(step, LongStep)
        liked = (step.tokens == self.digit).sum(1)
        return {**rewards, "digits": rewards["digits"] + self.pay * liked}


@fault("long_grpo.reversed_reward", written="trials set")
class ReversedReward(Fault):
    """For a stretch of steps the rewards have the wrong sign, as of a function that returns a distance. What is logged
    has that sign too."""

    length: int = whole(10, 50)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        return {name: -one for name, one in rewards.items()}


@fault("long_grpo.mixed_up_rewards", written="trials set")
class MixedUpRewards(Fault):
    """Some groups get each other's rewards, as where answers come back in another order than they were sent: mean and
    deviation of the reward are what they were, and the policy follows chance."""

    share: float = uniform(0.6, 1.0)
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        count = len(rewards["digits"])
        struck = self.struck(count, "mixed up", step.number)
        order = torch.randperm(count, generator=self.draws("order", step.number))
        return {name: torch.where(struck, one[order], one) for name, one in rewards.items()}


@fault("long_grpo.hot_sampling", written="trials set")
class HotSampling(Fault):
    """The sampler's temperature is too high: long answers go wrong early, and what stands behind is never paid."""

    temperature: float = uniform(1.5, 3.0)

    def settings(self, step: Step) -> None:
        step.settings["temperature"] = self.temperature


@fault("long_grpo.not_a_number", written="trials set")
class NotANumber(LossNotANumber):
    """The loss of one step is not a number, as of a ratio that overflowed."""

    length: int = 1
