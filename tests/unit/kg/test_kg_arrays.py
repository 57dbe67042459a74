"""Large graphs as arrays: what the builder makes of batches, and which folders are refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_kg.arrays.array_builder import Builder, RowError
from oven_kg.arrays.graph_arrays import COLUMNS, GraphArrays, content_sha
from oven_kg.arrays.graph_folder import INDEX, open_folder, write

NAMES = st.sampled_from(["a", "ab", "b", "Ä", "水", "zz", "𝄞", "\x00", "é"])
EDGES = st.lists(st.tuples(NAMES, st.sampled_from(["r", "s", "ß"]), NAMES, st.sampled_from([0.0, 0.5, 1.0, 3.0])))


def built(edges: list[tuple[str, str, str, float]], batch: int = 3) -> GraphArrays:
    builder = Builder()
    for first in range(0, len(edges), batch):
        sources, relations, targets, weights = zip(*edges[first : first + batch], strict=True)
        builder.add_edges(sources, relations, targets, weights)
    return builder.finish()


def listed(arrays: GraphArrays) -> dict[tuple[str, str, str], float]:
    """Edges by names."""
    return {
        (arrays.name(node), arrays.relations[rel], arrays.name(dst)): weight
        for node in range(arrays.nodes)
        for dst, rel, weight in zip(*(column.tolist() for column in arrays.outgoing(node)), strict=True)
    }


@given(EDGES, st.integers(1, 5), st.randoms())
@settings(max_examples=60)
def test_arrays_hold_each_edge_once_in_any_order_of_input(
    edges: list[tuple[str, str, str, float]], batch: int, draw: random.Random
) -> None:
    expected: dict[tuple[str, str, str], float] = {}
    for src, rel, dst, weight in edges:
        expected[src, rel, dst] = max(weight, expected.get((src, rel, dst), 0.0))
    arrays = built(edges, batch)
    assert listed(arrays) == expected
    names = sorted({name for src, _, dst, _ in edges for name in (src, dst)})
    assert arrays.names(range(arrays.nodes)) == names
    assert [arrays.index(name) for name in names] == list(range(len(names)))
    assert "nowhere" not in arrays and not ({"", "c", "\ud800"} & set(names)) and "\ud800" not in arrays
    backwards = {
        (arrays.name(src), arrays.relations[rel], arrays.name(node)): weight
        for node in range(arrays.nodes)
        for src, rel, weight in zip(*(column.tolist() for column in arrays.incoming(node)), strict=True)
    }
    assert backwards == expected
    assert (arrays.dst[arrays.in_edge] == np.repeat(np.arange(arrays.nodes), np.diff(arrays.in_indptr))).all()
    assert (arrays.sources[arrays.in_edge] == arrays.in_src).all()
    draw.shuffle(edges)
    assert built(edges).sha == arrays.sha


def test_kinds_licences_and_repeated_edges() -> None:
    builder = Builder()
    builder.declare(["dam"], ["thing"])
    builder.add_edges(["dam", "dam"], ["SOLVES", "SOLVES"], ["flood", "flood"])
    builder.declare(["flood", "flood"], ["event", ""])
    builder.declare(["alone"])
    arrays = builder.finish(licence="CC-BY-4.0")
    assert builder.repeated == 1 and arrays.isolated == 1
    kinds = [arrays.kind_names[kind] for kind in arrays.kinds]
    assert dict(zip(arrays.names(range(3)), kinds, strict=True)) == {"alone": "", "dam": "thing", "flood": "event"}
    assert arrays.licence == "CC-BY-4.0" and arrays.sha != built([("dam", "SOLVES", "flood", 1.0)]).sha
    assert arrays.similar_names("dat") == ["alone", "dam", "flood"]
    with pytest.raises(KeyError):
        arrays.index("da")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("a", "r", "b", float("nan")), "weight nan"),
        (("a", "r", "b", -1.0), "weight -1.0"),
        (("a", "r", "b", 1e39), "weight 1e"),
        (("", "r", "b", 1.0), "node without a name"),
        (("a", "", "b", 1.0), "relation without a name"),
        (("a", "r", "x" * 1001, 1.0), "1001 characters"),
        (("a", "r", "\ud800", 1.0), "not valid Unicode"),
        ((None, "r", "b", 1.0), "None is not a node"),
    ],
)
def test_an_unusable_row_is_reported_with_its_position(row: tuple[Any, ...], problem: str) -> None:
    builder = Builder()
    with pytest.raises(RowError, match=problem) as caught:
        builder.add_edges(["a", row[0]], ["r", row[1]], ["b", row[2]], [1.0, row[3]])
    assert caught.value.row == 1 and builder.edge_count == 0


def test_a_builder_refuses_too_many_rows_and_a_second_kind_of_a_node() -> None:
    few = Builder(max_nodes=2, max_edges=1)
    few.add_edges(["a"], ["r"], ["b"])
    with pytest.raises(RowError, match="more than 1 edges"):
        few.add_edges(["a"], ["r"], ["b"])
    with pytest.raises(RowError, match="more than 2 nodes"):
        few.declare(["c"])
    few.declare(["a"], ["x"])
    with pytest.raises(RowError, match="'x' and a 'y'"):
        few.declare(["a"], ["y"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "graph"
    write(path, built([("a", "r", "b", 1.0), ("b", "s", "c", 0.5), ("a", "r", "é", 2.0), ("c", "r", "a", 0.0)]))
    return path


def test_a_written_folder_opens_as_the_same_graph(folder: Path) -> None:
    arrays = open_folder(folder)
    assert listed(arrays) == {("a", "r", "b"): 1, ("b", "s", "c"): 0.5, ("a", "r", "é"): 2, ("c", "r", "a"): 0}
    assert all(not getattr(arrays, name).flags.writeable for name in COLUMNS)
    write(folder.with_name("copy"), arrays)
    assert open_folder(folder.with_name("copy")).sha == arrays.sha
    with pytest.raises(ConfigError, match="already exists"):
        write(folder, arrays)
    nothing = folder.with_name("nothing")
    write(nothing, Builder().finish())
    assert open_folder(nothing).nodes == 0


def rewritten(folder: Path, name: str, values: NDArray[Any]) -> None:
    """Another array under a fitting hash: what a wrong writer would leave."""
    np.save(folder / f"{name}.npy", values)
    index = json.loads((folder / INDEX).read_text())
    index["columns"][name] = hashlib.sha256(values.tobytes()).hexdigest()
    index["graph"] = content_sha(index["columns"], index["relations"], index["kinds"], index["licence"])
    (folder / INDEX).write_text(json.dumps(index))


def changed_index(**changes: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / INDEX).write_text(json.dumps(json.loads((folder / INDEX).read_text()) | changes))

    return change


def piped(folder: Path) -> None:
    (folder / "rel.npy").unlink()
    os.mkfifo(folder / "rel.npy")


def flipped(folder: Path) -> None:
    data = bytearray((folder / "dst.npy").read_bytes())
    data[-4] ^= 1
    (folder / "dst.npy").write_bytes(data)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "is not a graph folder"),
    "no index": (lambda f: (f / INDEX).unlink(), "it has no graph.json"),
    "another index": (lambda f: (f / INDEX).write_text("[]"), "is not the index of a graph"),
    "deep index": (lambda f: (f / INDEX).write_text("[" * 100_000), "is not the index of a graph"),
    "another format": (changed_index(format="oven-graph-9"), "in the format oven-graph-1"),
    "billion edges": (changed_index(edges=10**9), "ends at 4 instead of"),
    "more nodes than any": (changed_index(nodes=10**12), "is not the index of a graph"),
    "missing": (lambda f: (f / "rel.npy").unlink(), "No such file"),
    "cut off": (lambda f: (f / "dst.npy").write_bytes((f / "dst.npy").read_bytes()[:-3]), "is truncated"),
    "a bit": (flipped, "hash differs"),
    "other licence": (changed_index(licence="MIT"), "hash differs"),
    "pickle": (lambda f: (f / "dst.npy").write_bytes(pickle.dumps([1, 2])), "is not a .npy file of version 1.0"),
    "objects": (lambda f: np.save(f / "dst.npy", np.array([1, "a", None, 2], object)), "contains objects"),
    "floats": (lambda f: np.save(f / "dst.npy", np.ones(4)), "contains float64"),
    "a pipe": (piped, "not a regular file"),
    "end": (
        lambda f: rewritten(f, "dst", np.array([1, 3, 2, 9], "<i4")),
        "contains 9, which is outside the range 0 to 3",
    ),
    "negative end": (lambda f: rewritten(f, "in_src", np.array([1, -3, 2, 0], "<i4")), "contains -3"),
    "NaN": (lambda f: rewritten(f, "weight", np.array([1, np.nan, 2, 0], "<f4")), "the weight nan"),
    "negative": (lambda f: rewritten(f, "in_weight", np.array([1, -2, 2, 0], "<f4")), r"the weight -2"),
    "infinite": (lambda f: rewritten(f, "weight", np.array([1, np.inf, 2, 0], "<f4")), "the weight inf"),
    "descending": (lambda f: rewritten(f, "indptr", np.array([0, 3, 2, 4, 4], "<i8")), "do not ascend"),
    "not from 0": (lambda f: rewritten(f, "indptr", np.array([1, 2, 3, 4, 4], "<i8")), "do not ascend from 0"),
    "ends early": (lambda f: rewritten(f, "in_indptr", np.array([0, 1, 2, 3, 3], "<i8")), "ends at 3 instead of 4"),
    "half a letter": (lambda f: rewritten(f, "name_offsets", np.array([0, 1, 2, 4, 5], "<i8")), "not UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_folder_is_refused_in_one_sentence(folder: Path, case: str) -> None:
    spoil, problem = BAD[case]
    spoil(folder)
    with pytest.raises(ConfigError, match=problem) as caught:
        open_folder(folder)
    assert caught.value.exit_code == 2 and "kg import" in str(caught.value) and "\n" not in str(caught.value)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """The kernel refuses to let a file grow, as it does where there is no room; in a process of its own."""
    code = f"""
import resource
from pathlib import Path
from oven_core.errors import ConfigError
from oven_kg.arrays.array_builder import Builder
from oven_kg.arrays.graph_folder import write
builder = Builder()
builder.add_edges([str(n) for n in range(5000)], ["r"] * 5000, ["x"] * 5000)
arrays = builder.finish()
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, {resource.RLIM_INFINITY}))
try:
    write(Path({str(tmp_path / "graph")!r}), arrays)
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "cannot write the graph" in done.stdout and "File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_too_little_disk_space_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(ConfigError, match="but 1 are free"):
        write(tmp_path / "graph", built([("a", "r", "b", 1.0)]))
    assert list(tmp_path.iterdir()) == []
