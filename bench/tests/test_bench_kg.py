"""`bench kg` on a small graph, in this process: both sides must agree, and the service must answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from oven_bench.performance import kg


def test_both_sides_agree_on_a_graph_with_hubs_and_the_service_answers_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kg, "in_new_process", lambda function, *args: function(*args))
    monkeypatch.setattr(kg, "QUERIED", 12)
    figures = dict(kg.bench(nodes=400, edges=2500, quick=False).figures)
    assert 0 <= figures["pagerank_l1_error"] <= 1e-8 and figures["ppr_overlap"] >= 0.95  # type: ignore[operator]
    assert all(figures[f"query_{kind}_p99_ms"] > 0 for kind in kg.QUERIES)  # type: ignore[operator]
    arrays = kg.draw(400, 2500, seed=0)
    degrees = arrays.in_indptr[1:] - arrays.in_indptr[:-1]
    assert arrays.sha == kg.draw(400, 2500, seed=0).sha and degrees.max() > 20 * degrees.mean()
