"""The learner's memory and its GPUs, read in the link's process: the training thread has no part in it."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final

import psutil

log = logging.getLogger("oven.learner")

EVERY_S: Final = 1.0
"""Seconds between two readings; observations between them carry none."""
GIB: Final = 2.0**30
MEMORY: Final = "machine/memory_gib"
"""Resident memory of the learner's process, in GiB."""
GPUS: Final = 8
"""GPUs of which readings are published at most."""


class MachineReadings:
    """Of one learner. What cannot be read is left out, and said once in the process's log."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._clock = pid, clock
        self._due = -1.0
        self._process: psutil.Process | None = None
        self._gpus: list[tuple[int, Any]] | None = None
        self._nvml: Any = None

    def take_if_due(self) -> dict[str, float]:
        """Metric → value, at most every EVERY_S; else nothing. Never raises."""
        now = self._clock()
        if now < self._due:
            return {}
        self._due = now + EVERY_S
        found: dict[str, float] = {}
        with contextlib.suppress(psutil.Error, OSError):
            self._process = self._process or psutil.Process(self._pid)
            found[MEMORY] = self._process.memory_info().rss / GIB
        try:
            found |= self._of_gpus()
        except Exception as error:  # a driver that is updated, a card that fell off the bus
            log.warning("GPUs are not read any more: %s", error)
            self._gpus = []
        return found

    def _of_gpus(self) -> dict[str, float]:
        if self._gpus is None:
            self._gpus = self._found_gpus()
        found: dict[str, float] = {}
        for index, handle in self._gpus:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            found[f"machine/gpu{index}_memory_gib"] = memory.used / GIB
            found[f"machine/gpu{index}_use"] = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return found

    def _found_gpus(self) -> list[tuple[int, Any]]:
        """Those that CUDA_VISIBLE_DEVICES leaves to this process, by their numbers; all where it names none."""
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ImportError:
            return []  # without the extra `gpu`
        except Exception as error:  # no driver, mostly: a machine without a GPU
            log.info("no GPU is read: %s", error)
            return []
        count = int(self._nvml.nvmlDeviceGetCount())
        wanted = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), count)
        return [(index, self._nvml.nvmlDeviceGetHandleByIndex(index)) for index in wanted[:GPUS]]


def visible_gpus(visible: str | None, count: int) -> list[int]:
    """The numbers of those that CUDA_VISIBLE_DEVICES leaves of `count`; all where it is not set, or names them
    otherwise than by number."""
    if visible is None:
        return list(range(count))
    named = [part.strip() for part in visible.split(",") if part.strip()]
    if not all(part.lstrip("-").isdigit() for part in named):
        return list(range(count))
    return [int(part) for part in named if 0 <= int(part) < count]
