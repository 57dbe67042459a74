"""Log the metrics of channels: means over the tokens or pairs of all ranks."""

from __future__ import annotations

from typing import Any, Literal

import torch

from oven_learner.losses.channel import Channel, Tally


def record(trainer: Any, channel: Channel, tally: Tally, mode: Literal["train", "eval"]) -> None:
    """Add the term, its weight and its gauges to the trainer's metrics of this step.

    Uses TRL's `_metrics`, from which an attached trainer publishes. There is one collective of the same size on every
    rank. Values that no rank measured are not logged.
    """
    nothing = torch.zeros_like(tally.number)
    gauges = [tally.gauges.get(gauge.name, (nothing, nothing)) for gauge in channel.gauges]
    pairs = [(tally.total.detach(), tally.number), *gauges]
    here = torch.stack([part.to(tally.total.dtype) for pair in pairs for part in pair]).detach()
    sums = trainer.accelerator.reduce(here, reduction="sum").tolist()
    names = ["", *(f"/{gauge.name}" for gauge in channel.gauges)]
    into = trainer._metrics[mode]
    for name, total, count in zip(names, sums[::2], sums[1::2], strict=True):
        if count:
            into[f"channel/{channel.name}{name}"].append(total / count)
    if sums[1]:
        into[f"channel/{channel.name}/weight"].append(channel.weight)
