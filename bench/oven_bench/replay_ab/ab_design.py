"""What the A/B does, all of it decided before it begins: arms, seeds, tasks and samples. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from oven_recipes.repair.settings import RepairSettings

BASE: Final = "grpo"
PRIMARY: Final = "replay"
"""The comparison that decides: the source's claim is about this arm."""


@dataclass(frozen=True)
class Arm:
    """Which loss terms an arm has beside GRPO's, and from which pairs."""

    self_distillation: bool = False
    replay: bool = False
    imitation: bool = False
    direction: Literal["teachers", "random"] = "teachers"
    """Of each pair: as the teachers say, or as a coin does."""


ARMS: Final[dict[str, Arm]] = {
    BASE: Arm(),
    "sdpo": Arm(self_distillation=True),
    PRIMARY: Arm(replay=True),
    "both": Arm(self_distillation=True, replay=True),
    "random-direction": Arm(replay=True, direction="random"),
    "sft": Arm(imitation=True),
}
"""GRPO alone; with self-distillation, replay, both; and two controls: pairs whose direction a coin decides, and
supervised fine-tuning on the teachers' actions, without the policy's own beside them."""


class AbDesign(BaseModel):
    """Everything that a result depends on, and so the header of the results file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seeds: int = Field(default=5, ge=2, description="trainings per arm")
    first_seed: int = Field(default=1, ge=0, description="of the trainings; below 900: the final ones")
    tasks: int = Field(default=60, ge=2, description="held-out tasks")
    samples: int = Field(default=8, ge=1, description="tries at each task, at temperature 1")
    steps: int = Field(default=30, ge=1, description="of GRPO in each training")
    arms: tuple[str, ...] = tuple(ARMS)
    mixes: tuple[str, ...] = ("all",)
    """Mixes of teachers by name: "all", and "without FAMILY" for each family."""

    sdpo: float = Field(default=0.1, gt=0, description="the weight α where self-distillation is on")
    replay: float = Field(default=0.05, gt=0, description="the weight β where replay is on")
    """On development seed 900 the first steps' gradient had a norm of .12 for GRPO alone, and 1.61 with a weight of 1:
    at .05 the term's is two thirds of GRPO's. After 8 steps on made-up pairs, all against handing in too early, GRPO
    alone solved .42 of 48 attempts, and with weights of .1, .3 and 1 it was .10, .13 and .04."""
    imitation: float = Field(default=0.1, gt=0, description="the weight of the control by supervised fine-tuning")
    dpo_beta: float = Field(default=0.1, gt=0, description="DPO's own β")
    pairs_per_step: int = Field(default=8, ge=1)

    policy_seed: int = Field(default=0, ge=0, description="of the warm policy that all trainings begin from")
    settings: dict[str, JsonValue] = Field(
        default={"prompts_per_step": 4, "group_size": 8}, description="of the recipe `repair`, other than its own"
    )
    pairs: str = ""
    """A digest of the traces and the replies that pairs are made from."""

    @property
    def recipe(self) -> RepairSettings:
        """Raises pydantic's ValidationError for a setting that there is not."""
        own = {"max_steps": self.steps, "traces": False}
        return RepairSettings.model_validate({**self.settings, **own})

    @property
    def trainings(self) -> tuple[Training, ...]:
        """All of them, the arms of a seed beside each other. A mix of teachers is another arm only where pairs are
        trained on: other mixes than all teachers are tried with the primary arm."""
        whole = [(arm, self.mixes[0]) for arm in self.arms]
        other = [(PRIMARY, mix) for mix in self.mixes[1:] if PRIMARY in self.arms]
        return tuple(
            Training(seed, arm, mix)
            for seed in range(self.first_seed, self.first_seed + self.seeds)
            for arm, mix in (*whole, *other)
        )


@dataclass(frozen=True, order=True)
class Training:
    """One training of the experiment."""

    seed: int
    arm: str
    mix: str
