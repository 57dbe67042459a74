"""A hook between gradients and update, whether the loop computes gradients before `optimizer.step` or in its closure.

Lightning, for example, runs forward and backward within the closure that it passes to `step`. Before that the gradients
are still those of the last step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Callback = Callable[[bool], object]
"""Called when the gradients are there; with False if the same step has computed gradients before (LBFGS)."""


def before_update(optimizer: Any, callback: Callback) -> Any:
    """Call `callback` before each update. Return the handle that removes the hook."""

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """The first of `args` is the optimizer."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            callback(True)
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": _with_callback(closure, callback)}
        return (args[0], _with_callback(closure, callback), *args[2:]), kwargs

    return optimizer.register_step_pre_hook(hook)


def _with_callback(closure: Callable[[], Any], callback: Callback) -> Callable[[], Any]:
    first = True

    def wrapped() -> Any:
        nonlocal first
        result = closure()
        callback(first)
        first = False
        return result

    return wrapped
