"""Injects activation vectors v into an oracle's forward passes. At a prompt's placeholders, the output h of block 1
becomes h + ‖h‖ · v/‖v‖. The formula comes from the code of Activation Oracles (Karvonen et al. 2025), with their
coefficient of 1. Gradients flow through the complete formula, including ‖h‖, but not through v.

Every forward pass is checked, so that none runs without its vectors by mistake. A pass raises an error if the prompt
has placeholders but no vectors were set, or the reverse. When `generate` uses a cache, only its first pass has
placeholders. Gradient checkpointing recomputes a block without the block's hooks (transformers 5.23). The recomputation
starts from saved states, which already contain the vectors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_recipes.activations.model_blocks import block_at, hidden_size, model_body, unwrap_model
from oven_recipes.activations.placeholders import Placeholders, PlaceholderSpan

INJECTION_BLOCK = 1
"""Index of the block whose output is modified (the second block, as in Activation Oracles)."""

INJECTION_ATTRIBUTE = "oven_injection"
"""Attribute of a model's body that stores its injection. Copying the model copies this attribute and the hooks."""
LEARNT_POSITIONS = "wpe"
"""Module name in models whose learnt positions the caller must pass (GPT-2 and its relatives)."""


def inject_vectors(hidden: Tensor, vectors: Tensor) -> Tensor:
    """Return h + ‖h‖ · v/‖v‖ for each row of `hidden` and `vectors`, in the dtype of `hidden`, computed in float32."""
    states, directions = hidden.float(), vectors.to(hidden.device).float()
    scale = states.norm(dim=-1, keepdim=True) / directions.norm(dim=-1, keepdim=True)  # (placeholders, 1)
    result: Tensor = states + scale * directions
    return result.to(hidden.dtype)


RowVectors = Sequence[Tensor | None]
"""For each row of the batch, its vectors (placeholders, hidden size), or None if it has no placeholders."""


class _Plan(NamedTuple):
    """The positions at which one forward pass receives vectors. `vectors[i]` belongs to the token in row `rows[i]` and
    column `columns[i]` of the batch."""

    rows: Tensor
    columns: Tensor
    vectors: Tensor


class _ThreadState(threading.local):
    """The vectors of one thread. Generation can run in a different thread from training (see `generation_ahead`)."""

    vectors: RowVectors | None = None
    layers: Sequence[int | None] | None = None
    is_in_pass: bool = False
    """Whether a pass is running. A hook that runs outside of a pass belongs to a recomputation."""
    plan: _Plan | None = None


class _PlaceholderCheck(threading.local):
    """The current thread's check that a pass has vectors for its placeholders."""

    is_disabled: bool = False


_PLACEHOLDER_CHECK = _PlaceholderCheck()


@contextlib.contextmanager
def unchecked_passes() -> Iterator[None]:
    """Disable the placeholder check for this thread, so that it can run texts that are not oracle prompts."""
    previous, _PLACEHOLDER_CHECK.is_disabled = _PLACEHOLDER_CHECK.is_disabled, True
    try:
        yield
    finally:
        _PLACEHOLDER_CHECK.is_disabled = previous


class ActivationInjection:
    """Injects vectors into a model's forward passes: `with injection.vectors(vectors): model(...)`. Row i of the batch
    gets the vectors `vectors[i]` at its placeholders. If `generate` returns n sequences per prompt, the batch has n
    times as many rows, and each entry is used for n consecutive rows. The hooks stay on the model until `remove` is
    called, or until a `with` block of the injection ends. Raises ConfigError for a model without block `block`, for a
    model that already has an injection, and for an unsuitable tokenizer (see `Placeholders`)."""

    def __init__(self, model: Any, tokenizer: Any, block: int = INJECTION_BLOCK) -> None:
        self._placeholders = Placeholders(tokenizer)
        self._block = block
        self._thread = _ThreadState()
        self._hooks: list[Any] = []
        self._bodies: list[Any] = []
        self.hidden_size = hidden_size(model)
        self.attach(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __deepcopy__(self, _: Any) -> ActivationInjection:
        """Return this object, because the hooks in a copy of the model also use it."""
        return self

    def attach(self, model: Any) -> None:
        """Also inject the vectors into `model`, such as the policy's reference model. Repeated calls have no effect.
        Raises ConfigError for a model with a different hidden size, or with another injection."""
        root = unwrap_model(model)
        injection = getattr(model_body(root), INJECTION_ATTRIBUTE, None)
        if injection is self:
            return
        if injection is not None:
            raise ConfigError(
                f"{type(root).__name__} already has an injection; use that one (`trainer.injection`), or `remove()` it "
                "first"
            )
        if hidden_size(root) != self.hidden_size:
            raise ConfigError(
                f"the activations have {self.hidden_size} elements, but the hidden states of {type(root).__name__} "
                f"have {hidden_size(root)}; use a model with the same hidden size"
            )
        block, body = block_at(root, self._block), model_body(root)
        self._hooks += [
            body.register_forward_pre_hook(self._begin_pass, with_kwargs=True),
            body.register_forward_hook(self._end_pass, always_call=True),
            block.register_forward_hook(self._inject),
        ]
        self._bodies.append(body)
        setattr(body, INJECTION_ATTRIBUTE, self)

    def remove(self) -> None:
        """Remove the hooks from all models."""
        for hook in self._hooks:
            hook.remove()
        for body in self._bodies:
            delattr(body, INJECTION_ATTRIBUTE)
        self._hooks.clear()
        self._bodies.clear()

    @contextlib.contextmanager
    def vectors(self, vectors: RowVectors | None, layers: Sequence[int | None] | None = None) -> Iterator[None]:
        """Set the vectors for this thread's forward passes. None means that the passes have no placeholders. `layers`
        contains the layer from which each row's vectors were captured. The row's prompt must name the same layer,
        unless the layer is None. Raises ConfigError for vectors that are of the wrong size, not finite, or zero."""
        for row, row_vectors in enumerate(vectors or ()):
            if row_vectors is not None:
                check_vectors(row_vectors, self.hidden_size, f"row {row}")
        previous = self._thread.vectors, self._thread.layers
        self._thread.vectors, self._thread.layers = vectors, layers
        try:
            yield
        finally:
            self._thread.vectors, self._thread.layers = previous

    def _begin_pass(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._thread.plan, self._thread.is_in_pass = None, False
        if self._thread.vectors is not None and any(name.startswith("cu_seq_lens") for name in kwargs):
            raise ConfigError(
                "this pass packs several texts into a row, as in continuous batching, so the rows' placeholders are "
                "unknown; use `generate` without it"
            )
        self._thread.plan = self._make_plan(args[0] if args else kwargs.get("input_ids"), kwargs.get("past_key_values"))
        self._thread.is_in_pass = True
        return (args, _with_positions(args, kwargs)) if hasattr(module, LEARNT_POSITIONS) else None

    def _end_pass(self, *_: Any) -> None:
        self._thread.plan, self._thread.is_in_pass = None, False

    def _inject(self, module: Any, _args: Any, output: Any) -> Any:
        state = self._thread
        if not state.is_in_pass:
            raise RuntimeError(
                f"{type(module).__name__} was called outside of its model's pass, so its inputs are unknown; this is "
                "caused by gradient checkpointing in transformers before 5.23; update it, or turn off checkpointing"
            )
        if state.plan is None:
            return output
        hidden = output[0] if isinstance(output, tuple) else output  # (batch, tokens, hidden size)
        rows, columns, vectors = (tensor.to(hidden.device) for tensor in state.plan)
        new_states = inject_vectors(hidden[rows, columns], vectors)
        new_hidden = hidden.index_put((rows, columns), new_states)  # a copy
        return (new_hidden, *output[1:]) if isinstance(output, tuple) else new_hidden

    def _make_plan(self, ids: Tensor | None, cache: Any) -> _Plan | None:
        vectors = self._thread.vectors
        if _PLACEHOLDER_CHECK.is_disabled or (cache is not None and int(cache.get_seq_length()) > 0):
            return None  # when generation continues from a cache, an earlier pass had the placeholders
        if ids is None:
            if vectors is None:
                return None
            raise RuntimeError("a forward pass without token ids has unknown placeholders; pass the token ids")
        spans = self._find_spans(ids)
        if vectors is None:
            if any(span is not None for span in spans):
                raise RuntimeError(
                    "a forward pass has placeholders, but no vectors were set for it; run it in "
                    "`injection.vectors(...)`, or add the column `activation` to the dataset"
                )
            return None
        if not vectors or len(spans) % len(vectors):
            raise RuntimeError(
                f"a batch has {len(spans)} rows, but there are vectors for {len(vectors)}; set them per batch"
            )
        return self._match(vectors, spans, len(spans) // len(vectors), ids.device)

    def _find_spans(self, ids: Tensor) -> list[PlaceholderSpan | None]:
        has_placeholder = (ids == self._placeholders.token_id).any(dim=1).tolist()
        if not any(has_placeholder):
            return [None] * len(has_placeholder)
        rows = zip(ids.tolist(), has_placeholder, strict=True)
        return [self._placeholders.find(row_ids) if has_any else None for row_ids, has_any in rows]

    def _match(
        self, vectors: RowVectors, spans: list[PlaceholderSpan | None], repeats: int, device: torch.device
    ) -> _Plan | None:
        """Assign `vectors` to the placeholders. Each entry belongs to `repeats` consecutive rows of the batch."""
        rows: list[int] = []
        columns: list[int] = []
        used_vectors = []
        for row, span in enumerate(spans):
            entry = row // repeats
            row_vectors = vectors[entry]
            layer = self._thread.layers[entry] if self._thread.layers is not None else None
            _check_row(entry, row_vectors, layer, span)
            if row_vectors is not None and span is not None:
                rows += [row] * len(row_vectors)
                columns += range(span.start, span.stop)
                used_vectors.append(row_vectors)
        if not used_vectors:
            return None
        return _Plan(torch.tensor(rows, device=device), torch.tensor(columns, device=device), torch.cat(used_vectors))


def _with_positions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Add `position_ids` that start at the first token of each row, as in `generate`. TRL passes none when it computes
    log-probabilities, so the model would also count the padding on the left."""
    ids, mask = args[0] if args else kwargs.get("input_ids"), kwargs.get("attention_mask")
    if kwargs.get("position_ids") is not None or ids is None or mask is None or mask.ndim != 2:
        return kwargs
    positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)  # of all tokens, including those in the cache
    return {**kwargs, "position_ids": positions[:, -ids.shape[1] :]}


def _check_row(row: int, vectors: Tensor | None, layer: int | None, span: PlaceholderSpan | None) -> None:
    """Raise RuntimeError unless the row's prompt has as many placeholders as vectors, and names their layer."""
    count = 0 if span is None else span.stop - span.start
    if vectors is None and count:
        raise RuntimeError(f"row {row} has {count} placeholders after `Layer: n`, but no vectors")
    if vectors is not None and len(vectors) != count:
        raise RuntimeError(
            f"row {row} has {count} placeholders after `Layer: n`, but {len(vectors)} vectors; create its prompt with "
            "oracle_prompt(layer, len(vectors), question)"
        )
    if layer is not None and span is not None and span.layer != layer:
        raise RuntimeError(f"row {row} says `Layer: {span.layer}`, but its vectors are from layer {layer}")


def check_vectors(vectors: Tensor, size: int, label: str) -> None:
    """Raise ConfigError unless there is at least one vector, and each is finite, not zero, and has `size` elements."""
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != size:
        raise ConfigError(
            f"{label}: activations of shape {tuple(vectors.shape)} do not fit hidden states of size {size}; capture "
            "them from the oracle's model, or one with the same hidden size"
        )
    norms = vectors.float().norm(dim=1)
    if not bool(torch.isfinite(norms).all()):
        raise ConfigError(f"{label}: an activation is NaN or infinite; capture it again in bfloat16 or float32")
    if not bool((norms > 0).all()):
        raise ConfigError(f"{label}: an activation is zero, so it has no direction; capture it again")
