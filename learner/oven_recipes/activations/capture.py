"""Captures a model's activations, which are the outputs of its blocks for the last tokens of each text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_learner.losses.completion_logits import pad_rows
from oven_recipes.activations.injection import unchecked_passes
from oven_recipes.activations.model_blocks import block_at, model_body, unwrap_model

MAX_TOKENS = 20
"""Maximum number of tokens per text whose activations are captured."""
TEXTS_PER_PASS = 32
"""Default number of texts per forward pass."""


class Activation(NamedTuple):
    """The output of block `layer` for the last tokens of `text`. `vectors` has the shape (tokens, hidden size)."""

    text: str
    layer: int
    vectors: Tensor


def capture(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    layers: Sequence[int],
    tokens: int | Sequence[int] = MAX_TOKENS,
    report: Callable[[int], object] = lambda done: None,
    *,
    rows: int = TEXTS_PER_PASS,
) -> list[Activation]:
    """Return an Activation on the CPU for each text and layer, ordered by text. It covers the last `tokens` tokens of
    the text (one number, or one for each text), but never the text's first token. `report` is called with the number of
    finished texts. `rows` is the number of texts per forward pass.

    The first token is an attention sink, so its activation contains nothing about the text (Xiao et al. 2023, arXiv
    2309.17453). The output of block k is `hidden_states[k + 1]` of transformers, except for the last block, where
    transformers returns the output of its final norm. The model runs in evaluation mode with its adapters disabled.

    Raises ConfigError for layers outside the model, for a number of tokens outside 1 to 20, for a text of fewer than
    two tokens, and for activations that are not finite.
    """
    counts = [tokens] * len(texts) if isinstance(tokens, int) else list(tokens)
    if len(counts) != len(texts) or not all(1 <= count <= MAX_TOKENS for count in counts):
        raise ConfigError(f"tokens={tokens} is invalid; expected 1 to {MAX_TOKENS}, as one number or one for each text")
    blocks = {layer: block_at(model, layer) for layer in layers}
    ids = [tokenizer(text)["input_ids"] for text in texts]
    for number, text_ids in enumerate(ids):
        if len(text_ids) < 2:
            raise ConfigError(
                f"text {number} has {len(text_ids)} token, but the first token is skipped; omit the text, or use a "
                "longer one"
            )
    captured: list[list[Activation]] = [[] for _ in texts]
    by_length = sorted(range(len(texts)), key=lambda number: len(ids[number]))  # similar lengths need little padding
    with _evaluation_mode(model), unchecked_passes(), torch.no_grad():
        for start in range(0, len(by_length), rows):
            report(start)
            numbers = by_length[start : start + rows]
            outputs = _block_outputs(model, [ids[number] for number in numbers], blocks)
            for row, number in enumerate(numbers):
                length = len(ids[number])
                first = max(1, length - counts[number])
                for layer in layers:
                    vectors = outputs[layer][row, first:length].cpu().clone()
                    if not bool(torch.isfinite(vectors).all()):
                        raise ConfigError(
                            f"text {number}, layer {layer}: an activation is NaN or infinite; load the model in "
                            "bfloat16 or float32"
                        )
                    captured[number].append(Activation(texts[number], layer, vectors))
    return [activation for text_activations in captured for activation in text_activations]


def _block_outputs(model: Any, ids: Sequence[Sequence[int]], blocks: dict[int, torch.nn.Module]) -> dict[int, Tensor]:
    """Return the outputs of the blocks, each with shape (batch, tokens, hidden size). Rows are padded on the right, so
    the first token of each text has position 0."""
    batch, mask = pad_rows(ids, unwrap_model(model).device)
    outputs: dict[int, Tensor] = {}

    def make_hook(layer: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            outputs[layer] = output[0] if isinstance(output, tuple) else output

        return hook

    hooks = [block.register_forward_hook(make_hook(layer)) for layer, block in blocks.items()]
    try:
        model_body(model)(input_ids=batch, attention_mask=mask, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


@contextlib.contextmanager
def _evaluation_mode(model: Any) -> Iterator[None]:
    """Run the model in evaluation mode without adapters during the block."""
    adapters_off = model.disable_adapter() if hasattr(model, "disable_adapter") else contextlib.nullcontext()
    was_training = model.training
    model.eval()
    try:
        with adapters_off:
            yield
    finally:
        model.train(was_training)
