"""A hook between gradients and update, wherever a loop computes them: before `optimizer.step`, or in its closure.

Lightning, for one, runs forward and backward within the closure that it gives `step`: what is looked at before that is
the last step's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Look = Callable[[bool], object]
"""Called once the gradients are there; with False where the same step has computed them before (LBFGS)."""


def before_update(optimizer: Any, look: Look) -> Any:
    """From now on, until the handle that comes back is removed."""

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """`args` begin with the optimizer."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            look(True)
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": _followed(closure, look)}
        return (args[0], _followed(closure, look), *args[2:]), kwargs

    return optimizer.register_step_pre_hook(hook)


def _followed(closure: Callable[[], Any], look: Look) -> Callable[[], Any]:
    first = True

    def followed() -> Any:
        nonlocal first
        result = closure()
        look(first)
        first = False
        return result

    return followed
