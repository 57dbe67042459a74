"""Names of the trainings that one script runs one after another in the same run: SFT and then GRPO, say."""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

_of_run: Counter[str] = Counter()
_of_link: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def count(run: str, link: Any = None) -> str:
    """The name of the run's next training in this process: "1", "2", … A script that is started again counts alike.
    A `link` of the caller's own stands for its own run."""
    if link is not None:
        _of_link[link] = _of_link.get(link, 0) + 1
        return str(_of_link[link])
    _of_run[run] += 1
    return str(_of_run[run])
