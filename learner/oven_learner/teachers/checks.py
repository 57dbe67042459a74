"""What a model must be before it may teach: each check names the value, the limit and the remedy."""

from __future__ import annotations

from typing import Any

import torch

from oven_core.errors import TeacherRefusedError, reason
from oven_learner.teachers.memory import Form, own_bytes
from oven_learner.teachers.quantization import footprint

ALTERNATIVE = "a teacher with another tokenizer can teach as a loss channel, Distillation(teacher=…, tokenizer=…)"
"""What to do with one that cannot be GRPO's reference."""


def check_own_weights(policy: torch.nn.Module, model: torch.nn.Module) -> None:
    """A teacher is frozen when it is loaded; one that shares parameters with the policy would freeze it too. And one
    that runs the policy would change with it."""
    trained = {id(parameter) for parameter in policy.parameters()}
    if any(id(parameter) in trained for parameter in model.parameters()):
        raise TeacherRefusedError("it shares parameters with the policy, which would be frozen with it; give a copy")
    if _runs_another(model):
        raise TeacherRefusedError(
            "its forward runs another model: it is a copy of one that a trainer has patched; load it, or copy the "
            "model before a trainer is made of it"
        )


def _runs_another(model: torch.nn.Module) -> bool:
    """TRL's and accelerate's patches of `forward` hold the model's own; a deep copy's hold that of the copied model."""
    patch = vars(model).get("forward")
    cells = getattr(getattr(patch, "__func__", patch), "__closure__", None) or ()
    owners = [getattr(cell.cell_contents, "__self__", model) for cell in cells]
    return any(isinstance(owner, torch.nn.Module) and owner is not model for owner in owners)


def size_bytes(model: torch.nn.Module) -> int:
    """Bytes of the model's parameters that are in memory."""
    return own_bytes(model, buffers=False)


def check_size(model: torch.nn.Module, held: int, limit: int, form: Form = "resident") -> None:
    """All teachers stay loaded, so their sum counts: `held` bytes are taken already, `limit` is for all together. What
    counts is what the model will hold in its form, and nothing for one that is offloaded."""
    needed = footprint(model).bytes_as(form)
    if held + needed > limit:
        count = sum(parameter.numel() for parameter in model.parameters())
        raise TeacherRefusedError(
            f"it has {count:,} parameters in {needed:,} bytes, which makes {held + needed:,} with the teachers that "
            f"are loaded, and the limit is {limit:,}; give a smaller model, load it in a shorter dtype, register it "
            "with the strategy 'quantized' or 'offload', or raise limit_bytes"
        )


def check_vocabulary(policy: Any, model: Any, own: Any = None, other: Any = None, *, equal_rows: bool = False) -> None:
    """The policy's token ids must mean the same to the teacher, and none may lie beyond its rows (an IndexError in the
    middle of a run). `own` and `other` are the tokenizers of policy and teacher. Without the teacher's, the sizes must
    be equal; with it the maps must be, and the teacher may have more rows (models of a family are padded differently),
    unless whole distributions are compared: `equal_rows`.
    """
    have, need = rows(model), int(policy.get_output_embeddings().weight.shape[0])
    if have < need or (have != need and (equal_rows or other is None)):
        raise TeacherRefusedError(
            f"its vocabulary has {have:,} rows and the policy's {need:,}; give a teacher of the policy's own family"
            + ("" if equal_rows or have < need else ", or its tokenizer if only the padding differs")
            + ("" if equal_rows else f"; {ALTERNATIVE}")
        )
    if other is None:
        return
    ours, theirs = (getattr(one, "tokenizer", one).get_vocab() for one in (own, other))  # a processor holds one
    if ours != theirs:
        differing = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        token = differing[0]
        raise TeacherRefusedError(
            f"its tokenizer maps {len(differing):,} tokens to other ids than the policy's, {token!r} to "
            f"{theirs.get(token)} instead of {ours.get(token)}; give a teacher with the policy's tokenizer"
            + ("" if equal_rows else f"; {ALTERNATIVE}")
        )


@torch.no_grad()
def check_scores(trainer: Any, model: Any) -> None:
    """Scores the highest token id once, as training will: what cannot, must fail now and not in the middle of a run."""
    last = int(trainer.accelerator.unwrap_model(trainer.model).get_output_embeddings().weight.shape[0]) - 1
    ids = torch.full((1, 2), last, device=trainer.accelerator.device)  # (B, T) int64
    try:
        if hasattr(trainer, "_get_per_token_logps_and_entropies"):  # GRPO's, for its KL term
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
    """How many token ids it can read and score."""
    return min(
        int(embedding.weight.shape[0]) for embedding in (model.get_input_embeddings(), model.get_output_embeddings())
    )
