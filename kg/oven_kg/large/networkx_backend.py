"""The networkx backend `oven_csr`: functions of networkx by their names, over the arrays of a `LargeGraph` uncopied, or
over any other graph of networkx's, converted.

networkx finds it by the entry points `networkx.backends` and `networkx.backend_info`. It calls here what is named by
`backend="oven_csr"`, and whatever is called with a graph that is marked as this backend's.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from oven_kg.large.networkx.breadth_first import (
    ancestors,
    bfs_edges,
    bfs_layers,
    bfs_predecessors,
    bfs_successors,
    bfs_tree,
    descendants,
    descendants_at_distance,
    generic_bfs_edges,
)
from oven_kg.large.networkx.components import (
    connected_components,
    is_connected,
    is_strongly_connected,
    is_weakly_connected,
    node_connected_component,
    number_connected_components,
    number_strongly_connected_components,
    number_weakly_connected_components,
    strongly_connected_components,
    weakly_connected_components,
)
from oven_kg.large.networkx.conversion import convert
from oven_kg.large.networkx.csr import BackendGraph
from oven_kg.large.networkx.degrees import (
    degree_centrality,
    in_degree_centrality,
    is_isolate,
    isolates,
    number_of_isolates,
    out_degree_centrality,
)
from oven_kg.large.networkx.ranks import pagerank
from oven_kg.large.networkx.shortest_paths import (
    all_shortest_paths,
    average_shortest_path_length,
    ego_graph,
    has_path,
    shortest_path,
    shortest_path_length,
    single_source_all_shortest_paths,
)
from oven_kg.large.networkx.unweighted import (
    all_pairs_shortest_path,
    all_pairs_shortest_path_length,
    bidirectional_shortest_path,
    predecessor,
    single_source_shortest_path,
    single_source_shortest_path_length,
    single_target_shortest_path,
    single_target_shortest_path_length,
)
from oven_kg.large.networkx.weighted import (
    all_pairs_dijkstra,
    all_pairs_dijkstra_path,
    all_pairs_dijkstra_path_length,
    bidirectional_dijkstra,
    dijkstra_path,
    dijkstra_path_length,
    dijkstra_predecessor_and_distance,
    multi_source_dijkstra,
    multi_source_dijkstra_path,
    multi_source_dijkstra_path_length,
    single_source_dijkstra,
    single_source_dijkstra_path,
    single_source_dijkstra_path_length,
)
from oven_kg.large.networkx_view import LargeGraph

__all__ = [
    "all_pairs_dijkstra",
    "all_pairs_dijkstra_path",
    "all_pairs_dijkstra_path_length",
    "all_pairs_shortest_path",
    "all_pairs_shortest_path_length",
    "all_shortest_paths",
    "ancestors",
    "average_shortest_path_length",
    "bfs_edges",
    "bfs_layers",
    "bfs_predecessors",
    "bfs_successors",
    "bfs_tree",
    "bidirectional_dijkstra",
    "bidirectional_shortest_path",
    "connected_components",
    "convert_from_nx",
    "convert_to_nx",
    "degree_centrality",
    "descendants",
    "descendants_at_distance",
    "dijkstra_path",
    "dijkstra_path_length",
    "dijkstra_predecessor_and_distance",
    "ego_graph",
    "generic_bfs_edges",
    "has_path",
    "in_degree_centrality",
    "is_connected",
    "is_isolate",
    "is_strongly_connected",
    "is_weakly_connected",
    "isolates",
    "multi_source_dijkstra",
    "multi_source_dijkstra_path",
    "multi_source_dijkstra_path_length",
    "node_connected_component",
    "number_connected_components",
    "number_of_isolates",
    "number_strongly_connected_components",
    "number_weakly_connected_components",
    "out_degree_centrality",
    "pagerank",
    "predecessor",
    "shortest_path",
    "shortest_path_length",
    "single_source_all_shortest_paths",
    "single_source_dijkstra",
    "single_source_dijkstra_path",
    "single_source_dijkstra_path_length",
    "single_source_shortest_path",
    "single_source_shortest_path_length",
    "single_target_shortest_path",
    "single_target_shortest_path_length",
    "strongly_connected_components",
    "weakly_connected_components",
]


def convert_from_nx(graph: Any, *, edge_attrs: Mapping[Hashable, Any] | None = None, **_: Any) -> Any:
    """`graph` for this backend's functions: a `LargeGraph` as it is, any other as rows of integers.

    networkx asks by `edge_attrs`, name → default, for what the function wants to know of an edge; of what else it says
    this backend makes no use. Raises NotImplementedError for edge attributes that are not numbers.
    """
    return graph.with_backend("oven_csr") if isinstance(graph, LargeGraph) else convert(graph, edge_attrs)


def convert_to_nx(result: Any, **_: Any) -> Any:
    """A graph for networkx's own functions, a `LargeGraph` uncopied; anything else as it is."""
    if isinstance(result, LargeGraph):
        return result.with_backend("networkx")
    return result.original if isinstance(result, BackendGraph) else result
