"""The bench of faults measures every one of them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from tests.integration.conftest import PACKAGES, ROOT

from oven_bench.performance.swarm_faults import measure

pytestmark = pytest.mark.usefixtures("forked_children")
FAULTS = ("none", "agent_frozen", "agent_floods", "votes_oversized", "mesh_killed", "server_thawed")


async def test_every_fault_is_measured_and_every_vote_of_a_healthy_agent_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / name) for name in PACKAGES))
    found = await measure(tmp_path, seconds=1, frozen_s=2.5)
    for fault in FAULTS:
        assert found[f"{fault}_uncounted"] == 0 and found[f"{fault}_votes"] >= 2
        assert math.isfinite(found[f"{fault}_healthy_p99_ms"])
    assert found["agent_floods_per_s"] > 1000
    assert math.isfinite(found["server_frozen_recovered_s"])
