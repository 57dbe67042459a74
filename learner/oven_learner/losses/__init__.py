"""Extra loss terms, called channels. The weight of each one can change during the run.

    trainer = ChannelTrainer(..., channels=[Distillation(0.5), Supervised(column="answer")])     # TRL's GRPOTrainer
    trainer = TextTrainer(..., channels=[MultiToken(0.1), TokenWeighted({262: 1.0})])            # transformers' Trainer
    oven.attach(trainer)                   # registers a knob channel.<name> for each channel

The loss is exactly the trainer's own loss plus Σ weight × term over the active channels. A term is a mean over its
tokens, whatever the trainer's loss type, like TRL's entropy bonus. A channel with weight 0 computes nothing, uses no
random numbers and publishes nothing.

The classes are imported on first use, so a process with a plain Trainer does not import TRL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oven_learner.losses.channel_trainer import ChannelTrainer as ChannelTrainer
    from oven_learner.losses.distillation import Distillation as Distillation
    from oven_learner.losses.loss_channel import Channel as Channel
    from oven_learner.losses.self_distillation import Hints as Hints
    from oven_learner.losses.self_distillation import SelfDistillation as SelfDistillation
    from oven_learner.losses.sft import Supervised as Supervised
    from oven_learner.losses.text_channels import MultiToken as MultiToken
    from oven_learner.losses.text_channels import TokenWeighted as TokenWeighted
    from oven_learner.losses.text_trainer import TextChannels as TextChannels
    from oven_learner.losses.text_trainer import TextTrainer as TextTrainer

_MODULES = {
    "Channel": "loss_channel",
    "ChannelTrainer": "channel_trainer",
    "Distillation": "distillation",
    "Hints": "self_distillation",
    "MultiToken": "text_channels",
    "SelfDistillation": "self_distillation",
    "Supervised": "sft",
    "TextChannels": "text_trainer",
    "TextTrainer": "text_trainer",
    "TokenWeighted": "text_channels",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
