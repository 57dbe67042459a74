"""Shortest paths by the number of edges, by networkx's names and signatures, over `graph.csr`.

Where several are as short, the path is the one that networkx's own search comes upon first.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import networkx as nx

from oven_kg.large.networkx.csr import Csr
from oven_kg.large.networkx.own import networkx_own
from oven_kg.large.networkx.search import levels, meet

all_pairs_shortest_path = networkx_own(nx.all_pairs_shortest_path)
all_pairs_shortest_path_length = networkx_own(nx.all_pairs_shortest_path_length)


def known(csr: Csr, node: Hashable, problem: str) -> int:
    """The node's number. Raises NodeNotFound with `problem`."""
    try:
        return csr.labels.index(node)
    except KeyError:
        raise nx.NodeNotFound(problem) from None


def single_source_shortest_path_length(G: Any, source: Hashable, cutoff: float | None = None) -> dict[Any, int]:
    """Node → edges from `source`, nearest first, up to `cutoff`."""
    start = known(G.csr, source, f"Source {source} is not in G")
    return _lengths(G.csr, start, cutoff, backwards=False)


def single_target_shortest_path_length(G: Any, target: Hashable, cutoff: float | None = None) -> dict[Any, int]:
    """Node → edges to `target`, nearest first, up to `cutoff`."""
    start = known(G.csr, target, f"Target {target} is not in G")
    return _lengths(G.csr, start, cutoff, backwards=True)


def _lengths(csr: Csr, start: int, cutoff: float | None, *, backwards: bool) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for depth, (level, _) in enumerate(levels(csr.rows(backwards=backwards), len(csr), [start], cutoff)):
        found.update(dict.fromkeys(csr.labels.decode(level), depth))
    return found


def single_source_shortest_path(G: Any, source: Hashable, cutoff: float | None = None) -> dict[Any, list[Any]]:
    """Node → path from `source`, up to `cutoff` edges long."""
    return paths(G.csr, known(G.csr, source, f"Source {source} not in G"), cutoff, backwards=False)


def single_target_shortest_path(G: Any, target: Hashable, cutoff: float | None = None) -> dict[Any, list[Any]]:
    """Node → path to `target`, up to `cutoff` edges long."""
    return paths(G.csr, known(G.csr, target, f"Target {target} not in G"), cutoff, backwards=True)


def paths(csr: Csr, start: int, cutoff: float | None, *, backwards: bool) -> dict[Any, list[Any]]:
    """Node → the nodes from `start` to it; `backwards`: from it to `start`."""
    found: dict[int, list[Any]] = {}
    for level, parents in levels(csr.rows(backwards=backwards), len(csr), [start], cutoff):
        for at, name, before in zip(level.tolist(), csr.labels.decode(level), parents.tolist(), strict=True):
            way = found.get(before, [])
            found[at] = [name, *way] if backwards else [*way, name]
    return {way[0 if backwards else -1]: way for way in found.values()}


def bidirectional_shortest_path(G: Any, source: Hashable, target: Hashable) -> list[Any]:
    """Nodes of a path from `source` to `target`. Raises NetworkXNoPath."""
    csr: Csr = G.csr
    ends = [known(csr, node, f"{what} {node} is not in G") for what, node in (("Source", source), ("Target", target))]
    way = meet(csr.out, csr.into, len(csr), *ends)
    if way is None:
        raise nx.NetworkXNoPath(f"No path between {source} and {target}.")
    return csr.labels.decode(way)


def predecessor(
    G: Any,
    source: Hashable,
    target: Hashable | None = None,
    cutoff: float | None = None,
    return_seen: bool | None = None,
) -> Any:
    """Node → all that precede it on shortest paths from `source`; with `return_seen` its distance, too; of `target`
    alone where one is given."""
    csr: Csr = G.csr
    start = known(csr, source, f"Source {source} not in G")
    rows, level, depth = csr.lightest(None), [start], 0
    before: dict[int, list[int]] = {start: []}
    seen = {start: 0}
    while level:
        depth += 1
        this, level = level, []
        for node in this:
            for end in rows.ends[rows.indptr[node] : rows.indptr[node + 1]].tolist():
                if end not in seen:
                    before[end], seen[end] = [node], depth
                    level.append(end)
                elif seen[end] == depth:
                    before[end].append(node)
        if cutoff and cutoff <= depth:
            break
    names = dict(zip(before, csr.labels.decode(list(before)), strict=True))
    named = {names[node]: [names[other] for other in others] for node, others in before.items()}
    depths = {names[node]: at for node, at in seen.items()}
    if target is None:
        return (named, depths) if return_seen else named
    return (named.get(target, []), depths.get(target, -1)) if return_seen else named.get(target, [])
