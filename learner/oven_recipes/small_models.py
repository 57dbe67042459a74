"""Functions that build and train the recipes' small models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Row = TypeVar("Row")
IGNORED_LABEL = -100  # cross_entropy's default ignore_index


class Sizes(Protocol):
    """The sizes of a Llama: the widths of its hidden states and feed-forward layers, and its number of blocks and
    attention heads."""

    @property
    def hidden(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...


def small_llama(
    sizes: Sizes, tokenizer: PreTrainedTokenizerFast, positions: int, *, tied: bool = True
) -> LlamaForCausalLM:
    """Return a freshly initialised Llama in float32. Torch's global generator determines its weights. With `tied`, the
    output shares the embedding's weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=sizes.hidden,
        intermediate_size=sizes.ffn,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def target_batch(
    prompts: Sequence[list[int]], targets: Sequence[list[int]], pad: int, side: Literal["left", "right"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, attention mask and labels, each (batch, tokens), padded on `side`. Only targets have labels."""
    pairs = list(zip(prompts, targets, strict=True))
    ids = [torch.tensor(prompt + target) for prompt, target in pairs]
    labels = [torch.tensor([IGNORED_LABEL] * len(prompt) + target) for prompt, target in pairs]
    return (
        pad_sequence(ids, batch_first=True, padding_value=pad, padding_side=side),
        pad_sequence([torch.ones_like(row) for row in ids], batch_first=True, padding_value=0, padding_side=side),
        pad_sequence(labels, batch_first=True, padding_value=IGNORED_LABEL, padding_side=side),
    )


def similar_length_batches(
    draw: Callable[[], Sequence[Row]], size: int, length: Callable[[Row], int], rng: random.Random
) -> Iterator[Sequence[Row]]:
    """Yield batches of rows of similar length forever, because with mixed lengths half of a batch would be padding.
    `draw` returns the rows for several batches."""
    while True:
        rows = sorted(draw(), key=length)
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        rng.shuffle(batches)
        yield from batches


def warmup_decay_schedule(optimizer: torch.optim.Optimizer, steps: int, ramp: int = 20) -> LambdaLR:
    """Return a schedule that raises the learning rate for `ramp` steps, and lowers it to 5 % by the end of `steps`."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / ramp) * (1 - 0.95 * step / max(1, steps)))


def optimizer_step(loss: Tensor, parameters: Iterable[Tensor], *steppables: Any) -> None:
    """Compute the gradients of `parameters`, clip their norm to 1, and step the optimizers and learning rate schedules
    in `steppables`."""
    parameters = list(parameters)
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for steppable in steppables:
        steppable.step()
