"""The models behind the local endpoint: three teachers of unlike size and training, and the student. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from oven_learner.recipes.repair.settings import RepairSettings

STUDENT: Final = "student"


@dataclass(frozen=True)
class LocalModel:
    """A policy of the recipe `repair`, by what its warm-up is made with."""

    seed: int
    settings: RepairSettings
    family: str


def _trained(hidden: int, layers: int, right: float, until: float, steps: int, demonstrations: int) -> RepairSettings:
    return RepairSettings(
        hidden=hidden,
        layers=layers,
        ffn=3 * hidden,
        right_habit=right,
        solved_from=until,
        sft_steps=steps,
        demonstrations=demonstrations,
    )


QUICK: Final = {
    "hidden": 32, "layers": 1, "ffn": 64, "sft_steps": 150, "sft_round": 150, "sft_batch": 16, "demonstrations": 300,
}  # fmt: skip
"""Sizes that take seconds: such models call tools, and repair nothing."""


def models(*, quick: bool = False) -> dict[str, LocalModel]:
    """Name → model, the student's among them."""
    if not quick:
        return dict(MODELS)
    return {name: replace(model, settings=model.settings.model_copy(update=QUICK)) for name, model in MODELS.items()}


MODELS: Final = {
    STUDENT: LocalModel(0, RepairSettings(), "student"),
    "wide": LocalModel(11, _trained(160, 3, 0.95, 0.75, 1600, 6000), "wide"),
    "deep": LocalModel(12, _trained(96, 5, 0.9, 0.65, 1600, 9000), "deep"),
    "small": LocalModel(13, _trained(96, 2, 0.85, 0.5, 1200, 4000), "small"),
}
"""Another seed is other demonstrations, other initial weights and another order: what families differ by, in small."""
