"""For all tests: none asserts a time, hypothesis's own deadline included; and torch shares the cores with servers."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing.util
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from tests.support.forked import WORKER, ForkServer, own_server, training_server

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Fork xdist's workers, which it starts next, from one process that has imported what takes each of them long."""
    until_the_end = contextlib.ExitStack()
    config.add_cleanup(until_the_end.close)
    server = until_the_end.enter_context(training_server())
    until_the_end.callback(setattr, subprocess, "Popen", subprocess.Popen)
    subprocess.Popen = server.popen()  # type: ignore[misc]
    # In a clean clone, each would compile all modules of the tests at the same time as the others.
    if not any(config.rootpath.glob("tests/unit/*/__pycache__/*-pytest-*.pyc")):
        collect = "import pytest; pytest.main(['-q', '--collect-only'])"
        subprocess.run([sys.executable, *WORKER, collect], cwd=config.rootpath, stdout=subprocess.DEVNULL, check=False)


def pytest_configure() -> None:
    """In a worker, fork what multiprocessing spawns, from a copy of what the worker was forked from. What else tests
    start they fork themselves."""
    if (server := own_server()) is not None:
        multiprocessing.util.spawnv_passfds = server.spawn


def _ask_once() -> None:
    """Have the libraries ask once for what they ask anew at each trainer, and what stays as it is in a process."""
    if "accelerate" in sys.modules:  # it parses the metadata of packages, tens of times a trainer
        imports: Any = sys.modules["accelerate.utils.imports"]
        imports._is_package_available = functools.cache(imports._is_package_available)  # noqa: SLF001
        memory: Any = sys.modules["accelerate.utils.memory"]
        memory.gc = types.SimpleNamespace(collect=lambda: gc.collect(0))  # a full one at the start of every training
    torch: Any = sys.modules.get("torch")
    if torch is not None and not torch.cuda.is_available():  # it keeps each seed for later, and its caller's stack
        for device in (torch.cuda, torch.xpu, torch.mtia):
            device._lazy_call = lambda _call, **_: None  # noqa: SLF001


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """What forks Python processes that have imported torch and TRL already."""
    with training_server() as server:
        yield server
