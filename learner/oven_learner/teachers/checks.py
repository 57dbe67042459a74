"""Check that a model can be used as a teacher. Each error names the value, the limit and the remedy."""

from __future__ import annotations

from typing import Any

import torch

from oven_core.errors import TeacherRefusedError, reason
from oven_learner.teachers.memory import Form, footprint

ALTERNATIVE = "a teacher with another tokenizer can teach as a loss channel, Distillation(teacher=…, tokenizer=…)"
"""The remedy for a teacher that cannot be GRPO's reference."""


def check_own_weights(policy: torch.nn.Module, model: torch.nn.Module) -> None:
    """Check that the teacher shares no parameters with the policy, which would be frozen too, and does not run it."""
    trained = {id(parameter) for parameter in policy.parameters()}
    if any(id(parameter) in trained for parameter in model.parameters()):
        raise TeacherRefusedError("it shares parameters with the policy, which would be frozen too; pass a copy")
    # TRL and accelerate patch `forward`, and a deep copy keeps the original's patch.
    patch = vars(model).get("forward")
    cells = getattr(getattr(patch, "__func__", patch), "__closure__", None) or ()
    owners = [getattr(cell.cell_contents, "__self__", model) for cell in cells]
    if any(isinstance(owner, torch.nn.Module) and owner is not model for owner in owners):
        raise TeacherRefusedError(
            "its forward runs another model, because it is a copy of a model that a trainer has patched; load it "
            "from disk, or copy it before creating the trainer"
        )


def check_size(model: torch.nn.Module, held: int, limit: int, form: Form = "resident") -> None:
    """Check the model's size in its form. `limit` also covers `held` bytes in use, because all teachers stay loaded."""
    needed = footprint(model).bytes_as(form)
    if held + needed > limit:
        count = sum(parameter.numel() for parameter in model.parameters())
        raise TeacherRefusedError(
            f"it has {count:,} parameters in {needed:,} bytes, which makes {held + needed:,} with the loaded "
            f"teachers, and the limit is {limit:,}; use a smaller model or a shorter dtype, register it "
            "with the strategy 'quantized' or 'offload', or raise limit_bytes"
        )


def check_vocabulary(
    policy: Any, model: Any, policy_tokenizer: Any = None, teacher_tokenizer: Any = None, *, equal_rows: bool = False
) -> None:
    """Check that the policy's token ids mean the same to the teacher and lie within its rows.

    Without the teacher's tokenizer the sizes must be equal. With it the vocabularies must be equal, and the teacher may
    have more rows, because models of a family are padded differently. `equal_rows` forbids that, for losses that
    compare whole distributions.
    """
    have, need = rows(model), int(policy.get_output_embeddings().weight.shape[0])
    if have < need or (have != need and (equal_rows or teacher_tokenizer is None)):
        raise TeacherRefusedError(
            f"its vocabulary has {have:,} rows and the policy's {need:,}; use a teacher of the policy's family"
            + ("" if equal_rows or have < need else ", or its tokenizer if only the padding differs")
            + ("" if equal_rows else f"; {ALTERNATIVE}")
        )
    if teacher_tokenizer is None:
        return
    # A processor contains a tokenizer.
    ours, theirs = (
        getattr(tokenizer, "tokenizer", tokenizer).get_vocab() for tokenizer in (policy_tokenizer, teacher_tokenizer)
    )
    if ours != theirs:
        differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        token = differing[0]
        raise TeacherRefusedError(
            f"its tokenizer maps {len(differing):,} tokens to other ids than the policy's, {token!r} to "
            f"{theirs.get(token)} instead of {ours.get(token)}; use a teacher with the policy's tokenizer"
            + ("" if equal_rows else f"; {ALTERNATIVE}")
        )


@torch.no_grad()
def check_scores(trainer: Any, model: Any) -> None:
    """Score the highest token id once, as in training, so that an unusable teacher fails now."""
    last = int(trainer.accelerator.unwrap_model(trainer.model).get_output_embeddings().weight.shape[0]) - 1
    ids = torch.full((1, 2), last, device=trainer.accelerator.device)  # (B, T) int64
    try:
        if hasattr(trainer, "_get_per_token_logps_and_entropies"):  # GRPO, for its KL term
            scores, _, _ = trainer._get_per_token_logps_and_entropies(model, ids, torch.ones_like(ids), 1)
        else:
            scores = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.log_softmax(-1)
    except Exception as error:
        raise TeacherRefusedError(f"it cannot score a probe: {reason(error)}") from error
    if not bool(torch.isfinite(scores).all()):
        raise TeacherRefusedError(
            f"it gives a probe the log-probability {float(scores.flatten()[0])}; check its weights"
        )


def rows(model: Any) -> int:
    """Return the number of token ids that the model can read and score."""
    return min(
        int(embedding.weight.shape[0]) for embedding in (model.get_input_embeddings(), model.get_output_embeddings())
    )
