"""The commands `kg diagnose`, `query`, `info` and `lint`: questions that a graph alone answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from oven_controller.cli.kg_import import about_graph, large_graph, lines
from oven_controller.cli.kg_options import GraphFile, checked_request, graph_reply
from oven_controller.cli.options import Json
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, GraphQuery, Phase, QueryAnswer, Symptom
from oven_core.terminal_text import say
from oven_kg.checked_graph import is_yaml, load, load_unchecked, read_graph
from oven_kg.graph.knowledge import Knowledge
from oven_kg.graph.lint import lint
from oven_kg.reasoning.diagnosis import diagnose

FAULTS: Final = 50
"""Faults that `lint` prints; of more, the first ones."""

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="a graph, or a folder of `kg import`, instead of the built-in one")
]


def diagnose_symptoms(
    symptoms: Annotated[list[str], typer.Argument(metavar="SYMPTOM", help="a symptom's id, or id=severity with 0..1")],
    phase: Annotated[Literal["pretrain", "sft", "grpo"] | None, typer.Option()] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=50, metavar="N", help="remedies wanted")] = 5,
    graph_file: GraphFile = None,
    as_json: Json = False,
) -> int:
    """Rank causes and remedies for symptoms, with the sources behind each remedy.

    Example: oven-controller kg diagnose loss_spike grad_norm_spike --phase pretrain
    """
    graph = load(graph_file)
    known: Phase = phase or ""
    asked = DiagnoseRequest(phase=known, symptoms=tuple(_symptom(graph, text) for text in symptoms), k=k)
    found = diagnose(graph, asked)
    print(found.model_dump_json(indent=1) if as_json else "\n".join(_lines(graph, found)))
    return 0


def _symptom(graph: Knowledge, text: str) -> Symptom:
    id_, _, severity = text.partition("=")
    known = [node.id for node in graph.of_kind("symptom")]
    if id_ not in known:
        raise UnknownNameError("symptom", id_, known)
    try:
        return Symptom.model_validate({"id": id_, "severity": severity or 1.0})
    except ValueError:
        problem = f"{text}: the severity {severity!r} is not a number from 0 to 1; write e.g. {id_}=0.5"
        raise ConfigError(problem) from None


def _lines(graph: Knowledge, found: Diagnosis) -> list[str]:
    said = ["most likely causes (p only ranks them; it is not a calibrated probability)"]
    said += [f"  {cause.p:4.2f}  {cause.id:22} {graph.nodes[cause.id].text}" for cause in found.causes[:5]]
    said.append("remedies (weight of evidence, as log-odds)")
    for remedy in found.remedies:
        does = " and ".join(remedy.changes) or "advice to a person"
        said.append(f"  {remedy.score:4.2f}  {remedy.id:22} {graph.nodes[remedy.id].text} [{does}]")
        for way in remedy.paths[:2]:
            said.append(f"        {way.text} ({', '.join(way.edges)}; grade {way.grade}; {', '.join(way.sources)})")
    return said


def info(file: File = None, graph_file: GraphFile = None, as_json: Json = False) -> int:
    """Show what a graph holds, its hash, and the rules that it adds to a run.

    Example: oven-controller kg info my_triples.csv
    """
    path = file or graph_file
    if path and not is_yaml(path):
        arrays = large_graph(path)
        say(*([json.dumps(about_graph(arrays))] if as_json else lines(arrays)))
        return 0
    graph = load_unchecked(path)
    info = graph.info()
    if as_json:
        print(info.model_dump_json(indent=1))
        return 0
    print(f"graph {info.graph}")
    for what, counts in (("nodes", info.nodes), ("edges", info.edges), ("grades", info.grades)):
        print(
            f"{what:14}{sum(counts.values()):>4}  "
            + ", ".join(f"{count} {name or 'unsaid'}" for name, count in counts.items())
        )
    print(f"{'isolated':14}{info.isolated:>4.0%}")
    if info.contradictions:
        print("never in flight together: " + "; ".join(f"{one} and {other}" for one, other in info.contradictions))
    if info.requirements:
        print("needs: " + "; ".join(f"{change} needs {need}" for change, need in info.requirements))
    if graph.of_kind("symptom"):
        print("symptoms: " + ", ".join(node.id for node in graph.of_kind("symptom")))
    return 0


def lint_graph(file: File = None) -> int:
    """Check a graph for faults. Exit code 1 if it has any.

    Example: oven-controller kg lint my_graph.yaml
    """
    if file and not is_yaml(file):
        from oven_kg.arrays.inspection import faults as large_faults

        arrays = large_graph(file)
        return _faults(large_faults(arrays), arrays.nodes, arrays.edges)
    records = read_graph(file)
    return _faults(lint(records), len(records.nodes), len(records.edges))


def _faults(faults: list[str], nodes: int, edges: int) -> int:
    """The exit code."""
    say(*faults[:FAULTS])
    if len(faults) > FAULTS:
        print(f"and {len(faults) - FAULTS} more")
    print(f"{nodes} nodes, {edges} edges: {f'{len(faults)} faults' if faults else 'sound'}")
    return 1 if faults else 0


def query(
    op: Annotated[Literal["neighbors", "path", "ppr", "search"], typer.Argument()],
    node: Annotated[str, typer.Argument(help="a node's id; for search: words")],
    to: Annotated[str, typer.Argument(help="for path: where it ends")] = "",
    relation: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="follow edges of this relation alone; may be repeated")
    ] = None,
    direction: Annotated[
        Literal["both", "out", "in"], typer.Option(help="follow edges both ways, along them, or against them")
    ] = "both",
    depth: Annotated[int, typer.Option(help="for neighbors: how many edges away, at most 8")] = 1,
    limit: Annotated[int, typer.Option(help="rows wanted, at most 200")] = 20,
    graph_file: GraphFile = None,
    as_json: Json = False,
) -> int:
    """Search a graph: the neighbors of a node, a path between two nodes, the nodes that matter most to one (ppr), or a
    text search.

    Example: oven-controller kg query path weights_shrink rollback_and_lower_decay
    """
    values = {"op": op, "node": node, "to": to, "limit": limit}
    values |= {"relations": relation or (), "direction": direction, "depth": depth}
    found = graph_reply(graph_file, "query", checked_request(GraphQuery, values), QueryAnswer)
    if as_json:
        say(*json.dumps(found.model_dump(mode="json"), indent=1).splitlines())
        return 0
    for row in found.rows:
        way = {"out": f"→ {row.relation} →", "in": f"← {row.relation} ←", "": ""}[row.towards]
        score = f"{row.score:.4f}" if op == "ppr" else str(row.depth or "")
        say("  ".join(part for part in (score, way, row.node, f"({row.kind}) {row.text}") if part))
    if found.more:
        print(f"and more; --limit {2 * limit} shows them")
    return 0
