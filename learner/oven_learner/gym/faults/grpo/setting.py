"""What many families have in common: settings that are wrong from the onset on, and stay so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oven_learner.gym.fault import Case
from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Setting(Case):
    """`times` are factors on the user's own settings, `to` are values in their place."""

    onset: int
    times: Mapping[str, float] = field(default_factory=dict)
    to: Mapping[str, float] = field(default_factory=dict)

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings.update(self.to)
            for name, factor in self.times.items():
                trainee.settings[name] *= factor
