"""Functions of networkx's own that only arrange what others answer: they call those by networkx's dispatch, which for a
graph of this backend's comes back to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Final

OTHER_METHODS: Final = ("bellman-ford", "floyd-warshall", "floyd-warshall-numpy")
"""Those of networkx's for shortest paths that this backend lacks."""


def networkx_own(function: Any) -> Callable[..., Any]:
    """`function` as networkx wrote it. What this backend lacks is refused before it begins, so that networkx may take
    the call itself: a weight that does not name an attribute, and other methods than Dijkstra's, raise
    NotImplementedError.
    """
    original = function.orig_func
    parameters = signature(original)

    @wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        refuse(bound.arguments.get("weight"), bound.arguments.get("method"))
        return original(*args, **kwargs)

    return run


def refuse(weight: object, method: object = None) -> None:
    """Raises NotImplementedError for what the backend lacks."""
    if callable(weight):
        raise NotImplementedError(
            "oven_csr takes the name of an attribute as a weight; with a function, networkx's own runs on the same "
            "graph without backend="
        )
    if method in OTHER_METHODS and not (weight is None and method == "bellman-ford"):
        raise NotImplementedError(
            f"oven_csr has Dijkstra's method and not {method}; networkx's own runs without backend="
        )
