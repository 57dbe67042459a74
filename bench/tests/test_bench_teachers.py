"""`bench teachers`: which figures miss a bar."""

from __future__ import annotations

import pytest

from oven_bench.performance.teachers import missed_bars


@pytest.mark.parametrize(
    ("form", "changed", "text"),
    [
        ("resident", {"stall_s": 0.21}, "stalls 0.21 s, bar 0.20"),
        ("8 bits", {"active": 0.36}, "8 bits: when active, it holds 0.360"),
        ("offload", {"idle": 0.06}, "offload: when idle, it holds 0.060"),
        ("offload", {"stall_s": 2.0}, "bar 2.00"),
        ("offload", {"active": 0.9, "stall_s": 3.0, "resident_bytes": 2e8}, ""),
    ],
)
def test_each_bar_is_named_when_it_is_missed(form: str, changed: dict[str, float], text: str) -> None:
    figures = {"resident_bytes": 1e8, "idle": 0.0, "active": 0.2, "stall_s": 0.1} | changed
    missed = missed_bars({form: figures})
    assert (len(missed) == 1 and text in missed[0]) if text else not missed
