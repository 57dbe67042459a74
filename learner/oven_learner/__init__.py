"""Connects training to the controller: `import oven_learner as oven`, then `oven.attach(trainer)` or `oven.connect()`.

Names are loaded on first use, so importing the package does not import torch or transformers.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from oven_learner.import_hook import collector_paused
from oven_learner.integrations.launched import register_names

if TYPE_CHECKING:
    from oven_learner.actuators import Actuators as Actuators
    from oven_learner.baking.bake import bake as bake
    from oven_learner.baking.training_handle import Oven as Oven
    from oven_learner.client.oven_client import OvenClient as OvenClient
    from oven_learner.custom_loop import connect as connect
    from oven_learner.hf.attach import attach as attach
    from oven_learner.hf.callback import Attachment as Attachment
    from oven_learner.hf.knobs.mixture import Mixture as Mixture
    from oven_learner.hf.prompts import PromptSource as PromptSource
    from oven_learner.rewards import Committee as Committee
    from oven_learner.rewards import ModelDescription as ModelDescription
    from oven_learner.rewards import convene as convene
    from oven_learner.teachers.teacher_config import TeacherConfig as TeacherConfig

_MODULES = {
    "Actuators": "actuators",
    "Attachment": "hf.callback",
    "Committee": "rewards",
    "Mixture": "hf.knobs.mixture",
    "ModelDescription": "rewards",
    "Oven": "baking.training_handle",
    "OvenClient": "client.oven_client",
    "PromptSource": "hf.prompts",
    "TeacherConfig": "teachers.teacher_config",
    "attach": "hf.attach",
    "bake": "baking.bake",
    "connect": "custom_loop",
    "convene": "rewards",
}
__all__ = [*_MODULES]


# peft always imports bitsandbytes, whose module `backends.cpu.ops` warns about missing 4-bit kernels on a CPU.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


# Users write report_to="oven" and log_with="oven" without any other call.
with collector_paused():  # it imports messages if transformers is imported already
    register_names()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with collector_paused():
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
