"""Graphs from elsewhere: each format as its own tools write it, and what a hostile file is answered with."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kg.test_kg_commands import said

from oven_controller.errors import ConfigError, UnknownNameError
from oven_kg.checked_graph import read_graph
from oven_kg.cli.graph_commands import INFO, LINT
from oven_kg.graph.graph_yaml import Records
from oven_kg.loaders import delimited, graphml, jsonl, node_link, parquet
from oven_kg.loaders.rows import EDGES, Triple, bounded, gather

ROOT = Path(__file__).resolve().parents[3]
LOADERS = {
    ".csv": delimited.rows,
    ".tsv": delimited.rows,
    ".jsonl": jsonl.rows,
    ".json": node_link.rows,
    ".graphml": graphml.rows,
    ".parquet": parquet.rows,
}
TRIPLES = [("rain", "causes", "flood", 0.5), ("dam", "solves", "flood", 0.9), ("flood", "causes", "mud", 1.0)]
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 9))


@pytest.fixture(autouse=True)
def entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this checkout, whatever is installed."""
    import tomllib

    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = tmp_path / "meta" / "oven_controller-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: oven-controller\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in known["oven.kg_loaders"].items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[oven.kg_loaders]", *lines]))
    monkeypatch.syspath_prepend(str(metadata.parent))


def written(path: Path, triples: list[tuple[str, str, str, float]]) -> Path:
    if path.suffix in (".csv", ".tsv"):
        mark = "\t" if path.suffix == ".tsv" else ","
        path.write_text(
            "\n".join(mark.join(map(str, row)) for row in [("Source", "Relation", "Target", "w"), *triples])
        )
    elif path.suffix == ".jsonl":
        keys = ("subject", "predicate", "object", "weight")
        path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in triples))
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = ("head", "relation", "tail", "weight")
        pq.write_table(pa.table({name: [row[n] for row in triples] for n, name in enumerate(names)}), path)
    else:
        graph = nx.MultiDiGraph()
        for src, relation, dst, weight in triples:
            graph.add_edge(src, dst, relation=relation, weight=weight)
        nx.set_node_attributes(graph, "cause", "kind")
        if path.suffix == ".json":
            path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
        else:
            nx.write_graphml(graph, path)
    return path


def content(records: Records) -> list[tuple[str, str, str, float]]:
    return sorted((edge.src, edge.relation, edge.dst, edge.strength) for edge in records.edges)


@pytest.mark.parametrize("suffix", LOADERS)
def test_each_format_says_the_same(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / f"graph{suffix}", TRIPLES)
    records = read_graph(path)
    assert content(records) == sorted((src, relation.upper(), dst, w) for src, relation, dst, w in TRIPLES)
    assert {node.id for node in records.nodes} == {"rain", "flood", "dam", "mud"}
    if suffix in (".json", ".graphml"):
        assert {node.kind for node in records.nodes} == {"cause"}
    found = json.loads(said(capsys, INFO, str(path), "--json"))
    assert found["edges"] == {"CAUSES": 2, "SOLVES": 1} and found["isolated"] == 0
    assert "2 CAUSES, 1 SOLVES" in said(capsys, INFO, str(path))
    assert LINT.run([str(path)]) == 1
    assert "which is not in the bibliography" in capsys.readouterr().out


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(*[st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)] * 3)))
def test_whatever_names_a_table_holds_come_back(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, ...]]
) -> None:
    path = tmp_path_factory.mktemp("names") / "g.jsonl"
    path.write_text("\n".join(json.dumps({"s": s, "p": p, "o": o}) for s, p, o in names))
    assert content(gather(path, jsonl.rows(path))) == sorted((s, p.upper(), o, 1.0) for s, p, o in names)


HOSTILE: dict[str, tuple[str, str | bytes, str]] = {
    "no columns": (".csv", "a,b,c\n1,2,3", "has the columns a, b, c; a graph of triples needs subject"),
    "empty": (".csv", "", "has the columns none"),
    "short row": (".csv", "s,p,o\nx,y", "line 2: 'x', 'y', None is not a triple"),
    "not a number": (".csv", "s,p,o,w\nx,y,z,much", "line 2: the weight 'much' is not a number"),
    "open quote": (".csv", 's,p,o\n"x,y,z', "line 1: unexpected end of data"),
    "latin": (".csv", b"s,p,o\n\xff,y,z", "invalid start byte"),
    "long field": (".csv", "s,p,o\n" + "x" * 200_000 + ",y,z", "field larger than field limit"),
    "long name": (".csv", "s,p,o\n" + "x" * 2_000 + ",y,z", "a name of 2000 characters"),
    "no JSON": (".jsonl", "{", "line 1 is not JSON"),
    "deep": (".jsonl", "[" * 60_000, "line 1 is not JSON"),
    "a list": (".jsonl", "[1]", "line 1 is not an object"),
    "long line": (".jsonl", '{"s": "' + "x" * 100_000, "line 1 has more than 65536 bytes"),
    "no graph": (".json", '{"nodes": 3}', "has no lists `nodes` and `edges`"),
    "deep JSON": (".json", "[" * 500_000, "is not JSON"),
    "node without id": (".json", '{"nodes": [{}], "edges": []}', "node 1: it has no `id`"),
    "edge of things": (".json", '{"nodes": [], "links": [{"source": {}, "target": 1}]}', "edge 1: {}, 'RELATED', 1 is"),
    "laughs": (".graphml", f"<!DOCTYPE g [{LAUGHS}]><graphml>&l8;</graphml>", "declares a document type or entities"),
    "a file": (".graphml", '<!DOCTYPE g [<!ENTITY x SYSTEM "file:///etc/passwd">]><graphml/>', "declares a document"),
    "deep XML": (".graphml", "<a>" * 5_000, "has elements 33 deep"),
    "cut XML": (".graphml", "<graphml><graph>", "is not GraphML: no element found"),
    "loose edge": (".graphml", '<graphml><edge source="a"/></graphml>', "line 1: an edge has no source or no target"),
    "no Parquet": (".parquet", b"PAR1" + b"x" * 50 + b"PAR1", "is not a readable Parquet file"),
    "a pickle": (".parquet", b"\x80\x04\x95", "is not a readable Parquet file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    suffix, body, words = HOSTILE[name]
    path = tmp_path / f"graph{suffix}"
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    with pytest.raises(ConfigError) as caught:
        read_graph(path)
    assert words in str(caught.value) and str(path) in str(caught.value)


def test_a_parquet_bomb_is_not_unpacked(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "bomb.parquet"
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), pa.array(["x" * 5_000_000]))
    pq.write_table(pa.table({"s": long, "p": long, "o": long}), path, compression="zstd")
    with pytest.raises(ConfigError, match=r"a name of 5000000 characters|bytes unpacked"):
        read_graph(path)
    many = pa.DictionaryArray.from_arrays(pa.array([0] * (EDGES + 1), pa.int32()), pa.array(["x"]))
    pq.write_table(pa.table({"s": many, "p": many, "o": many}), path, compression="zstd")
    with pytest.raises(ConfigError, match="1000001 rows"):
        read_graph(path)


def test_limits_name_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = (Triple(f"n{n}", "CAUSES", f"n{n + 1}") for n in range(10**9))
    with pytest.raises(ConfigError, match="more than 10 nodes or 1000000 edges"):
        gather(tmp_path / "g.csv", endless, nodes=10)
    path = written(tmp_path / "graph.csv", TRIPLES)
    with pytest.raises(ConfigError, match=r"has \d+ bytes; at most 8 are read from a \.csv file"):
        bounded(path, 8)
    with pytest.raises(ConfigError, match="cannot read the graph"):
        read_graph(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        read_graph(tmp_path / "folder.csv")


@pytest.mark.parametrize("suffix", ["pickle", "gpickle", "exe"])
def test_a_suffix_that_no_loader_has_is_an_unknown_name(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=f"no loader for files of the kind named '{suffix}'"):
        read_graph(tmp_path / f"graph.{suffix}")
