"""The model that the policy is held to: GRPO's reference, a teacher in its place, or the policy without its adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import is_peft_model


def has_adapter(trainer: Any) -> bool:
    """Whether the policy is a PEFT model: the model below its adapter is then a reference that is always there."""
    return bool(is_peft_model(trainer.model))


def has_reference(trainer: Any) -> bool:
    """Whether a GRPOTrainer has something to be held to, whatever its β is."""
    return trainer.ref_model is not None or has_adapter(trainer)


@contextmanager
def reference(trainer: Any) -> Iterator[Any]:
    """The model to score with while the context lasts; as TRL 1.16 chooses it (`_generate_and_score_completions`)."""
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    from trl.trainer.utils import use_adapter

    policy = trainer.accelerator.unwrap_model(trainer.model)
    with use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None):
        yield policy
