"""The commands `kg diagnose`, `kg query`, `kg info` and `kg lint`, which read a graph without changing it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from oven_agents.diagnosis.engine import find_findings, read_record
from oven_controller.cli import completion
from oven_controller.cli.kg_large_graphs import load_large_graph, summary_fields, summary_lines
from oven_controller.cli.kg_queries import checked_request, graph_option, query_graph
from oven_controller.cli.options import PATH, argument, json_option, print_result, run_option
from oven_controller.finding_report import explain_findings, finding_lines
from oven_controller.importing.open_log import open_log
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, GraphQuery, QueryAnswer, Symptom
from oven_core.terminal_text import say, wrapped
from oven_kg.checked_graph import is_yaml, load, load_unchecked, read_graph
from oven_kg.graph.knowledge_graph import KnowledgeGraph
from oven_kg.graph.lint import lint
from oven_kg.reasoning.diagnosis import diagnose
from oven_runs.home.run_folder import Home

MAX_CAUSES: Final = 5
"""Maximum number of causes that `kg diagnose` prints."""
MAX_PATHS: Final = 2
"""Maximum number of paths per remedy that `kg diagnose` prints."""
MAX_FAULTS: Final = 50
"""Maximum number of faults that `kg lint` prints."""

graph_argument = argument(
    "file", type=PATH, required=False, help="A graph file or a `kg import` folder to use instead of the built-in graph."
)


@click.command()
@argument(
    "names",
    nargs=-1,
    metavar="[RUN|SYMPTOM…]",
    shell_complete=completion.runs_or_paths,
    help="A run, its folder or its log.jsonl; or symptoms, as id or id=severity with a severity from 0 to 1.",
)
@run_option("The same as RUN.", "run_")
@click.option(
    "--phase", type=click.Choice(["pretrain", "sft", "grpo"]), show_default="any", help="The kind of training."
)
@click.option("-k", "max_remedies", type=click.IntRange(1, 50), default=5, metavar="N", help="Number of remedies.")
@graph_option
@json_option
def diagnose_symptoms(
    names: tuple[str, ...],
    run_: str | None,
    phase: str | None,
    max_remedies: int,
    graph_file: Path | None,
    as_json: bool,
) -> int:
    """Diagnose a run, or rank causes for symptoms, and show remedies with the sources behind each.

    Example: oven-controller kg diagnose grpo-1121-0231

    Example: oven-controller kg diagnose loss_spike grad_norm_spike --phase pretrain
    """
    graph = load(graph_file)
    runs = [folder.run for folder in Home().runs()]
    if run_ is not None and names not in ((), (run_,)):
        raise ConfigError(
            f"--run is {run_!r}, but {' '.join(names)} is named, too; name only one run, or only symptoms"
        )
    if not (names or run_):
        raise ConfigError("name a run or at least one symptom; `oven-controller kg diagnose --help` has examples")
    is_run = len(names) == 1 and (names[0] in runs or Path(names[0]).exists())
    if source := run_ or (names[0] if is_run else None):
        if phase is not None:
            raise ConfigError(f"--phase is {phase}, but {source} is a run, whose log says what it trains; omit --phase")
        return _diagnose_run(source, graph, max_remedies, as_json)
    parsed_symptoms = tuple(_parse_symptom(graph, text, runs) for text in names)
    request = DiagnoseRequest(phase=phase or "", symptoms=parsed_symptoms, k=max_remedies)
    diagnosis = diagnose(graph, request)
    print(diagnosis.model_dump_json(indent=1) if as_json else "\n".join(_diagnosis_lines(graph, diagnosis)))
    return 0


def _diagnose_run(source: str, graph: KnowledgeGraph, max_remedies: int, as_json: bool) -> int:
    """Print the run's findings, and the graph's remedies for their causes."""
    with open_log(source) as log:
        record = read_record(log.events(), log.columns)
    findings = find_findings(record)
    diagnosis = explain_findings(findings, record, max_remedies, graph)
    fields = {
        "run": log.run,
        "findings": [finding.model_dump() for finding in findings],
        "graph": diagnosis.model_dump(mode="json") if diagnosis else None,
    }
    graph_lines = _diagnosis_lines(graph, diagnosis) if diagnosis else []
    lines = [line for text in finding_lines(findings, record) for line in wrapped(text)]
    print_result(as_json, fields, [*lines, *graph_lines])
    return 0


def _parse_symptom(graph: KnowledgeGraph, text: str, runs: Sequence[str]) -> Symptom:
    """Parse `id` or `id=severity`. Raises ConfigError, and UnknownNameError, which may suggest one of the `runs`."""
    symptom, _, severity = text.partition("=")
    known_symptoms = [node.id for node in graph.nodes_of_kind("symptom")]
    if symptom not in known_symptoms:
        raise UnknownNameError("symptom or run", symptom, [*known_symptoms, *runs])
    try:
        return Symptom.model_validate({"id": symptom, "severity": severity or 1.0})
    except ValueError:
        raise ConfigError(
            f"{text}: the severity {severity!r} is not a number from 0 to 1; write e.g. {symptom}=0.5"
        ) from None


def _diagnosis_lines(graph: KnowledgeGraph, diagnosis: Diagnosis) -> list[str]:
    lines = ["most likely causes (p only ranks them; it is not a calibrated probability)"]
    causes = diagnosis.causes[:MAX_CAUSES]
    lines += [f"  {cause.p:4.2f}  {cause.id:22} {graph.nodes[cause.id].text}" for cause in causes]
    lines.append("remedies (weight of evidence, as log-odds)")
    for remedy in diagnosis.remedies:
        changes = " and ".join(remedy.changes) or "advice for a person"
        lines.append(f"  {remedy.score:4.2f}  {remedy.id:22} {graph.nodes[remedy.id].text} [{changes}]")
        for path in remedy.paths[:MAX_PATHS]:
            evidence = f"{', '.join(path.edges)}; grade {path.grade}; {', '.join(path.sources)}"
            lines.append(f"        {path.text} ({evidence})")
    return lines


@click.command()
@graph_argument
@graph_option
@json_option
def info(file: Path | None, graph_file: Path | None, as_json: bool) -> int:
    """Show a graph's hash, the numbers of its nodes and edges, and the rules that the graph adds to a run.

    Example: oven-controller kg info my_triples.csv
    """
    path = file or graph_file  # FILE and --graph mean the same
    if path and not is_yaml(path):
        arrays = load_large_graph(path)
        lines = [json.dumps(summary_fields(arrays))] if as_json else summary_lines(arrays)
        say(*lines)
        return 0
    graph = load_unchecked(path)
    graph_info = graph.info()
    if as_json:
        print(graph_info.model_dump_json(indent=1))
        return 0
    print(f"graph {graph_info.graph}")
    print(_counts_line("nodes", graph_info.nodes))
    print(_counts_line("edges", graph_info.edges))
    print(_counts_line("grades", graph_info.grades))
    print(f"{'isolated':14}{graph_info.isolated:>4.0%}")
    if graph_info.contradictions:
        print("never applied at the same time: " + "; ".join(" and ".join(pair) for pair in graph_info.contradictions))
    if graph_info.requirements:
        print("requirements: " + "; ".join(f"{change} needs {need}" for change, need in graph_info.requirements))
    if symptoms := graph.nodes_of_kind("symptom"):
        print("symptoms: " + ", ".join(node.id for node in symptoms))
    return 0


def _counts_line(label: str, counts: Mapping[str, int]) -> str:
    details = ", ".join(f"{count} {name or 'unspecified'}" for name, count in counts.items())
    return f"{label:14}{sum(counts.values()):>4}  {details}"


@click.command()
@graph_argument
def lint_graph(file: Path | None) -> int:
    """Check a graph for faults. Exit code 1 if it has any.

    Example: oven-controller kg lint my_graph.yaml
    """
    if file and not is_yaml(file):
        arrays = load_large_graph(file)
        from oven_kg.arrays.inspection import find_faults

        faults, nodes, edges = find_faults(arrays), arrays.nodes, arrays.edges
    else:
        records = read_graph(file)
        faults, nodes, edges = lint(records), len(records.nodes), len(records.edges)
    say(*faults[:MAX_FAULTS])
    if len(faults) > MAX_FAULTS:
        print(f"and {len(faults) - MAX_FAULTS} more")
    result = f"{len(faults)} faults" if faults else "sound"
    print(f"{nodes} nodes, {edges} edges: {result}")
    return 1 if faults else 0


@click.command()
@argument("op", type=click.Choice(["neighbors", "path", "ppr", "search"]), help="The kind of query.")
@argument("node", help="A node's id; for search: words.")
@argument("to", default="", help="For path: the node at its end.")
@click.option("--relation", multiple=True, metavar="NAME", help="Follow only edges of this relation; repeatable.")
@click.option(
    "--direction",
    type=click.Choice(["both", "out", "in"]),
    default="both",
    help="Follow edges both ways, along them, or against them.",
)
@click.option("--depth", type=int, default=1, help="For neighbors: maximum distance in edges, at most 8.")
@click.option("--limit", type=int, default=20, help="Number of rows, at most 200.")
@graph_option
@json_option
def query(
    op: str,
    node: str,
    to: str,
    relation: Sequence[str],
    direction: str,
    depth: int,
    limit: int,
    graph_file: Path | None,
    as_json: bool,
) -> int:
    """Query a graph: list a node's neighbors, find a path between two nodes, rank the nodes most relevant to one node
    (ppr, personalized PageRank), or search the texts.

    Example: oven-controller kg query path weights_shrink rollback_and_lower_decay
    """
    fields = {"op": op, "node": node, "to": to, "relations": relation, "direction": direction}
    request = checked_request(GraphQuery, fields | {"depth": depth, "limit": limit})
    answer = query_graph(graph_file, "query", request, QueryAnswer)
    if as_json:
        say(*json.dumps(answer.model_dump(mode="json"), indent=1).splitlines())
        return 0
    for row in answer.rows:
        arrow = {"out": f"→ {row.relation} →", "in": f"← {row.relation} ←", "": ""}[row.towards]
        rank = f"{row.score:.4f}" if op == "ppr" else str(row.depth or "")
        say("  ".join(part for part in (rank, arrow, row.node, f"({row.kind}) {row.text}") if part))
    if answer.more:
        print(f"there are more rows; use --limit {2 * limit} to see them")
    return 0
