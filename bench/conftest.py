"""Fixtures of the benches' tests. They measure nothing, so in a worker of xdist their processes are forked."""

from __future__ import annotations

import subprocess

import pytest
from tests.conftest import forks
from tests.integration.conftest import stack, stack_forks
from tests.support.forked import own_server

__all__ = ["forks", "stack", "stack_forks"]


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes that a test starts, so that they import nothing anew."""
    if (server := own_server()) is not None:
        monkeypatch.setattr(subprocess, "Popen", server.popen(code=True))
