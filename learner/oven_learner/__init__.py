"""The learner's side: `import oven_learner as oven`, then `oven.attach(trainer)` or `oven.connect(...)`.

The names load when they are first used: importing the package alone pulls in neither torch nor transformers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oven_learner.actuators import Actuators
    from oven_learner.attach import Attachment, attach
    from oven_learner.client import OvenClient
    from oven_learner.loop import connect

__all__ = ["Actuators", "Attachment", "OvenClient", "attach", "connect"]

_HOMES = {
    "Actuators": "actuators",
    "Attachment": "attach",
    "OvenClient": "client",
    "attach": "attach",
    "connect": "loop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _Package(ModuleType):
    """`attach` is a function and the name of its module: whoever imports the module must not take the function away."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "attach" and isinstance(value, ModuleType):
            value = value.attach
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
