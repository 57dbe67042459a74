"""One small graph in each form in which graphs are published, written as the tools of each form write it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import networkx as nx

Triple: TypeAlias = tuple[str, str, str, float]

TRIPLES: Final[tuple[Triple, ...]] = (
    ("rain", "Causes", "flash flood", 0.5),
    ("dam", "Solves", "flash flood", 2.0),
    ("flash flood", "Causes", "mud", 1.0),
)
NODES: Final = ("dam", "flash flood", "mud", "rain")
IRI: Final = "http://example.org/"
TURTLE: Final = "@prefix e: <http://example.org/> .\n"


def _table(mark: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        rows = [("Source", "note", "Relation", "Target", "w"), *((s, "-", p, o, w) for s, p, o, w in TRIPLES)]
        path.write_text("\n".join(mark.join(map(str, row)) for row in rows))

    return write


def _jsonl(path: Path) -> None:
    keys = ("subject", "predicate", "object", "weight")
    path.write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in TRIPLES))


def _parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("head", "relation", "tail", "weight")
    pq.write_table(pa.table({name: [row[n] for row in TRIPLES] for n, name in enumerate(names)}), path)


def _network() -> nx.MultiDiGraph[str]:
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from(NODES, kind="event")
    for source, relation, target, weight in TRIPLES:
        graph.add_edge(source, target, relation=relation, weight=weight)
    return graph


def _conceptnet(path: Path) -> None:
    rows = [
        ("/r/" + relation, _concept(source), _concept(target), json.dumps(_about(weight), sort_keys=True))
        for source, relation, target, weight in TRIPLES
    ]
    rows += [("/r/Causes", "/c/de/regen", "/c/de/flut", '{"weight": 1.0}')]
    rows += [("/r/ExternalURL", "/c/en/rain", "http://dbpedia.org/resource/Rain", '{"weight": 1.0}')]
    path.write_text("".join("\t".join((f"/a/[{row[0]}/,{row[1]}/,{row[2]}/]", *row)) + "\n" for row in rows))


def _concept(name: str) -> str:
    return f"/c/en/{name.replace(' ', '_')}/n" if name == "rain" else f"/c/en/{name.replace(' ', '_')}"


def _about(weight: float) -> dict[str, object]:
    nested = {"contributor": "/s/x", "weight": 7}
    about: dict[str, object] = {
        "dataset": "/d/x",
        "sources": [nested],
        "surfaceText": 'a "weight": 9}',
        "weight": weight,
    }
    # One whose weight is not last, as no JSON has to have it.
    return about | ({"zeta": {"weight": 8}} if weight == 1 else {})


def _iri(name: str) -> str:
    return IRI + name.replace(" ", "_")


def _statements() -> Callable[[Path], object]:
    rows = "".join(f"<{_iri(s)}> <{_iri(p)}> <{_iri(o)}> .\n" for s, p, o, _ in TRIPLES)
    literal = f'<{_iri("rain")}> <{_iri("label")}> "rain, or \\"Regen\\" ."@en .\n'
    return lambda path: path.write_text("# a comment\n\n" + rows + literal)


def _rdfxml(path: Path) -> None:
    rows = "".join(
        f'<rdf:Description rdf:about="{_iri(s)}"><e:{p} rdf:resource="{_iri(o)}"/></rdf:Description>'
        for s, p, o, _ in TRIPLES
    )
    names = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="http://example.org/"'
    path.write_text(f'<?xml version="1.0"?>\n<rdf:RDF {names}>{rows}</rdf:RDF>')


def _jsonld(path: Path) -> None:
    rows = [{"@id": _iri(s), p: {"@id": _iri(o)}} for s, p, o, _ in TRIPLES]
    path.write_text(json.dumps({"@context": {"@vocab": IRI}, "@graph": rows}))


def _turtle(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(TURTLE + text)


_PAIRS: Final = "".join(f"e:{s.replace(' ', '_')} e:{p} e:{o.replace(' ', '_')} .\n" for s, p, o, _ in TRIPLES)

_BRACKETS: Final = "# (((\n" + "e:rain e:label '''([ \"it's\"\n''', \"[(\\\"\", '(', " + '"""[[(("""' + " .\n"
"""Brackets that are none: in texts and comments, of any number."""

WEIGHTED: Final[Mapping[str, Callable[[Path], object]]] = {
    "csv": _table(","),
    "tsv": _table("\t"),
    "jsonl": _jsonl,
    "parquet": _parquet,
    "node-link": lambda path: path.write_text(json.dumps(nx.node_link_data(_network(), edges="edges"))),
    "graphml": lambda path: nx.write_graphml(_network(), path),
    "conceptnet": _conceptnet,
}
"""Format → what writes `TRIPLES` to a file."""
RDF: Final[Mapping[str, Callable[[Path], object]]] = {
    "ntriples": _statements(),
    "turtle": _turtle(_PAIRS + _BRACKETS),
    "rdfxml": _rdfxml,
    "jsonld": _jsonld,
}
"""The same, of formats that have IRIs and no weights."""
