"""Inject activations into an oracle's passes. At the prompt's placeholders, the output h of block 1 becomes h + ‖h‖ ·
v/‖v‖.

The formula comes from the code of Activation Oracles (Karvonen et al. 2025), with their coefficient of 1. Gradients
flow through the whole formula, including ‖h‖; v is data.

Every pass is checked, so that none runs without its vectors by mistake. It raises if there are placeholders without
`rows`, or `rows` without placeholders. Generation, scoring and the loss run passes. In `generate` with a cache, only
the first pass has placeholders, and later ones use cached keys and values. Without a cache, each step is a whole pass.
Gradient checkpointing recomputes a block's `forward` without its hooks (transformers 5.23), so a recomputation gets the
saved injected states.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_recipes.activations.model_blocks import bare, block_at, body, width
from oven_recipes.activations.placeholders import Placeholders, Places

BLOCK = 1
"""The block whose output is changed: the second one, as in Activation Oracles."""

KNOWN_AS = "oven_injection"
"""Attribute of a model's body that stores its only injection. Copying the model copies it together with the hooks."""
LEARNT_POSITIONS = "wpe"
"""Module name in models whose learnt positions the caller must pass (GPT-2 and its relatives)."""


def injected(hidden: Tensor, vectors: Tensor) -> Tensor:
    """Return h + ‖h‖ · v/‖v‖ for (K, d) hidden states and vectors, in the type of `hidden`, computed in float32."""
    states, wanted = hidden.float(), vectors.to(hidden.device).float()
    scale = states.norm(dim=-1, keepdim=True) / wanted.norm(dim=-1, keepdim=True)  # (K, 1)
    moved: Tensor = states + scale * wanted
    return moved.to(hidden.dtype)


Rows = Sequence[Tensor | None]
"""The vectors of each row, (K, d); None for a row without placeholders."""


class _Plan(NamedTuple):
    """The plan of one pass: the rows (N,) and positions (N,) that receive the vectors (N, d)."""

    rows: Tensor
    columns: Tensor
    vectors: Tensor


class _Thread(threading.local):
    """The rows of one thread. Generation may run in a thread next to training (`rewards/generation_ahead`)."""

    rows: Rows | None = None
    layers: Sequence[int | None] | None = None
    inside: bool = False
    """Whether a pass is running. A hook that is called outside of a pass belongs to a recomputation."""
    plan: _Plan | None = None


class _Looking(threading.local):
    off: bool = False


_LOOKING = _Looking()


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Skip the check for this thread's passes over texts that are not oracle prompts."""
    before, _LOOKING.off = _LOOKING.off, True
    try:
        yield
    finally:
        _LOOKING.off = before


class ActivationInjection:
    """Injects vectors into the rows of the next passes: `with injection.rows(vectors): model(...)`. Row i of each pass
    gets `vectors[i]`, (K, d), at its K placeholders.

    If a pass has n times as many rows (`generate` with several sequences per prompt), each entry is used for n
    consecutive rows. The injection stays on the model until `remove`, or until the end of its own `with` block. Raises
    ConfigError for a model without block `block`, for a model that already has an injection, and for invalid
    `Placeholders`.
    """

    def __init__(self, model: Any, tokenizer: Any, block: int = BLOCK) -> None:
        self._placeholders = Placeholders(tokenizer)
        self._block = block
        self._now = _Thread()
        self._hooks: list[Any] = []
        self._bodies: list[Any] = []
        self.width = width(model)
        self.attach(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __deepcopy__(self, _: Any) -> ActivationInjection:
        """Return this object, because it also serves the hooks in a copy of the model."""
        return self

    def attach(self, model: Any) -> None:
        """Inject the rows' vectors into `model` as well, such as a reference next to the policy. Repeated calls have no
        effect. Raises ConfigError for a model with a different hidden size, or with another injection."""
        root = bare(model)
        injection = getattr(body(root), KNOWN_AS, None)
        if injection is self:
            return
        if injection is not None:
            raise ConfigError(
                f"{type(root).__name__} has an injection already, and activations would go in twice; use that one "
                "(`trainer.injection`), or `remove()` it first"
            )
        if width(root) != self.width:
            raise ConfigError(
                f"the activations have {self.width} elements, and the hidden states of {type(root).__name__} "
                f"{width(root)}; take a model of the same hidden size"
            )
        block, base = block_at(root, self._block), body(root)
        self._hooks += [
            base.register_forward_pre_hook(self._begin, with_kwargs=True),
            base.register_forward_hook(self._end, always_call=True),
            block.register_forward_hook(self._inject),
        ]
        self._bodies.append(base)
        setattr(base, KNOWN_AS, self)

    def remove(self) -> None:
        """Remove the hooks from all models."""
        for hook in self._hooks:
            hook.remove()
        for base in self._bodies:
            delattr(base, KNOWN_AS)
        self._hooks.clear()
        self._bodies.clear()

    @contextlib.contextmanager
    def rows(self, vectors: Rows | None, layers: Sequence[int | None] | None = None) -> Iterator[None]:
        """Set the rows of this thread's passes; None for passes without placeholders. If `layers` gives the block of a
        row's vectors, its prompt must name the same block. Raises ConfigError for vectors that have another size, are
        not finite, or are zero."""
        for row, row_vectors in enumerate(vectors or ()):
            if row_vectors is not None:
                check(row_vectors, self.width, f"row {row}")
        before = self._now.rows, self._now.layers
        self._now.rows, self._now.layers = vectors, layers
        try:
            yield
        finally:
            self._now.rows, self._now.layers = before

    def _begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._now.plan, self._now.inside = None, False
        if self._now.rows is not None and any(name.startswith("cu_seq_lens") for name in kwargs):
            raise ConfigError(
                "this pass packs several texts into a row, as continuous batching does, and no row's places can be "
                "told; use `generate` without it"
            )
        self._now.plan = self._plan(args[0] if args else kwargs.get("input_ids"), kwargs.get("past_key_values"))
        self._now.inside = True
        return (args, _positioned(args, kwargs)) if hasattr(module, LEARNT_POSITIONS) else None

    def _end(self, *_: Any) -> None:
        self._now.plan, self._now.inside = None, False

    def _inject(self, module: Any, _args: Any, output: Any) -> Any:
        now = self._now
        if not now.inside:
            raise RuntimeError(
                f"{type(module).__name__} was called outside of its model's pass, where it isn't known whose rows it "
                "has: a recomputation that runs hooks (transformers before 5.23); update transformers, or train "
                "without gradient checkpointing"
            )
        if now.plan is None:
            return output
        hidden = output[0] if isinstance(output, tuple) else output  # (B, T, d)
        rows, columns, vectors = (tensor.to(hidden.device) for tensor in now.plan)
        changed = hidden.index_put((rows, columns), injected(hidden[rows, columns], vectors))  # a copy
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    def _plan(self, ids: Tensor | None, cache: Any) -> _Plan | None:
        rows = self._now.rows
        if _LOOKING.off or (cache is not None and int(cache.get_seq_length()) > 0):
            return None  # in a continued text the places have been passed
        if ids is None:
            if rows is None:
                return None
            raise RuntimeError("a pass on embeddings: without token ids no places are found; call the model with ids")
        row_places = self._row_places(ids)
        if rows is None:
            if any(places is not None for places in row_places):
                raise RuntimeError(
                    "a pass has places for activations, and no rows are known for it: run it under "
                    "`injection.rows(...)`, or give the dataset's rows the column `activation`"
                )
            return None
        if not rows or len(row_places) % len(rows):
            raise RuntimeError(
                f"a pass of {len(row_places)} rows, and vectors for {len(rows)}; run each part under its own"
            )
        return self._matched(rows, row_places, len(row_places) // len(rows), ids.device)

    def _row_places(self, ids: Tensor) -> list[Places | None]:
        any_in = (ids == self._placeholders.token_id).any(dim=1).tolist()
        if not any(any_in):
            return [None] * len(any_in)
        return [self._placeholders.find(row) if has else None for row, has in zip(ids.tolist(), any_in, strict=True)]

    def _matched(self, rows: Rows, row_places: list[Places | None], times: int, device: torch.device) -> _Plan | None:
        row_indices: list[int] = []
        columns: list[int] = []
        vectors = []
        for index, places in enumerate(row_places):
            row = index // times
            row_vectors = rows[row]
            layer = self._now.layers[row] if self._now.layers is not None else None
            _agree(row, row_vectors, layer, places)
            if row_vectors is not None and places is not None:
                row_indices += [index] * len(row_vectors)
                columns += range(places.start, places.stop)
                vectors.append(row_vectors)
        if not vectors:
            return None
        return _Plan(torch.tensor(row_indices, device=device), torch.tensor(columns, device=device), torch.cat(vectors))


def _positioned(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Add positions that start at each row's first token, as in `generate`. TRL's passes have none, so with left
    padding learnt positions would differ from generation."""
    ids, mask = args[0] if args else kwargs.get("input_ids"), kwargs.get("attention_mask")
    if kwargs.get("position_ids") is not None or ids is None or mask is None or mask.ndim != 2:
        return kwargs
    return {**kwargs, "position_ids": (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]}


def _agree(row: int, vectors: Tensor | None, layer: int | None, places: Places | None) -> None:
    """Check that a row's prompt has the placeholders for its vectors. Raises RuntimeError if not."""
    count = 0 if places is None else places.stop - places.start
    if vectors is None and count:
        raise RuntimeError(f"row {row} has {count} places after `Layer: n`, and no vectors")
    if vectors is not None and len(vectors) != count:
        raise RuntimeError(
            f"row {row} has {count} places after `Layer: n`, and {len(vectors)} vectors; make its prompt with "
            "oracle_prompt(layer, len(vectors), question)"
        )
    if layer is not None and places is not None and places.layer != layer:
        raise RuntimeError(f"row {row} says `Layer: {places.layer}`, and its vectors are of layer {layer}")


def check(vectors: Tensor, size: int, where: str) -> None:
    """Raises ConfigError unless the vectors are (K, `size`), with K at least 1, finite, and none of them zero."""
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != size:
        raise ConfigError(
            f"{where}: activations of shape {tuple(vectors.shape)} for hidden states of {size} elements; capture them "
            "from the model that they are shown to, or one of its size"
        )
    norms = vectors.float().norm(dim=1)
    if not bool(torch.isfinite(norms).all()):
        raise ConfigError(f"{where}: an activation is NaN or infinite; capture in bfloat16 or float32 again")
    if not bool((norms > 0).all()):
        raise ConfigError(f"{where}: an activation is zero, and has no direction; capture again")
