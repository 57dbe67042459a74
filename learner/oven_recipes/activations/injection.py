"""Inject activation vectors v into an oracle's forward passes. At the placeholders of a prompt, the output h of block 1
becomes h + ‖h‖ · v/‖v‖.

The formula comes from the code of Activation Oracles (Karvonen et al. 2025), with their coefficient of 1. Gradients
flow through the complete formula, including ‖h‖, but not through v.

Every forward pass is checked, so that none runs without its vectors by mistake. It raises an error if the prompt has
placeholders but no vectors were set, or the reverse. This applies to generation, scoring and the loss. In `generate`
with a cache, only the first pass has placeholders. Without a cache, each step is a complete pass. Gradient
checkpointing recomputes a block's `forward` without its hooks (transformers 5.23), so a recomputation gets the saved
states, which already contain the vectors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_recipes.activations.model_blocks import block_at, body, unwrap_model, width
from oven_recipes.activations.placeholders import Placeholders, Places

BLOCK = 1
"""Index of the block whose output is modified (the second block, as in Activation Oracles)."""

INJECTION_ATTRIBUTE = "oven_injection"
"""Attribute of a model's body that stores its only injection. Copying the model copies this attribute and the hooks."""
LEARNT_POSITIONS = "wpe"
"""Module name in models whose learnt positions the caller must pass (GPT-2 and its relatives)."""


def inject_vectors(hidden: Tensor, vectors: Tensor) -> Tensor:
    """Return h + ‖h‖ · v/‖v‖ for (K, d) hidden states and vectors, in the dtype of `hidden`, computed in float32."""
    states, directions = hidden.float(), vectors.to(hidden.device).float()
    scale = states.norm(dim=-1, keepdim=True) / directions.norm(dim=-1, keepdim=True)  # (K, 1)
    result: Tensor = states + scale * directions
    return result.to(hidden.dtype)


RowVectors = Sequence[Tensor | None]
"""For each row of the batch, its vectors (K, d), or None if it has no placeholders."""


class _Plan(NamedTuple):
    """Where one forward pass receives vectors: the token at `rows[i]`, `columns[i]` receives `vectors[i]`."""

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
    """Whether the current thread skips the placeholder check."""

    is_disabled: bool = False


_PLACEHOLDER_CHECK = _PlaceholderCheck()


@contextlib.contextmanager
def unchecked_passes() -> Iterator[None]:
    """Run this thread's passes without the check, for texts that are not oracle prompts."""
    previous, _PLACEHOLDER_CHECK.is_disabled = _PLACEHOLDER_CHECK.is_disabled, True
    try:
        yield
    finally:
        _PLACEHOLDER_CHECK.is_disabled = previous


class ActivationInjection:
    """Injects vectors into a model's forward passes: `with injection.vectors(vectors): model(...)`. Row i of the batch
    gets `vectors[i]`, (K, d), at its K placeholders. If the batch has n times as many rows (`generate` with n sequences
    per prompt), each entry is used for n consecutive rows. The injection stays on the model until `remove`, or until
    its own `with` block ends. Raises ConfigError for a model without block `block`, for a model that already has
    an injection, and for invalid `Placeholders`."""

    def __init__(self, model: Any, tokenizer: Any, block: int = BLOCK) -> None:
        self._placeholders = Placeholders(tokenizer)
        self._block = block
        self._thread = _ThreadState()
        self._hooks: list[Any] = []
        self._bodies: list[Any] = []
        self.width = width(model)
        self.attach(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __deepcopy__(self, _: Any) -> ActivationInjection:
        """Return this object, because the hooks in a copy of the model also use it."""
        return self

    def attach(self, model: Any) -> None:
        """Inject the vectors into `model` as well, such as the policy's reference model. Repeated calls have no effect.
        Raises ConfigError for a model with a different hidden size, or with another injection."""
        root = unwrap_model(model)
        injection = getattr(body(root), INJECTION_ATTRIBUTE, None)
        if injection is self:
            return
        if injection is not None:
            raise ConfigError(
                f"{type(root).__name__} already has an injection; use that one (`trainer.injection`), or `remove()` it "
                "first"
            )
        if width(root) != self.width:
            raise ConfigError(
                f"the activations have {self.width} elements, but the hidden states of {type(root).__name__} have "
                f"{width(root)}; use a model with the same hidden size"
            )
        block, base = block_at(root, self._block), body(root)
        self._hooks += [
            base.register_forward_pre_hook(self._begin, with_kwargs=True),
            base.register_forward_hook(self._end, always_call=True),
            block.register_forward_hook(self._inject),
        ]
        self._bodies.append(base)
        setattr(base, INJECTION_ATTRIBUTE, self)

    def remove(self) -> None:
        """Remove the hooks from all models."""
        for hook in self._hooks:
            hook.remove()
        for base in self._bodies:
            delattr(base, INJECTION_ATTRIBUTE)
        self._hooks.clear()
        self._bodies.clear()

    @contextlib.contextmanager
    def vectors(self, vectors: RowVectors | None, layers: Sequence[int | None] | None = None) -> Iterator[None]:
        """Set the vectors for this thread's forward passes, or None if they have no placeholders. `layers` are the
        layers that the vectors of each row were captured from, which its prompt must name (None skips this check).
        Raises ConfigError for vectors that are of the wrong size, not finite, or zero."""
        for row, row_vectors in enumerate(vectors or ()):
            if row_vectors is not None:
                check_vectors(row_vectors, self.width, f"row {row}")
        previous = self._thread.vectors, self._thread.layers
        self._thread.vectors, self._thread.layers = vectors, layers
        try:
            yield
        finally:
            self._thread.vectors, self._thread.layers = previous

    def _begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._thread.plan, self._thread.is_in_pass = None, False
        if self._thread.vectors is not None and any(name.startswith("cu_seq_lens") for name in kwargs):
            raise ConfigError(
                "this pass packs several texts into a row, as in continuous batching, so the rows' placeholders are "
                "unknown; use `generate` without it"
            )
        self._thread.plan = self._plan(args[0] if args else kwargs.get("input_ids"), kwargs.get("past_key_values"))
        self._thread.is_in_pass = True
        return (args, _with_positions(args, kwargs)) if hasattr(module, LEARNT_POSITIONS) else None

    def _end(self, *_: Any) -> None:
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
        hidden = output[0] if isinstance(output, tuple) else output  # (B, T, d)
        rows, columns, vectors = (tensor.to(hidden.device) for tensor in state.plan)
        new_hidden = hidden.index_put((rows, columns), inject_vectors(hidden[rows, columns], vectors))  # a copy
        return (new_hidden, *output[1:]) if isinstance(output, tuple) else new_hidden

    def _plan(self, ids: Tensor | None, cache: Any) -> _Plan | None:
        vectors = self._thread.vectors
        if _PLACEHOLDER_CHECK.is_disabled or (cache is not None and int(cache.get_seq_length()) > 0):
            return None  # when generation continues from a cache, the placeholders are already in it
        if ids is None:
            if vectors is None:
                return None
            raise RuntimeError(
                "a forward pass without token ids has unknown placeholders; call the model with token ids"
            )
        row_places = self._row_places(ids)
        if vectors is None:
            if any(places is not None for places in row_places):
                raise RuntimeError(
                    "a forward pass has placeholders, but no vectors were set for it; run it in "
                    "`injection.vectors(...)`, or add the column `activation` to the dataset"
                )
            return None
        if not vectors or len(row_places) % len(vectors):
            raise RuntimeError(
                f"a batch has {len(row_places)} rows, but there are vectors for {len(vectors)}; set them per batch"
            )
        return self._match(vectors, row_places, len(row_places) // len(vectors), ids.device)

    def _row_places(self, ids: Tensor) -> list[Places | None]:
        flags = (ids == self._placeholders.token_id).any(dim=1).tolist()
        if not any(flags):
            return [None] * len(flags)
        return [self._placeholders.find(row) if flag else None for row, flag in zip(ids.tolist(), flags, strict=True)]

    def _match(
        self, all_vectors: RowVectors, row_places: list[Places | None], repeats: int, device: torch.device
    ) -> _Plan | None:
        row_indices: list[int] = []
        columns: list[int] = []
        vectors = []
        for index, places in enumerate(row_places):
            row = index // repeats
            row_vectors = all_vectors[row]
            layer = self._thread.layers[row] if self._thread.layers is not None else None
            _check_row(row, row_vectors, layer, places)
            if row_vectors is not None and places is not None:
                row_indices += [index] * len(row_vectors)
                columns += range(places.start, places.stop)
                vectors.append(row_vectors)
        if not vectors:
            return None
        return _Plan(torch.tensor(row_indices, device=device), torch.tensor(columns, device=device), torch.cat(vectors))


def _with_positions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Add positions that start at the first token of each row, as in `generate`. TRL's passes have none, so with left
    padding, learnt positions would differ from generation."""
    ids, mask = args[0] if args else kwargs.get("input_ids"), kwargs.get("attention_mask")
    if kwargs.get("position_ids") is not None or ids is None or mask is None or mask.ndim != 2:
        return kwargs
    return {**kwargs, "position_ids": (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]}


def _check_row(row: int, vectors: Tensor | None, layer: int | None, places: Places | None) -> None:
    """Raise RuntimeError unless the row's prompt has the placeholders for its vectors."""
    count = 0 if places is None else places.stop - places.start
    if vectors is None and count:
        raise RuntimeError(f"row {row} has {count} placeholders after `Layer: n`, but no vectors")
    if vectors is not None and len(vectors) != count:
        raise RuntimeError(
            f"row {row} has {count} placeholders after `Layer: n`, but {len(vectors)} vectors; create its prompt with "
            "oracle_prompt(layer, len(vectors), question)"
        )
    if layer is not None and places is not None and places.layer != layer:
        raise RuntimeError(f"row {row} says `Layer: {places.layer}`, but its vectors are from layer {layer}")


def check_vectors(vectors: Tensor, size: int, label: str) -> None:
    """Raise ConfigError unless the vectors are (K, `size`) with K at least 1, finite, and not zero."""
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
