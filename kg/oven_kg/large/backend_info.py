"""What networkx is told of the backend `oven_csr` when it is imported, by everybody: this imports nothing."""

__all__ = ["get_info"]


def get_info() -> dict[str, object]:
    """networkx's entry point `networkx.backend_info`: names, and what differs from networkx's own."""
    return {
        "backend_name": "oven_csr",
        "project": "oven-controller",
        "package": "oven_kg",
        "short_summary": "Large graphs as memory-mapped arrays, uncopied.",
        "functions": {
            name: {"additional_docs": notes} if notes else {}
            for notes, names in FUNCTIONS.items()
            for name in names.split()
        },
    }


FUNCTIONS = {
    "": """
        ancestors bfs_edges bfs_predecessors bfs_successors bfs_tree bidirectional_shortest_path connected_components
        degree_centrality descendants descendants_at_distance generic_bfs_edges has_path in_degree_centrality
        is_connected is_isolate is_strongly_connected is_weakly_connected isolates node_connected_component
        number_connected_components number_of_isolates number_strongly_connected_components
        number_weakly_connected_components out_degree_centrality strongly_connected_components predecessor
        single_source_shortest_path single_source_shortest_path_length single_target_shortest_path
        single_target_shortest_path_length all_pairs_shortest_path all_pairs_shortest_path_length
        weakly_connected_components
    """,
    "`tol` bounds the change of all ranks together, and not N times it.": "pagerank",
    "Sources come in the order in which they are given.": "bfs_layers",
    "By undirected= with distance= it is networkx's alone.": "ego_graph",
    "`weight` is an attribute's name; finite numbers. By Dijkstra's method only.": """
        all_shortest_paths average_shortest_path_length shortest_path shortest_path_length
        single_source_all_shortest_paths
    """,
    "`weight` is an attribute's name; finite numbers.": """
        all_pairs_dijkstra all_pairs_dijkstra_path all_pairs_dijkstra_path_length bidirectional_dijkstra dijkstra_path
        dijkstra_path_length dijkstra_predecessor_and_distance multi_source_dijkstra multi_source_dijkstra_path
        multi_source_dijkstra_path_length single_source_dijkstra single_source_dijkstra_path
        single_source_dijkstra_path_length
    """,
}
"""Note on what differs → the functions it holds of."""
