"""For all tests: none asserts a time, hypothesis's own deadline included; and torch shares the cores with servers."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Before torch is imported: threads that spin while they wait cost a test with other processes several times over, and
# sums are added up in the same order by one.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Otherwise each of the hundreds of processes that tests start would compile our modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("oven", deadline=None)
settings.load_profile("oven")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Take what is imported out of the garbage collector's sight: accelerate makes a full collection at the start of
    every training, which took most of the time of the learner's tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
