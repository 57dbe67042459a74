"""Access to the reference model of a TRL trainer's policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from accelerate.utils import is_peft_model


def has_adapter(trainer: Any) -> bool:
    """Whether the policy is a PEFT model. Its base model is then always available as a reference."""
    return bool(is_peft_model(trainer.model))


def has_reference(trainer: Any) -> bool:
    """Whether a GRPOTrainer has a reference model, regardless of its β."""
    return trainer.ref_model is not None or has_adapter(trainer)


def open_reference(trainer: Any) -> AbstractContextManager[Any]:
    """Yield the reference model for scoring, chosen as in TRL."""
    return open_teacher(trainer, trainer.ref_model)


@contextmanager
def open_teacher(trainer: Any, model: Any) -> Iterator[Any]:
    """Yield a teacher's model for scoring. None means the policy without its adapter."""
    if model is not None:
        yield model
        return
    policy = trainer.accelerator.unwrap_model(trainer.model)
    if "ref" not in policy.peft_config:
        with policy.disable_adapter():
            yield policy
        return
    active_adapter = policy.active_adapter
    policy.set_adapter("ref")  # TRL's copy of the adapter that the training started with
    try:
        yield policy
    finally:
        policy.set_adapter(active_adapter)
