"""Comparing states of the random generators."""

from __future__ import annotations

from typing import Any


def same_state(first: Any, second: Any) -> bool:
    """Whether two states, of one generator or of all, are equal bit for bit."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_state(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_state, first, second))
    return bool((first == second).all()) if hasattr(first, "shape") else bool(first == second)
