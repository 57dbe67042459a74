"""A recipe's run in its process: attached, resumed where it has checkpoints, and ended cleanly by SIGTERM."""

from __future__ import annotations

import signal
import sys
import types
from typing import Any

from transformers import Trainer

from oven_learner.hf.attach import attach
from oven_learner.recipes.base import Order


def end_at_once_on_sigterm() -> None:
    """Until there is something to end cleanly."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


def run(trainer: Trainer, order: Order, **options: Any) -> None:
    """Train to the end; `options` are those of `attach`."""
    attachment = attach(trainer, seconds=order.seconds, **options)
    attachment.resumable = True

    def end(number: int, _: types.FrameType | None) -> None:
        if attachment.client is None:
            sys.exit(0)
        attachment.client.request_stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, end)
    trainer.train(resume_from_checkpoint=order.resume or None)
