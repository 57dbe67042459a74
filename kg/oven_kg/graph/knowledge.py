"""A knowledge graph in memory: a frozen networkx MultiDiGraph with a hash over all its content."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property

import networkx as nx

from oven_core.protocol.graph_requests import EvidencePath, GraphInfo
from oven_kg.graph.graph_yaml import Edge, Node, Records, Source


class Knowledge:
    """Read-only. `network` has the node ids as nodes and the edge ids as keys; a contradiction, written once, is in
    it in both directions under one id.
    """

    def __init__(self, records: Records) -> None:
        self.nodes: dict[str, Node] = {node.id: node for node in records.nodes}
        self.edges: dict[str, Edge] = {edge.id: edge for edge in records.edges}
        self.sources: dict[str, Source] = {source.id: source for source in records.sources}
        network: nx.MultiDiGraph[str] = nx.MultiDiGraph()
        for node in records.nodes:
            network.add_node(node.id, kind=node.kind)
        for edge in records.edges:
            network.add_edge(edge.src, edge.dst, key=edge.id, relation=edge.relation)
            if edge.relation == "CONTRADICTS":
                network.add_edge(edge.dst, edge.src, key=edge.id, relation=edge.relation)
        self.network = nx.freeze(network)
        # Asked at every step of a run; networkx's views cost ten times as much.
        self._into: dict[tuple[str, str], list[Edge]] = {}
        self._out_of: dict[tuple[str, str], list[Edge]] = {}
        self._kinds: dict[str, list[Node]] = {}
        for src, dst, key in network.edges(keys=True):
            edge = self.edges[key]
            self._into.setdefault((dst, edge.relation), []).append(edge)
            self._out_of.setdefault((src, edge.relation), []).append(edge)
        for node in records.nodes:
            self._kinds.setdefault(node.kind, []).append(node)
        self.records = records
        self.sha = _sha(records)
        self.paths: dict[tuple[str, ...], EvidencePath] = {}
        """Edge ids → the way through them in words, made when it is first wanted; a graph has some thousand."""
        self._needs: dict[str, dict[str, tuple[Edge, ...]]] = {}

    def into(self, node: str, *relations: str) -> Iterator[Edge]:
        """Edges that end at `node`."""
        for relation in relations:
            yield from self._into.get((node, relation), ())

    def out_of(self, node: str, *relations: str) -> Iterator[Edge]:
        for relation in relations:
            yield from self._out_of.get((node, relation), ())

    def edges_out(self, node: str, relation: str) -> Sequence[Edge]:
        """Those of one relation that begin at `node`."""
        return self._out_of.get((node, relation), ())

    def of_kind(self, kind: str) -> Sequence[Node]:
        return self._kinds.get(kind, ())

    def needs(self, remedy: str) -> dict[str, tuple[Edge, ...]]:
        """Each precondition of `remedy`, those of its preconditions included, with the edges that lead to it."""
        if remedy in self._needs:
            return self._needs[remedy]
        found: dict[str, tuple[Edge, ...]] = {}
        self._needs[remedy] = found
        waiting: list[tuple[str, tuple[Edge, ...]]] = [(remedy, ())]
        for node, way in waiting:
            for edge in self.out_of(node, "REQUIRES"):
                if edge.dst not in found:
                    found[edge.dst] = (*way, edge)
                    waiting.append((edge.dst, found[edge.dst]))
        return found

    @cached_property
    def requirements(self) -> dict[str, dict[str, tuple[Edge, ...]]]:
        """Change → its needs, each with the edges that say so.

        A need binds a change only if every remedy that consists of this change alone has it: another remedy may take
        the same knob for another reason, and a remedy of several changes says nothing of one of them.
        """
        found: dict[str, dict[str, tuple[Edge, ...]]] = {}
        for remedy in self.of_kind("remedy"):
            if len(remedy.changes) != 1:
                continue
            change, needs = remedy.changes[0], self.needs(remedy.id)
            had = found.get(change)
            found[change] = needs if had is None else {need: way for need, way in had.items() if need in needs}
        return {change: needs for change, needs in sorted(found.items()) if needs}

    @cached_property
    def contradictions(self) -> dict[tuple[str, str], Edge]:
        """Pairs of changes that must not be in flight together, in order, each with its edge."""
        found: dict[tuple[str, str], Edge] = {}
        for edge in self.edges.values():
            if edge.relation == "CONTRADICTS":
                for one in self.nodes[edge.src].changes:
                    for other in self.nodes[edge.dst].changes:
                        found.setdefault((min(one, other), max(one, other)), edge)
        return dict(sorted(found.items()))

    def info(self) -> GraphInfo:
        return GraphInfo(
            graph=self.sha,
            nodes=_counted(node.kind for node in self.nodes.values()),
            edges=_counted(edge.relation for edge in self.edges.values()),
            grades=_counted(edge.grade for edge in self.edges.values()),
            isolated=nx.number_of_isolates(self.network) / max(1, len(self.nodes)),
            contradictions=tuple(self.contradictions),
            requirements=tuple((change, need) for change, needs in self.requirements.items() for need in sorted(needs)),
        )


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _sha(records: Records) -> str:
    """SHA-256 over the content in canonical form: the order of the files, and how they are laid out, do not matter.

    Only sources that an edge cites count: the bibliography may know more than a graph uses.
    """
    cited = {edge.source for edge in records.edges}
    content = {
        "nodes": sorted((asdict(node) for node in records.nodes), key=lambda node: str(node["id"])),
        "edges": sorted((asdict(edge) for edge in records.edges), key=lambda edge: str(edge["id"])),
        "sources": sorted((asdict(s) for s in records.sources if s.id in cited), key=lambda source: str(source["id"])),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
