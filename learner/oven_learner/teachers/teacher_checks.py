"""Checks of a model that is to become a teacher. They raise TeacherRefusedError with the reason."""

from __future__ import annotations

from typing import Any

import torch

from oven_core.errors import TeacherRefusedError, reason
from oven_learner import trainer_internals
from oven_learner.teachers.memory_forms import Form, measure_footprint

ALTERNATIVE = "a teacher with another tokenizer can teach as a loss channel, Distillation(teacher=…, tokenizer=…)"
"""Remedy for a teacher that cannot be GRPO's reference."""


def check_own_weights(policy: torch.nn.Module, model: torch.nn.Module) -> None:
    """Check that the teacher shares no parameters with the policy, and that its forward does not run another model."""
    policy_ids = {id(parameter) for parameter in policy.parameters()}
    if any(id(parameter) in policy_ids for parameter in model.parameters()):
        raise TeacherRefusedError("it shares parameters with the policy, which would also be frozen; pass a copy")
    # TRL and accelerate patch `forward`. A deep copy has the same patch, which still runs the original model.
    patch = vars(model).get("forward")
    cells = getattr(getattr(patch, "__func__", patch), "__closure__", None) or ()
    owners = [getattr(cell.cell_contents, "__self__", model) for cell in cells]
    if any(isinstance(owner, torch.nn.Module) and owner is not model for owner in owners):
        raise TeacherRefusedError(
            "its forward runs another model, because it is a copy of a model that a trainer has patched; load it "
            "from disk, or copy it before you create the trainer"
        )


def check_size(model: torch.nn.Module, loaded_bytes: int, limit: int, form: Form = "resident") -> None:
    """Check the size of the model in its form, together with the `loaded_bytes` of the other teachers."""
    needed_bytes = measure_footprint(model).bytes_as(form)
    if loaded_bytes + needed_bytes > limit:
        count = sum(parameter.numel() for parameter in model.parameters())
        raise TeacherRefusedError(
            f"it has {count:,} parameters in {needed_bytes:,} bytes, and {loaded_bytes + needed_bytes:,} together with "
            f"the loaded teachers, but the limit is {limit:,}; use a smaller model or dtype, register it with the "
            "strategy 'quantized' or 'offload', or raise limit_bytes"
        )


def check_vocabulary(
    policy: Any, model: Any, policy_tokenizer: Any = None, teacher_tokenizer: Any = None, *, equal_rows: bool = False
) -> None:
    """Check that the policy's token ids mean the same to the teacher and are within its vocabulary. If the teacher's
    tokenizer is passed, its tokens must equal the policy's. Its embeddings may then have more rows, because models of a
    family are padded differently. Without a tokenizer, or with `equal_rows`, the number of rows must be equal. Losses
    that compare complete distributions need `equal_rows`."""
    teacher_rows, policy_rows = vocabulary_rows(model), int(policy.get_output_embeddings().weight.shape[0])
    is_too_small = teacher_rows < policy_rows
    alternative = "" if equal_rows else f"; {ALTERNATIVE}"
    if is_too_small or (teacher_rows != policy_rows and (equal_rows or teacher_tokenizer is None)):
        padding_remedy = ", or pass its tokenizer if only the padding differs"
        raise TeacherRefusedError(
            f"its vocabulary has {teacher_rows:,} rows, but the policy's has {policy_rows:,}; use a teacher of the "
            f"policy's family{'' if equal_rows or is_too_small else padding_remedy}{alternative}"
        )
    if teacher_tokenizer is None:
        return
    # A processor contains its tokenizer as an attribute.
    policy_ids = getattr(policy_tokenizer, "tokenizer", policy_tokenizer).get_vocab()
    teacher_ids = getattr(teacher_tokenizer, "tokenizer", teacher_tokenizer).get_vocab()
    if policy_ids != teacher_ids:
        all_tokens = policy_ids.keys() | teacher_ids.keys()
        different_tokens = sorted(token for token in all_tokens if policy_ids.get(token) != teacher_ids.get(token))
        token = different_tokens[0]
        raise TeacherRefusedError(
            f"its tokenizer maps {len(different_tokens):,} tokens to other ids than the policy's, for example "
            f"{token!r} to {teacher_ids.get(token)} instead of {policy_ids.get(token)}; use a teacher with the "
            f"policy's tokenizer{alternative}"
        )


@torch.no_grad()
def check_scores(trainer: Any, model: Any) -> None:
    """Score the highest token id once, as in training, so that an unusable teacher fails early."""
    last_id = int(trainer.accelerator.unwrap_model(trainer.model).get_output_embeddings().weight.shape[0]) - 1
    ids = torch.full((1, 2), last_id, device=trainer.accelerator.device)  # (B, T) int64
    try:
        if trainer_internals.has_log_probabilities(trainer):  # GRPO, for its KL term
            scores = trainer_internals.log_probabilities(trainer, model, ids, torch.ones_like(ids), 1)
        else:
            scores = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1)
    except Exception as error:
        raise TeacherRefusedError(f"it failed on a probe of two tokens: {reason(error)}") from error
    if not bool(torch.isfinite(scores).all()):
        log_probability = float(scores.flatten()[0])
        raise TeacherRefusedError(f"its log-probability for a probe token is {log_probability}; check its weights")


def vocabulary_rows(model: Any) -> int:
    """Return the number of token ids that the model supports as both input and output."""
    return min(
        int(embedding.weight.shape[0]) for embedding in (model.get_input_embeddings(), model.get_output_embeddings())
    )
