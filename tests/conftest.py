"""For all tests: none asserts a time, hypothesis's own deadline included; and torch shares the cores with servers."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from tests.support.forked import TRAINING, ForkServer, fork_server

# Before torch is imported: threads that spin while they wait cost a test with other processes several times over, and
# sums are added up in the same order by one.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# No test is to reach for the network, nor to wait for it; read when the libraries are imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
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
        _ask_once()
        gc.collect()
        gc.freeze()
        gc.enable()


def _ask_once() -> None:
    """Have the libraries ask once for what they ask anew at each trainer, and what stays as it is in a process."""
    if "accelerate" in sys.modules:  # it parses the metadata of packages, tens of times a trainer
        imports: Any = sys.modules["accelerate.utils.imports"]
        imports._is_package_available = functools.cache(imports._is_package_available)  # noqa: SLF001
    torch: Any = sys.modules.get("torch")
    if torch is not None and not torch.cuda.is_available():  # it keeps each seed for later, and its caller's stack
        for device in (torch.cuda, torch.xpu, torch.mtia):
            device._lazy_call = lambda _call, **_: None  # noqa: SLF001


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """What forks Python processes that have imported torch and TRL already."""
    with fork_server(TRAINING) as server:
        yield server
