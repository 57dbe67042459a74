"""Where a committee's verifier takes the drafts from that it compares answers with: the trainer's own teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from oven_core.errors import ConfigError
from oven_learner.rewards import Committee
from oven_learner.rewards.draft_verifier import DraftVerifier, TeacherDrafts
from oven_learner.teachers import Teachers
from oven_learner.teachers.registry import has_reference, reference, teaching


def give_drafts(trainer: Any, committee: Committee, teachers: Teachers | None) -> None:
    """The active teacher's greedy answers, or without `teachers` those of the trainer's reference model, to each
    verifier that has none yet. Raises ConfigError where there is neither."""
    for name, rule in committee.rules.items():
        if not isinstance(rule, DraftVerifier) or rule.drafts is not None:
            continue
        if teachers is None and not has_reference(trainer):
            raise ConfigError(
                f"the verifier {name!r} compares with a teacher's answers, and this training has none: give "
                "attach(teachers=…), train with a reference model (beta above 0), or leave the verifier out"
            )
        active = partial(_reference, trainer) if teachers is None else partial(_active, trainer, teachers)
        rule.drafts = TeacherDrafts(
            active, trainer.processing_class, trainer.accelerator.device, trainer.args.max_completion_length
        )


@contextmanager
def _active(trainer: Any, teachers: Teachers) -> Iterator[tuple[str, Any]]:
    """Its name, and the model to ask."""
    name = teachers.active
    with teaching(trainer, teachers[name]) as model:
        yield name, model


@contextmanager
def _reference(trainer: Any) -> Iterator[tuple[str, Any]]:
    with reference(trainer) as model:
        yield "reference", model
