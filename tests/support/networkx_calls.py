"""A pytest plugin for networkx's own tests: prints how many calls each function of the backend `oven_csr` answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from oven_kg.large import networkx_backend

ANSWERED: Counter[str] = Counter()


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = function(*args, **kwargs)
        ANSWERED[name] += 1  # what raises for want of the means is networkx's to answer
        return given

    return call


def pytest_configure() -> None:
    for name in networkx_backend.__all__:
        setattr(networkx_backend, name, counted(name, getattr(networkx_backend, name)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line("answered: " + json.dumps(ANSWERED))
