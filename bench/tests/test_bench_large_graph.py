"""`bench kg` on a small graph, in this process: no figure is compared with another, but both sides must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from oven_bench.performance.large_graph import command, prior_service, sorted_arrays
from oven_bench.performance.large_graph.drawn_graph import draw, drawn_nodes
from oven_core.errors import ProcessError
from oven_kg.arrays import paths
from oven_kg.arrays.folder import open_folder, write
from oven_kg.arrays.graph_arrays import GraphArrays


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "graph", draw(400, 2500, seed=0))
    return tmp_path / "graph"


def test_a_drawn_graph_is_the_seeds_and_has_hubs(folder: Path) -> None:
    arrays = open_folder(folder)
    assert arrays.sha == draw(400, 2500, seed=0).sha != draw(400, 2500, seed=1).sha
    degrees = arrays.in_indptr[1:] - arrays.in_indptr[:-1]
    assert arrays.nodes == 400 and degrees.max() > 20 * degrees.mean()
    queried = drawn_nodes(arrays, 50, seed=3)
    assert len(set(queried)) == 50 and all(len(arrays.out(arrays.index(name))[0]) for name in queried)


def test_both_sides_agree_on_the_drawn_graph(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "in_new_process", lambda function, *args: function(*args))
    monkeypatch.setattr(sorted_arrays, "COMPARED", 10)
    queried = drawn_nodes(open_folder(folder), 20, seed=1)
    result = command.compare(folder, folder.parent, queried)
    assert 0 <= result["pagerank_l1_error"] <= 1e-8 and result["ppr_overlap"] >= 0.95
    assert all(result[name] > 0 for name in ("load_ratio", "pagerank_ratio", "hop2_p99_ratio", "ppr_p99_ms"))


def test_other_answers_than_networkxs_end_the_bench(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "in_new_process", lambda function, *args: function(*args))

    def one_edge(arrays: GraphArrays, node: int, depth: int) -> tuple[object, ...]:
        return (arrays.out(node)[0],)

    monkeypatch.setattr(paths, "within", one_edge)
    with pytest.raises(ProcessError, match="find different nodes"):
        command.compare(folder, folder.parent, drawn_nodes(open_folder(folder), 20, seed=1))


def test_a_diagnosis_beside_a_large_graph(folder: Path) -> None:
    assert prior_service.diagnose_p99_us(folder, rounds=4) > 0
