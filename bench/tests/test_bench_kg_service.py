"""`bench kg`'s second half: the prior service, started as the stack starts it, with a small graph beside its own."""

from __future__ import annotations

from pathlib import Path

from oven_bench.performance.large_graph import prior_service
from oven_bench.performance.large_graph.drawn_graph import draw, drawn_nodes
from oven_kg.arrays.folder import write


async def test_the_service_answers_from_the_graph_that_the_bench_drew(tmp_path: Path) -> None:
    arrays = draw(300, 2000, seed=0)
    write(tmp_path / "graph", arrays)
    result = await prior_service.query(tmp_path / "graph", drawn_nodes(arrays, 4, seed=1), tmp_path / "home")
    assert result.query_ms.keys() == {"neighbors", "neighbors_2", "path", "ppr", "search"}
    assert all(len(took) == 3 and min(took) > 0 for took in result.query_ms.values())
    assert result.start_s > 0 and result.memory_bytes > 2**20
