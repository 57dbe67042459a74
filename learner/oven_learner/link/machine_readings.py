"""The learner's memory and GPUs, read in the link's process so that the training thread is not involved."""

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
MOST_GPUS: Final = 8
"""GPUs whose readings are published."""


class MachineReadings:
    """The readings of one learner's machine. A value that cannot be read is omitted, and logged once."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._clock = pid, clock
        self._due = -1.0
        self._process: psutil.Process | None = None
        self._gpus: list[tuple[int, Any]] | None = None
        self._nvml: Any = None

    def take_if_due(self) -> dict[str, float]:
        """Return metric → value at most every EVERY_S, else nothing. Never raises."""
        now = self._clock()
        if now < self._due:
            return {}
        self._due = now + EVERY_S
        readings: dict[str, float] = {}
        with contextlib.suppress(psutil.Error, OSError):
            self._process = self._process or psutil.Process(self._pid)
            readings[MEMORY] = self._process.memory_info().rss / GIB
        try:
            readings |= self._gpu_readings()
        except Exception as error:  # a driver update, or a GPU that fell off the bus
            log.warning("GPUs are not read any more: %s", error)
            self._gpus = []
        return readings

    def _gpu_readings(self) -> dict[str, float]:
        if self._gpus is None:
            self._gpus = self._find_gpus()
        readings: dict[str, float] = {}
        for index, handle in self._gpus:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            readings[f"machine/gpu{index}_memory_gib"] = memory.used / GIB
            readings[f"machine/gpu{index}_use"] = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return readings

    def _find_gpus(self) -> list[tuple[int, Any]]:
        """Return (number, handle) of the GPUs that this process may use."""
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
        except ImportError:
            return []  # without the extra `gpu`
        except Exception as error:  # no driver: usually a machine without a GPU
            log.info("no GPU is read: %s", error)
            return []
        count = int(self._nvml.nvmlDeviceGetCount())
        numbers = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), count)
        return [(index, self._nvml.nvmlDeviceGetHandleByIndex(index)) for index in numbers[:MOST_GPUS]]


def visible_gpus(visible: str | None, count: int) -> list[int]:
    """Return the numbers of the GPUs in CUDA_VISIBLE_DEVICES; all `count` if it is unset or does not hold numbers."""
    if visible is None:
        return list(range(count))
    entries = [part.strip() for part in visible.split(",") if part.strip()]
    if not all(part.lstrip("-").isdigit() for part in entries):
        return list(range(count))
    return [int(part) for part in entries if 0 <= int(part) < count]
