"""What trainers log of their channels: means over the tokens, or the pairs, of all ranks."""

from __future__ import annotations

from typing import Any, Literal

import torch

from oven_learner.losses.channel import Channel, Tally


def record(trainer: Any, channel: Channel, tally: Tally, mode: Literal["train", "eval"]) -> None:
    """Adds the term, its weight and its gauges to the trainer's metrics of this step: TRL's convention (`_metrics`), by
    which an attached trainer publishes. One collective for all, of one size on every rank; what was not measured on any
    of them is not logged."""
    nothing = torch.zeros_like(tally.number)
    gauges = [tally.gauges.get(gauge.name, (nothing, nothing)) for gauge in channel.gauges]
    pairs = [(tally.total.detach(), tally.number), *gauges]
    here = torch.stack([part.to(tally.total.dtype) for pair in pairs for part in pair]).detach()
    found = trainer.accelerator.reduce(here, reduction="sum").tolist()
    names = ["", *(f"/{gauge.name}" for gauge in channel.gauges)]
    into = trainer._metrics[mode]
    for name, total, count in zip(names, found[::2], found[1::2], strict=True):
        if count:
            into[f"channel/{channel.name}{name}"].append(total / count)
    if found[1]:
        into[f"channel/{channel.name}/weight"].append(channel.weight)
