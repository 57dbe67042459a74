"""The reward committee: rules and remote judges that score each group. Groups without scores are skipped in training.
Names are loaded on first use. Importing this package imports neither torch nor nats-py. `attach` imports
`unscored_groups`, which changes a TRL trainer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oven_learner.rewards.committee import Committee as Committee
    from oven_learner.rewards.configured_committee import convene as convene
    from oven_learner.rewards.model_description import ModelDescription as ModelDescription

_MODULES = {"Committee": "committee", "ModelDescription": "model_description", "convene": "configured_committee"}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
