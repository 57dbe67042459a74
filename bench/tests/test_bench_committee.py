"""`bench committee` in small: a real bus, faulty members, and a count that leaves no fault out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from oven_bench.committee import measure


async def test_no_score_is_wrong_and_every_fault_is_counted(tmp_path: Path) -> None:
    result = await asyncio.to_thread(measure, tmp_path, groups=50, members=2, share=0.5, deadline_s=0.5, seed=1)
    assert result["wrong_scores"] == 0
    assert result["faults_injected"] > 40
    assert sum(result["faults_by_kind"].values()) == result["faults_injected"]
    assert set(result["faults_by_kind"]) == {"deadline", "malformed", "out_of_range", "rate_limit", "wrong_ids"}
    assert result["skipped"] < result["skipped_by_one_judge"], "that is what a second member is for"
