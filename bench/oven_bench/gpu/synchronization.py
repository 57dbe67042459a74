"""Counts the calls that make the CPU wait for the card, and where they are."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

SYNCHRONIZING = "called a synchronizing CUDA operation"
"""Text of torch's warning."""
SYNCHRONIZE = "torch.cuda.synchronize"


def synchronizations(act: Callable[[], object]) -> Counter[str]:
    """Call a function, and return FILE:LINE → number of synchronizing operations. torch reports copies to the CPU that
    wait and reads of single values, but not those in its backward threads. Explicit waits count as SYNCHRONIZE."""
    import torch

    explicit: Counter[str] = Counter()
    wait = torch.cuda.synchronize
    wait()

    def counted(device: Any = None) -> None:
        explicit[SYNCHRONIZE] += 1
        wait(device)

    torch.cuda.synchronize = counted
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            act()
        finally:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize = wait
    lines = [warning for warning in caught if SYNCHRONIZING in str(warning.message)]
    return Counter(f"{Path(line.filename).name}:{line.lineno}" for line in lines) + explicit
