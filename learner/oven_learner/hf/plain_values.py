"""Copies of values that training may write into, and of what an object keeps in plain values."""

from __future__ import annotations

from collections import UserDict, deque
from collections.abc import Collection
from copy import copy
from typing import Any

SCALARS = (bool, int, float, str, bytes, type(None))
CONTAINERS = (dict, list, tuple, set, deque)


def copied(tree: Any) -> Any:
    """Tensors, arrays and containers anew, at any depth; anything else is the same object."""
    if is_tensor(tree):
        return tree.detach().clone()
    if isinstance(tree, UserDict):  # a tokenizer's batch
        batch: Any = copy(tree)
        batch.data = copied(tree.data)
        return batch
    if isinstance(tree, dict):
        other = copy(tree)  # keeps a default, and a class of its own
        for key, value in tree.items():
            other[key] = copied(value)
        return other
    if isinstance(tree, deque):
        return deque((copied(value) for value in tree), tree.maxlen)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(copied(value) for value in tree))
    if isinstance(tree, list | tuple | set):
        return type(tree)(copied(value) for value in tree)
    return tree.copy() if is_array(tree) else tree


def put(now: Any, then: Any) -> Any:
    """What takes the place of `now` to be as `then`: itself where it can be written into, since others may refer to it,
    and else a copy."""
    if is_tensor(now) and is_tensor(then):
        return now if _written(now, then) else copied(then)
    if type(now) is not type(then):
        return copied(then)
    if isinstance(now, dict):
        held = dict(now)
        now.clear()
        now.update({key: put(held.get(key), value) for key, value in then.items()})
        return now
    if isinstance(now, list):
        now[:] = copied(then)
        return now
    if isinstance(now, deque | set):
        now.clear()
        (now.extend if isinstance(now, deque) else now.update)(copied(then))
        return now
    return copied(then)


class PlainValues:
    """The attributes of an object that are numbers, strings, tensors, arrays, or containers: where trainers and
    callbacks keep what they count, buffer and average."""

    def __init__(self, owner: Any, *, leave: Collection[str] = (), containers: bool = True) -> None:
        """`leave`: attributes that are not touched. Without `containers`, neither are those that are one."""
        self._owner, self._leave, self._containers = owner, frozenset(leave), containers

    def take(self) -> dict[str, Any]:
        return {name: copied(value) for name, value in vars(self._owner).items() if self._is_plain(name, value)}

    def restore(self, state: dict[str, Any]) -> None:
        """Attributes that were added since are removed."""
        own = vars(self._owner)
        for name in [name for name, value in own.items() if name not in state and self._is_plain(name, value)]:
            del own[name]
        for name, value in state.items():
            own[name] = put(own.get(name), value)

    def _is_plain(self, name: str, value: Any) -> bool:
        if name in self._leave:
            return False
        held = (*SCALARS, *CONTAINERS) if self._containers else SCALARS
        return isinstance(value, held) or is_array(value) or (is_tensor(value) and not value.requires_grad)


def _written(now: Any, then: Any) -> bool:
    """Not where one element stands for several, or in what torch's inference mode made."""
    if now.shape != then.shape or now.dtype != then.dtype or now.device != then.device:
        return False
    if now.is_inference() or not now.is_contiguous():
        return False
    now.detach().copy_(then)
    return True


def is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "clone") and hasattr(value, "dtype")


def is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "dtype")
