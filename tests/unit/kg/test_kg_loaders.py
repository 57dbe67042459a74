"""Graphs from elsewhere: each format as its own tools write it, and what a hostile file is answered with."""

from __future__ import annotations

import bz2
import gzip
import json
import runpy
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.command_line import call
from tests.support.foreign_graphs import IRI, NODES, RDF, TRIPLES, WEIGHTED
from tests.support.hostile_graphs import CASES
from tests.unit.kg.test_kg_commands import output

from oven_controller.cli.kg_large_graphs import read_files
from oven_core.errors import ConfigError, UnknownNameError
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.graph_folder import open_folder
from oven_kg.loaders import input_file, rdf
from oven_kg.loaders.format_detection import detect
from oven_kg.loaders.input_file import GraphFile

ROOT = Path(__file__).resolve().parents[3]
EXPECTED = sorted((source, relation.upper(), target, weight) for source, relation, target, weight in TRIPLES)
SUFFIXES = {"node-link": "json", "conceptnet": "tsv"}


@pytest.fixture(autouse=True)
def entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this checkout, whatever is installed."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = tmp_path / "meta" / "oven_controller-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: oven-controller\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in known["oven.kg_loaders"].items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[oven.kg_loaders]", *lines]))
    monkeypatch.syspath_prepend(str(metadata.parent))


def content(arrays: GraphArrays) -> list[tuple[str, str, str, float]]:
    return sorted(
        (arrays.name(source), arrays.relations[rel], arrays.name(target), weight)
        for source, target, rel, weight in zip(
            arrays.sources.tolist(), arrays.dst.tolist(), arrays.rel.tolist(), arrays.weight.tolist(), strict=True
        )
    )


@pytest.mark.parametrize("name", WEIGHTED)
def test_each_format_yields_the_same_graph(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"graph.{SUFFIXES.get(name, name)}"
    WEIGHTED[name](path)
    assert detect(GraphFile(path)) == name
    nameless = path.rename(tmp_path / "graph")
    assert detect(GraphFile(nameless)) == name
    arrays = read_files([nameless], languages="en" if name == "conceptnet" else "").arrays
    assert content(arrays) == EXPECTED and arrays.names(range(arrays.nodes)) == list(NODES)
    if name in ("node-link", "graphml"):
        assert {arrays.kind_names[kind] for kind in arrays.kinds} == {"event"}


@pytest.mark.parametrize("name", RDF)
def test_each_form_of_rdf_yields_the_same_graph(name: str, tmp_path: Path) -> None:
    path = tmp_path / "graph"
    RDF[name](path)
    assert detect(GraphFile(path)) == name
    imported = read_files([path])
    assert content(imported.arrays) == [
        (IRI + s.replace(" ", "_"), p.upper(), IRI + o.replace(" ", "_"), 1.0) for s, p, o, _ in sorted(TRIPLES)
    ]
    literals = {"ntriples": 1, "turtle": 4}.get(name, 0)
    assert imported.skipped == ({"statements about literals": literals} if literals else {})


def test_relations_of_two_vocabularies_with_one_local_name_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "g.nt"
    predicates = ("http://a/terms#part", "http://b/part", "http://a/terms#whole", "http://a/terms#part")
    path.write_text("".join(f"<urn:x{i}> <{iri}> <urn:y> .\n" for i, iri in enumerate(predicates)))
    assert sorted(read_files([path]).arrays.relations) == ["PART", "WHOLE", "http://b/part"]


TURTLE = (
    '"""(\n"(" """', "'''['''", '"(\\""', "'['", "<(>", "# (\n", "\\(", '""', "(", "[", ")", "]", " a ",
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(TURTLE)), st.integers(1, 9))
def test_brackets_in_texts_do_not_count_wherever_the_file_is_cut(lexemes: list[str], size: int) -> None:
    nesting = rdf.BracketDepth(Path("g.ttl"))
    text = (" ".join(lexemes) + "\n").encode()
    for position in range(0, len(text), size):
        nesting.feed(text[position : position + size])
    assert nesting.depth == sum(map(lexemes.count, "([")) - sum(map(lexemes.count, ")]"))


@pytest.mark.parametrize(
    ("file", "content"),
    [("g.gexf", "<gexf/>"), ("g.trig", "@prefix e: <http://e/> ."), ("g.nq", "<a> <b> <c> <d> .")],
)
def test_a_file_of_a_removed_format_names_the_tag_that_still_reads_it(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(UnknownNameError, match="was removed; check out the tag evidence-1"):
        read_files([tmp_path / file])


@pytest.mark.parametrize("pack", [gzip, bz2])
def test_a_compressed_file_yields_the_same_graph(pack: object, tmp_path: Path) -> None:
    path = tmp_path / "graph"
    WEIGHTED["csv"](path)
    packed = tmp_path / "packed"
    packed.write_bytes(pack.compress(path.read_bytes()))  # type: ignore[attr-defined]
    assert read_files([packed]).arrays.sha == read_files([path]).arrays.sha


def test_an_undirected_edge_becomes_two(tmp_path: Path) -> None:
    import networkx as nx

    graph = nx.Graph()
    graph.add_edge("a", "b", weight=2.0)
    nx.write_graphml(graph, tmp_path / "graphml")
    (tmp_path / "json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    for name in ("graphml", "json"):
        assert content(read_files([tmp_path / name]).arrays) == [("a", "RELATED", "b", 2.0), ("b", "RELATED", "a", 2.0)]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)] * 2), min_size=1
    )
)
def test_all_names_survive_csv_and_json_lines(
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("names")
    (folder / "g.jsonl").write_text("\n".join(json.dumps({"s": s, "p": "R", "o": o}) for s, o in names))
    quoted = [",".join(f'''"{name.replace('"', '""')}"''' for name in (s, "R", o)) for s, o in names]
    (folder / "g.csv").write_text("\n".join(["s,p,o", *quoted]), encoding="utf-8")
    for path in folder.iterdir():
        assert content(read_files([path]).arrays) == sorted({(s, "R", o, 1.0) for s, o in names})


def test_import_and_the_commands_that_read_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, map_, folder = tmp_path / "assertions", tmp_path / "map.yaml", tmp_path / "graph"
    WEIGHTED["conceptnet"](path)
    map_.write_text("Solves: HELPS\nUsedFor: null\n")
    args = [str(path), "--languages", "en", "--min-weight", "0.9", "--relations", str(map_)]
    out = output(capsys, "import", *args, "--to", str(folder))
    assert f"3 nodes and 2 edges in {folder}" in out and "1 edges below the minimum weight skipped" in out
    assert "2 assertions in other languages skipped" in out and "maps the relation 'UsedFor', but no file has it" in out
    assert content(open_folder(folder)) == [("dam", "HELPS", "flash flood", 2.0), ("flash flood", "CAUSES", "mud", 1.0)]
    imported = json.loads(output(capsys, "info", str(folder), "--json"))
    assert imported["edges"] == {"CAUSES": 1, "HELPS": 1} and imported["isolated"] == 0
    assert imported["licence"] == "CC-BY-SA-4.0"
    assert "edges         2  1 CAUSES, 1 HELPS" in output(capsys, "info", str(folder))
    assert "3 nodes, 2 edges: sound" in output(capsys, "lint", str(folder))
    with pytest.raises(ConfigError, match="already exists; choose a new folder"):
        call("kg import", [*args, "--to", str(folder)])
    args = [str(path), "--to", str(tmp_path / "all"), "--licence", "CC0-1.0", "--json"]
    imported = json.loads(output(capsys, "import", *args))
    assert imported["licence"] == "CC0-1.0" and imported["edges"]["EXTERNAL_URL"] == 1 and not imported["skipped"]
    assert "/c/en/rain" in open_folder(tmp_path / "all")


def test_a_relation_map_for_all_other_relations(tmp_path: Path) -> None:
    path, map_ = tmp_path / "g.csv", tmp_path / "map.yaml"
    WEIGHTED["csv"](path)
    map_.write_text('CAUSES: LEADS_TO\n"*": null\n')
    assert {relation for _, relation, *_ in content(read_files([path], relations=map_).arrays)} == {"LEADS_TO"}
    for body, words in (
        ("- a", "is not a map of relations"),
        ("a: 1", "maps 'a' to 1"),
        ("a: [", "is not a map in YAML"),
    ):
        map_.write_text(body)
        with pytest.raises(ConfigError, match=words):
            read_files([path], relations=map_)


def test_cycles_of_requirements_are_refused_or_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.csv"
    path.write_text("s,p,o\na,requires,b\nb,requires,a\nb,requires,c\nc,is a,a\n")
    assert call("kg lint", [str(path)]) == 1 and "REQUIRES edges form a cycle: a → b → a" in capsys.readouterr().out
    assert "2 requirements on a cycle skipped" in output(
        capsys, "import", str(path), "--to", str(tmp_path / "g"), "--cut-cycles"
    )
    assert content(open_folder(tmp_path / "g")) == [("b", "REQUIRES", "c", 1.0), ("c", "IS_A", "a", 1.0)]


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused_with_its_location(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path, folder = case.write(tmp_path), tmp_path / "out"
    with pytest.raises(ConfigError) as caught:
        call("kg import", [str(path), "--to", str(folder), *case.args])
    assert case.words in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith("out")]


def test_limits_and_wrong_options_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.csv"
    WEIGHTED["csv"](path)
    with monkeypatch.context() as patched:
        patched.setattr(input_file, "MAX_BYTES", 8)
        with pytest.raises(ConfigError, match="has more than 8 bytes; import only a part of it"):
            read_files([path])
    with pytest.raises(ConfigError, match="cannot read the graph"):
        read_files([tmp_path / "none.csv"])
    with pytest.raises(UnknownNameError, match="no format of graphs named 'cvs'; did you mean 'csv'"):
        read_files([path], "cvs")
    with pytest.raises(ConfigError, match="'e n' is not a language"):
        read_files([path], languages="e n")
    with pytest.raises(ConfigError, match=r"g\.csv is not a ConceptNet file; omit it"):
        read_files([path], languages="en")
    with pytest.raises(ConfigError, match="no edges to import \\(3 rows were skipped\\); skip fewer rows"):
        read_files([path], min_weight=4.0)
    with pytest.raises(UnknownNameError, match="'causenet' was removed; check out the tag evidence-1"):
        read_files([path], "causenet")


SOURCE = """
import os
from json import loads

class Oven(Base):
    def bake(self):
        try:
            return loads(os.read(3))
        except (ValueError, KeyError):
            raise Burnt("black") from None
"""


def test_the_example_writes_the_graph_of_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kitchen.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("this is no program")
    runpy.run_path(str(ROOT / "examples/code_graph.py"))["main"]([str(tmp_path)])
    path = tmp_path / "code.csv"
    path.write_text(capsys.readouterr().out)
    assert {triple[:3] for triple in content(read_files([path]).arrays)} == {
        ("kitchen", "REQUIRES", "os"),
        ("kitchen", "REQUIRES", "loads"),
        ("kitchen", "CONTAINS", "Oven"),
        ("Oven", "IS_A", "Base"),
        ("Oven", "CONTAINS", "bake"),
        ("bake", "REQUIRES", "loads"),
        ("bake", "REQUIRES", "read"),
        ("bake", "SOLVES", "ValueError"),
        ("bake", "SOLVES", "KeyError"),
        ("bake", "CAUSES", "Burnt"),
        ("bake", "REQUIRES", "Burnt"),
    }
