"""The graph of causes and remedies in memory, with a hash of its content."""

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


class KnowledgeGraph:
    """A read-only graph. `network` has node ids as nodes and edge ids as keys. A contradiction is written once in the
    file, and is in the network in both directions under one id."""

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
        # Agents send requests at every step of a run, and networkx's views are ten times slower than these.
        self._incoming_edges: dict[tuple[str, str], list[Edge]] = {}
        self._outgoing_edges: dict[tuple[str, str], list[Edge]] = {}
        self._nodes_by_kind: dict[str, list[Node]] = {}
        for src, dst, key in network.edges(keys=True):
            edge = self.edges[key]
            self._incoming_edges.setdefault((dst, edge.relation), []).append(edge)
            self._outgoing_edges.setdefault((src, edge.relation), []).append(edge)
        for node in records.nodes:
            self._nodes_by_kind.setdefault(node.kind, []).append(node)
        self.records = records
        self.sha = _content_hash(records)
        self.paths: dict[tuple[str, ...], EvidencePath] = {}
        """Cache of `diagnosis.evidence_path`: edge ids → path in words. A graph has a few thousand paths."""
        self._needs_cache: dict[str, dict[str, tuple[Edge, ...]]] = {}

    def edges_into(self, node: str, *relations: str) -> Iterator[Edge]:
        """Yield the edges of these relations that end at `node`."""
        for relation in relations:
            yield from self._incoming_edges.get((node, relation), ())

    def edges_out_of(self, node: str, *relations: str) -> Iterator[Edge]:
        """Yield the edges of these relations that begin at `node`."""
        for relation in relations:
            yield from self._outgoing_edges.get((node, relation), ())

    def nodes_of_kind(self, kind: str) -> Sequence[Node]:
        return self._nodes_by_kind.get(kind, ())

    def needs(self, remedy: str) -> dict[str, tuple[Edge, ...]]:
        """Return the needs of `remedy`: its direct and indirect preconditions, each with the edges that lead to it."""
        if remedy in self._needs_cache:
            return self._needs_cache[remedy]
        needs: dict[str, tuple[Edge, ...]] = {}
        queue: list[tuple[str, tuple[Edge, ...]]] = [(remedy, ())]
        for node, edges in queue:
            for edge in self.edges_out_of(node, "REQUIRES"):
                if edge.dst not in needs:
                    needs[edge.dst] = (*edges, edge)
                    queue.append((edge.dst, needs[edge.dst]))
        self._needs_cache[remedy] = needs
        return needs

    @cached_property
    def requirements(self) -> dict[str, dict[str, tuple[Edge, ...]]]:
        """Return the needs of each change, each with the edges that lead to it. Only remedies with one change count,
        because the others do not say which of their changes has the need. A need counts only if all of a change's
        remedies have it, because they may change the same actuator for different reasons."""
        requirements: dict[str, dict[str, tuple[Edge, ...]]] = {}
        for remedy in self.nodes_of_kind("remedy"):
            if len(remedy.changes) != 1:
                continue
            change, needs = remedy.changes[0], self.needs(remedy.id)
            common_needs = requirements.get(change, needs)
            requirements[change] = {need: edges for need, edges in common_needs.items() if need in needs}
        return {change: needs for change, needs in sorted(requirements.items()) if needs}

    @cached_property
    def contradictions(self) -> dict[tuple[str, str], Edge]:
        """Return the pairs of changes that must not be in flight together, in alphabetical order, with their edges."""
        pairs: dict[tuple[str, str], Edge] = {}
        for edge in self.edges.values():
            if edge.relation == "CONTRADICTS":
                for change in self.nodes[edge.src].changes:
                    for opposite in self.nodes[edge.dst].changes:
                        pairs.setdefault((min(change, opposite), max(change, opposite)), edge)
        return dict(sorted(pairs.items()))

    def info(self) -> GraphInfo:
        return GraphInfo(
            graph=self.sha,
            nodes=_counts(node.kind for node in self.nodes.values()),
            edges=_counts(edge.relation for edge in self.edges.values()),
            grades=_counts(edge.grade for edge in self.edges.values()),
            isolated=nx.number_of_isolates(self.network) / max(1, len(self.nodes)),
            contradictions=tuple(self.contradictions),
            requirements=tuple((change, need) for change, needs in self.requirements.items() for need in sorted(needs)),
        )


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _content_hash(records: Records) -> str:
    """Return the SHA-256 of the content in canonical form, so that order and layout of the files do not matter. Only
    cited sources count, because the bibliography may have more than a graph uses."""
    ids = {edge.source for edge in records.edges}
    content = {
        "nodes": sorted((asdict(node) for node in records.nodes), key=lambda node: str(node["id"])),
        "edges": sorted((asdict(edge) for edge in records.edges), key=lambda edge: str(edge["id"])),
        "sources": sorted((asdict(s) for s in records.sources if s.id in ids), key=lambda source: str(source["id"])),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
