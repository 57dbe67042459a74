"""What is plugged in by entry points: agents, recipes, processes, benches and more. Names are listed unimported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from oven_controller.errors import ConfigError, UnknownNameError

RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "agents": {
        "auxiliary": "auxiliary_loss",
        "calibration": "entropy_collapse",
        "committee": "reward_weights",
        "data": "repeated_data",
        "decay": "weight_decay",
        "gradients": "grad_clip",
        "hacking": "reward_hacking",
        "late": "lr_cooldown",
        "lr": "learning_rate",
        "relapse": "best_checkpoint",
        "sentinel": "divergence",
        "undo": "rollback_undo",
    }
}
"""By group: a name that an entry point had → its name now. For the error that names the nearest one, and nothing else:
an old name is not accepted."""


def points(group: str) -> dict[str, EntryPoint]:
    """Entry points of `oven.<group>` by name, in the order of their names."""
    return {point.name: point for point in sorted(entry_points(group=f"oven.{group}"), key=lambda p: p.name)}


def load(group: str, kind: str, name: str) -> Any:
    """The object called `name`. Raises UnknownNameError with the nearest names, ConfigError when importing it fails."""
    found = points(group)
    if name not in found:
        raise UnknownNameError(kind, name, found, RENAMED.get(group))
    point = found[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the {kind} {name!r} ({point.value}) cannot be imported: {error}; "
            'is its extra installed? `pip install "oven-controller[all]"` has everything'
        ) from error
