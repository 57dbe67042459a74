"""Settings of a GRPO run that are wrong, or that the user changed on purpose."""

from __future__ import annotations

from random import Random
from typing import Self

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.seeded_draws import choice, log_uniform, uniform, whole
from oven_bench.gym.sorting.sorting_prompts import LEVELS


def move_share(settings: dict[str, float], name: str, share: float) -> None:
    """The setting gets this share of its group's sum, and the others of the group what is left, in their proportions.
    A group's names are alike up to the last stroke."""
    group = name.rpartition("/")[0] + "/"
    total = sum(value for key, value in settings.items() if key.startswith(group))
    others = total - settings[name]
    for key in settings:
        if key.startswith(group) and key != name:
            settings[key] *= (1 - share) * total / others
    settings[name] = share * total


@fault("grpo.healthy", written="development", healthy=True)
class Healthy(Fault):
    """Nothing is wrong, and nothing is new."""


@fault("grpo.lr_too_high", written="development")
class RateTooHigh(Fault):
    """The learning rate is set too high, and stays so."""

    factor: float = log_uniform(3, 30)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor


@fault("grpo.lr_too_low", written="development")
class RateTooLow(Fault):
    """The learning rate is too low from the start: the run crawls."""

    divisor: float = log_uniform(3, 100)

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super().draw(rng, 0)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= 1 / self.divisor


@fault("grpo.cold_sampling", written="development")
class ColdSampling(Fault):
    """The sampler's temperature is too low, and nothing corrects for it: the policy sharpens what it says already."""

    temperature: float = uniform(0.6, 0.05)

    def settings(self, step: Step) -> None:
        step.settings["temperature"] = self.temperature


@fault("grpo.kl_blow_up", written="development")
class KlBlowUp(Fault):
    """The KL term is lost while the rate rises: the policy runs away from its reference."""

    factor: float = log_uniform(3, 15)

    def settings(self, step: Step) -> None:
        step.settings["beta"] = 0.0
        step.settings["learning_rate"] *= self.factor


@fault("grpo.kl_too_strong", written="development")
class KlTooStrong(Fault):
    """The weight of the KL term is too high from the start: the policy may not leave its habits."""

    beta: float = log_uniform(0.1, 2)

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super().draw(rng, 0)

    def settings(self, step: Step) -> None:
        step.settings["beta"] = self.beta


@fault("grpo.kl_wrong_sign", written="development")
class KlWrongSign(Fault):
    """The KL term has the wrong sign: it drives the policy away from its reference, at any price."""

    beta: float = log_uniform(0.05, 1)

    def settings(self, step: Step) -> None:
        step.settings["beta"] = -self.beta


@fault("grpo.first_stage_settings", written="fourth set")
class FirstStageSettings(Fault):
    """Compound: the second stage is started with the settings of the first. Most of the reward is for the form, and
    most prompts are short ones that the policy can do."""

    form: float = uniform(0.5, 1.0)  # weight of the judge of the form
    short: float = uniform(0.4, 1.0)  # share of the shortest prompts

    def settings(self, step: Step) -> None:
        move_share(step.settings, "reward.weights/format", self.form)
        move_share(step.settings, f"data.mixture/{LEVELS[0]}", self.short)


@fault("grpo.weights_by_name", written="sixth set")
class WeightsByName(Fault):
    """The judges' weights are a list that is read in another order. Mostly what is easy to please counts for the most:
    the reward goes up, and what it rewards is learnt already."""

    exact: float = uniform(0.4, 0.95)  # the verifier's weight as the user wrote it
    part: float = uniform(0.1, 0.6)  # of the rest, which the judge of the form should have
    order: tuple[str, ...] = choice(  # the judges by name, the other way round, and as they were started
        (("critic", "exact", "format"), ("format", "exact", "critic"), ("format", "critic", "exact"))
    )

    @property
    def weights_given(self) -> tuple[float, float, float]:
        form = (1 - self.exact) * self.part
        return self.exact, form, 1 - self.exact - form

    def settings(self, step: Step) -> None:
        for judge, weight in zip(self.order, self.weights_given, strict=True):
            step.settings[f"reward.weights/{judge}"] = weight


@fault("grpo.mixture_drift", written="development")
class MixtureDrift(Fault):
    """The mixture drifts to the easiest level: the others are not trained any more, and are forgotten."""

    mass: float = uniform(0.7, 1)  # that goes from the other levels to the easiest
    steps: int = whole(30, 5)  # in which it goes

    def settings(self, step: Step) -> None:
        moved = self.mass * min(1.0, step.since / self.steps)
        for level in LEVELS:
            step.settings[f"data.mixture/{level}"] *= 1 - moved
        step.settings[f"data.mixture/{LEVELS[0]}"] += moved


@fault("grpo.harder_prompts", written="development", healthy=True)
class HarderPrompts(Fault):
    """The user moves on to the hardest level, as planned: the reward falls and stands still."""

    hardest: float = uniform(0.5, 0.7)

    def settings(self, step: Step) -> None:
        rest = (1 - self.hardest) / (len(LEVELS) - 1)
        step.settings.update({f"data.mixture/{level}": rest for level in LEVELS})
        step.settings[f"data.mixture/{LEVELS[-1]}"] = self.hardest


@fault("grpo.larger_groups", written="fifth set", healthy=True)
class LargerGroups(Fault):
    """Fewer prompts with more answers to each. The mean reward jumps from step to step, most of all by level, and the
    gradient's norm is larger."""

    sizes: tuple[int, int] = choice(((12, 12), (10, 12), (8, 16), (8, 20), (12, 16), (6, 24)))  # prompts, group

    def settings(self, step: Step) -> None:
        prompts, group = self.sizes
        step.settings.update(prompts=prompts, group=group)


@fault("grpo.small_groups", written="development", healthy=True)
class SmallGroups(Fault):
    """Fewer completions a prompt, by the user's own choice: every gauge of the rewards gets noisier."""

    prompts: int = whole(32, 16)

    def settings(self, step: Step) -> None:
        step.settings.update(group=4.0, prompts=float(self.prompts))


@fault("grpo.own_decay", written="development", healthy=True)
class OwnDecay(Fault):
    """The user's own schedule ends: the rate falls in a straight line to a twentieth, and stays there."""

    steps: int = whole(100, 50)

    def settings(self, step: Step) -> None:
        done = min(1.0, step.since / self.steps)
        step.settings["learning_rate"] *= 1 - (1 - 0.05) * done


@fault("grpo.verifier_alone", written="fourth set", healthy=True)
class VerifierAlone(Fault):
    """The user gives the weight of the softer judges to the verifier. An answer that is nearly right earns little: the
    mean reward falls, its deviation jumps, and more groups have no differences."""

    weight: float = uniform(0.6, 1.0)  # of the verifier

    def settings(self, step: Step) -> None:
        move_share(step.settings, "reward.weights/exact", self.weight)
