"""Bits per byte on held-out files, without a trace in the run that it measures."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

METRIC = "eval/bits_per_byte"
BATCH = 64


def served_metric(choice: str) -> str:
    """Of the weights rounded as they will be served, e.g. eval/int4/bits_per_byte."""
    return METRIC.replace("/", f"/{choice}/", 1)


def held_out_rows(streams: Mapping[str, Tensor], length: int, most: int) -> dict[str, Tensor]:
    """Windows by sub-corpus, int64 [rows, length], spread evenly over it; together about `most`, and each with one at
    the least. Neighbours share a token: what ends one begins the next, so that every token but the first is predicted.

    The same for every run on the same text. A stream shorter than a window is left out.
    """
    windows = {name: of.unfold(0, length, length - 1) for name, of in streams.items() if len(of) >= length}
    total = sum(len(of) for of in windows.values())
    found = {}
    for name, of in windows.items():
        count = min(len(of), max(1, round(most * len(of) / total)))
        found[name] = of[torch.arange(count) * len(of) // count].long()
    return found


@torch.no_grad()
def bits_per_byte(
    model: PreTrainedModel, rows: Mapping[str, Tensor], byte_lengths: Tensor
) -> dict[str, float | list[float]]:
    """`eval/bits_per_byte` as what each row adds to it, a list whose mean is that of all rows; and of each sub-corpus
    where there are several.

    The surprise at a row's tokens but the first, in bits, over the bytes that these tokens stand for (`byte_lengths`,
    int64 [vocabulary]). Marks between files are predicted, and are not bytes. No generator is used; the model's mode is
    put back.
    """
    nats: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    was_training = model.training
    model.train(False)
    try:
        for name, of in rows.items():
            nats[name] = [one for batch in torch.split(of, BATCH) for one in _surprise(model, batch.to(model.device))]
            sizes[name] = int(byte_lengths[of[:, 1:]].sum())
    finally:
        model.train(was_training)
    each = [one for of in nats.values() for one in of]
    unit = math.log(2) * sum(sizes.values()) / len(each)
    found: dict[str, float | list[float]] = {METRIC: [one / unit for one in each]}
    if len(rows) > 1:
        found |= {f"{METRIC}/{name}": math.fsum(nats[name]) / (math.log(2) * sizes[name]) for name in rows}
    return found


def _surprise(model: PreTrainedModel, batch: Tensor) -> list[float]:
    """Nats of each row of a batch [rows, length], summed over it."""
    logits = model(input_ids=batch).logits[:, :-1]  # [rows, length - 1, vocabulary]
    surprise: Tensor = cross_entropy(logits.transpose(1, 2).float(), batch[:, 1:], reduction="none")
    return [float(one) for one in surprise.sum(1)]
