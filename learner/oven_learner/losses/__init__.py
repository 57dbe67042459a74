"""Loss terms beside a trainer's own, each with a weight that may be changed while the run continues.

    trainer = ChannelTrainer(..., channels=[Distillation(0.5), Supervised(column="answer")])     # TRL's GRPOTrainer
    trainer = TextTrainer(..., channels=[MultiToken(0.1), TokenWeighted({262: 1.0})])            # transformers' Trainer
    oven.attach(trainer)                   # announces channel.<name> of each

The loss is the trainer's, to the bit, plus Σ weight × term over the channels that are on. A term is a mean over the
tokens, or the pairs, that it acts on, whatever the loss type divides by: the convention of TRL's own entropy bonus. At
weight 0 a channel computes nothing, touches no generator and publishes nothing.

The names load when they are first used: a Trainer's process need not import TRL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oven_learner.losses.channel import Channel as Channel
    from oven_learner.losses.channel_trainer import ChannelTrainer as ChannelTrainer
    from oven_learner.losses.distillation import Distillation as Distillation
    from oven_learner.losses.hints import Hints as Hints
    from oven_learner.losses.multi_token import MultiToken as MultiToken
    from oven_learner.losses.replay_preference import ReplayImitation as ReplayImitation
    from oven_learner.losses.replay_preference import ReplayPreference as ReplayPreference
    from oven_learner.losses.self_distillation import SelfDistillation as SelfDistillation
    from oven_learner.losses.sft import Supervised as Supervised
    from oven_learner.losses.text_trainer import TextChannels as TextChannels
    from oven_learner.losses.text_trainer import TextTrainer as TextTrainer
    from oven_learner.losses.token_weighted import TokenWeighted as TokenWeighted

_HOMES = {
    "Channel": "channel",
    "ChannelTrainer": "channel_trainer",
    "Distillation": "distillation",
    "Hints": "hints",
    "MultiToken": "multi_token",
    "ReplayImitation": "replay_preference",
    "ReplayPreference": "replay_preference",
    "SelfDistillation": "self_distillation",
    "Supervised": "sft",
    "TextChannels": "text_trainer",
    "TextTrainer": "text_trainer",
    "TokenWeighted": "token_weighted",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
