"""Readings of the learner's memory and GPUs, which the link's worker process adds to observations."""

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

READING_INTERVAL_S: Final = 1.0
"""Seconds between two readings of the machine. Observations in between contain no readings."""
GIB: Final = 2.0**30
MEMORY: Final = "machine/memory_gib"
"""Resident memory of the learner's process, in GiB."""
MAX_GPUS: Final = 8
"""Maximum number of GPUs whose readings are published."""


class MachineReadings:
    """Reads the learner's memory and GPUs from another process, without delaying training. Omits unreadable values."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._clock = pid, clock
        self._next_reading_at = -1.0
        self._process: psutil.Process | None = None
        self._gpus: list[tuple[int, Any]] | None = None
        self._nvml: Any = None

    def take_if_due(self) -> dict[str, float]:
        """Return metric → value, or an empty mapping if READING_INTERVAL_S has not passed yet. Never raises."""
        now = self._clock()
        if now < self._next_reading_at:
            return {}
        self._next_reading_at = now + READING_INTERVAL_S
        readings: dict[str, float] = {}
        with contextlib.suppress(psutil.Error, OSError):
            self._process = self._process or psutil.Process(self._pid)
            readings[MEMORY] = self._process.memory_info().rss / GIB
        try:
            readings |= self._gpu_readings()
        except Exception as error:  # a driver update, or a GPU that fell off the bus
            log.warning("stopped reading GPUs: %s", error)
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
            return []  # the extra `gpu` is not installed
        except Exception as error:  # no driver, usually because the machine has no GPU
            log.info("cannot read any GPU: %s", error)
            return []
        count = int(self._nvml.nvmlDeviceGetCount())
        numbers = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), count)
        return [(index, self._nvml.nvmlDeviceGetHandleByIndex(index)) for index in numbers[:MAX_GPUS]]


def visible_gpus(variable: str | None, count: int) -> list[int]:
    """Return the GPU numbers in CUDA_VISIBLE_DEVICES, or all if it is unset or does not contain numbers."""
    entries = [entry.strip() for entry in (variable or "").split(",") if entry.strip()]
    if variable is None or not all(entry.lstrip("-").isdigit() for entry in entries):
        return list(range(count))
    return [number for number in map(int, entries) if 0 <= number < count]
