"""`oven-controller kg diagnose | info | lint`: the graph asked offline, for people and for scripts.

The other questions are in questions.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from oven_controller.errors import ConfigError, UnknownNameError
from oven_controller.protocol.requests import DiagnoseRequest, Diagnosis, Phase, Symptom
from oven_kg.graph.knowledge import Knowledge, load
from oven_kg.graph.lint import lint
from oven_kg.loaders.opening import opened
from oven_kg.reasoning.diagnose import diagnose

FAULTS: Final = 50
"""Lines of a lint: who has more begins with these."""


@dataclass(frozen=True)
class Command:
    """What an entry point of oven.kg is: a line for the list, and something to run."""

    summary: str
    run: Callable[[list[str]], int]


def _diagnose(args: list[str]) -> int:
    parser = parser_of("diagnose", "loss_spike grad_norm_spike --phase pretrain")
    parser.add_argument("symptoms", nargs="+", metavar="SYMPTOM", help="a symptom's id, or id=severity with 0..1")
    parser.add_argument("--phase", choices=[phase for phase in get_args(Phase) if phase], default="")
    parser.add_argument("-k", type=int, choices=range(1, 51), default=5, metavar="N", help="remedies wanted (5)")
    graph_and_json(parser)
    options = parser.parse_args(args)
    graph = load(options.graph)
    symptoms = tuple(_symptom(graph, text) for text in options.symptoms)
    found = diagnose(graph, DiagnoseRequest(phase=options.phase, symptoms=symptoms, k=options.k))
    print(found.model_dump_json(indent=1) if options.json else "\n".join(_lines(graph, found)))
    return 0


def _symptom(graph: Knowledge, text: str) -> Symptom:
    id_, _, severity = text.partition("=")
    known = [node.id for node in graph.of_kind("symptom")]
    if id_ not in known:
        raise UnknownNameError("symptom", id_, known)
    try:
        return Symptom.model_validate({"id": id_, "severity": severity or 1.0})
    except ValueError:
        raise ConfigError(f"{text}: the severity {severity!r} is no number from 0 to 1; write e.g. {id_}=0.5") from None


def _lines(graph: Knowledge, found: Diagnosis) -> list[str]:
    lines = ["likeliest causes (p ranks; it is no calibrated probability)"]
    lines += [f"  {cause.p:4.2f}  {cause.id:22} {graph.nodes[cause.id].text}" for cause in found.causes[:5]]
    lines.append("remedies (weight of evidence, as log-odds)")
    for remedy in found.remedies:
        does = " and ".join(remedy.changes) or "advice to a person"
        lines.append(f"  {remedy.score:4.2f}  {remedy.id:22} {graph.nodes[remedy.id].text} [{does}]")
        for way in remedy.paths[:2]:
            lines.append(f"        {way.text} ({', '.join(way.edges)}; grade {way.grade}; {', '.join(way.sources)})")
    return lines


def _info(args: list[str]) -> int:
    parser = parser_of("info", "my_triples.csv")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a graph; the built-in one if left out")
    graph_and_json(parser)
    options = parser.parse_args(args)
    graph = described(options.file or options.graph)
    info = graph.info()
    if options.json:
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


def described(path: Path | None) -> Knowledge:
    """A graph that nobody will ask for remedies may have faults, but for edges that lead nowhere."""
    records = opened(path)
    nodes = {node.id for node in records.nodes}
    if loose := [edge for edge in records.edges if not {edge.src, edge.dst} <= nodes]:
        raise ConfigError(f"edge {loose[0].id} of {path} dangles; `oven-controller kg lint {path}` lists all faults")
    return Knowledge(records)


def _lint(args: list[str]) -> int:
    parser = parser_of("lint", "my_graph.yaml")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a graph; the built-in one if left out")
    options = parser.parse_args(args)
    records = opened(options.file)
    faults = lint(records)
    for fault in faults[:FAULTS]:
        print(fault)
    if len(faults) > FAULTS:
        print(f"and {len(faults) - FAULTS} more")
    print(f"{len(records.nodes)} nodes, {len(records.edges)} edges: {f'{len(faults)} faults' if faults else 'sound'}")
    return 1 if faults else 0


def parser_of(name: str, example: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"oven-controller kg {name}",
        description=SUMMARIES[name],
        epilog=f"example: oven-controller kg {name} {example}",
    )


def graph_and_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graph", type=Path, metavar="FILE", help="a graph in place of the built-in one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


SUMMARIES = {
    "learn": "what the outcomes of recorded runs teach, added to a file that the service can start with",
    "curriculum": "shares of topics from how well each is mastered, and what builds on what",
    "token-prior": "scores of the tokens that matter most, in at most a kilobyte",
    "query": "look about in the graph: neighbors, path, ppr (what lies near), search",
    "diagnose": "causes and remedies for what was seen, with their sources",
    "info": "what the graph holds, its hash, and what it adds to a run's rules",
    "lint": "check a graph; exit code 1 if it has faults",
}
DIAGNOSE = Command(SUMMARIES["diagnose"], _diagnose)
INFO = Command(SUMMARIES["info"], _info)
LINT = Command(SUMMARIES["lint"], _lint)
