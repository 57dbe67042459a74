"""Benches measure what they start, and here no figure is judged: in a worker of xdist their processes are forked."""

from __future__ import annotations

import subprocess

import pytest
from tests.support.forked import own_server


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test starts, and what that starts, imports nothing anew."""
    if (server := own_server()) is not None:
        monkeypatch.setattr(subprocess, "Popen", server.popen(code=True))
