"""Load the teacher of a loss channel. It is never GRPO's reference, so its tokenizer may differ from the policy's."""

from __future__ import annotations

from typing import Any

import torch

from oven_core.errors import TeacherRefusedError, reason
from oven_learner.teachers import checks
from oven_learner.teachers.config import TeacherConfig
from oven_learner.teachers.placement import as_trainer_asks, chosen_form, load_model, load_tokenizer, place_model


@torch.no_grad()
def admit(trainer: Any, teacher: Any, tokenizer: Any, limit: int) -> tuple[Any, Any]:
    """Return the loaded model of `teacher`, a TeacherConfig or a model, and its tokenizer. `limit` is in bytes.

    Raises TeacherRefusedError if it is too large, shares weights with the policy, has fewer rows than its tokenizer has
    ids, or returns non-finite logits for a probe.
    """
    accelerator = trainer.accelerator
    config = teacher if isinstance(teacher, TeacherConfig) else TeacherConfig(name="distill", model=teacher)
    if tokenizer is not None:
        config = config.model_copy(update={"tokenizer": tokenizer})
    form = chosen_form(config, accelerator.device, limit)
    own_tokenizer = load_tokenizer(config)
    if own_tokenizer is None:
        raise TeacherRefusedError("it has no tokenizer in its folder; pass one, Distillation(teacher=…, tokenizer=…)")
    model = load_model(config, form, accelerator.device)
    checks.check_own_weights(accelerator.unwrap_model(trainer.model), model)
    checks.check_size(model, 0, limit, form)
    rows, last = checks.rows(model), max(own_tokenizer.get_vocab().values())
    if last >= rows:
        raise TeacherRefusedError(
            f"its tokenizer has ids up to {last:,} and it has {rows:,} rows; use its own tokenizer"
        )
    place_model(model, accelerator.device, form, None)
    ready = as_trainer_asks(model, accelerator, form)
    try:
        logits = ready(input_ids=torch.tensor([[last, last]], device=accelerator.device)).logits
    except Exception as error:
        raise TeacherRefusedError(f"it cannot score a probe: {reason(error)}") from error
    if not bool(torch.isfinite(logits).all()):
        raise TeacherRefusedError("it gives a probe logits that are not finite; check its weights")
    return ready, own_tokenizer
