"""The models behind the local endpoint: three teachers of unlike size and training, and the student. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from oven_recipes.repair.settings import RepairSettings

STUDENT: Final = "student"


@dataclass(frozen=True)
class LocalModel:
    """A policy of the recipe `repair`, by what its warm-up is made with."""

    seed: int
    settings: RepairSettings
    family: str
    price: float = 0.0
    """Made up: US dollars per million tokens of a prompt, and a quarter of an answer's. It is the weights in millions,
    so that gates have a cost to weigh."""


def _trained(hidden: int, layers: int, right: float, until: float, demonstrations: int) -> RepairSettings:
    """A teacher. It stops where it solves `until` of unseen tasks, and at MOST_STEPS at the latest."""
    return RepairSettings(
        hidden=hidden,
        layers=layers,
        ffn=3 * hidden,
        right_habit=right,
        solved_from=until,
        sft_steps=MOST_STEPS,
        demonstrations=demonstrations,
    )


MOST_STEPS: Final = 800
"""Of a teacher's warm-up: as many as the student's, so that all of them are trained in a quarter of an hour."""
MODELS: Final = {
    STUDENT: LocalModel(0, RepairSettings(), "student"),
    "wide": LocalModel(11, _trained(128, 3, 0.95, 0.6, 4000), "wide", 0.64),
    "deep": LocalModel(12, _trained(96, 5, 0.9, 0.55, 6000), "deep", 0.6),
    "small": LocalModel(13, _trained(64, 3, 0.85, 0.45, 3000), "small", 0.16),
}
"""Another seed is other demonstrations, other initial weights and another order: what families differ by, in small.
Teachers repair more often than the student, as demonstrated to them, and not equally often."""
QUICK: Final = {
    "hidden": 32, "layers": 1, "ffn": 64, "sft_steps": 120, "sft_round": 120, "sft_batch": 16, "sft_tasks": 4,
    "demonstrations": 300,
}  # fmt: skip
"""Sizes that take seconds: such models call tools, and repair nothing."""


def models(*, quick: bool = False) -> dict[str, LocalModel]:
    """Name → model, the student's among them."""
    if not quick:
        return dict(MODELS)
    return {name: replace(model, settings=model.settings.model_copy(update=QUICK)) for name, model in MODELS.items()}
