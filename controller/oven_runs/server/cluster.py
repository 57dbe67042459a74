"""Configure a cluster of nats-servers for one run, with the same users on each.

Three servers keep three copies of the log (`stream_replicas`), and continue while two of them can reach each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oven_core.errors import ConfigError
from oven_runs.server.embedded_server import ServerFolder, save_conf

ROUTE_OFFSET = 2000
"""Difference between a node's peer port and its client port, as in NATS's defaults 6222 and 4222."""


@dataclass(frozen=True)
class Node:
    """A server of the cluster. `routes` are its peers' addresses, by default their hosts and route ports."""

    host: str
    port: int
    route_port: int
    routes: tuple[str, ...] = ()


def write_confs(folder: ServerFolder, nodes: Sequence[Node]) -> list[Path]:
    """Write `node-1/nats.conf` and so on, based on the folder's nats.conf. Return their paths.

    Each node stores data in a folder with its name inside the configured store. The nodes authenticate each other with
    a password in the files. A second call keeps it, because running nodes use it. Raises ConfigError if there is no
    nats.conf or the number of nodes is not 3 or 5."""
    if len(nodes) not in (3, 5):
        raise ConfigError(
            f"a cluster cannot have {len(nodes)} servers; use 3 or 5, so that it survives the loss of one"
        )
    if not folder.conf.exists():
        raise ConfigError(f"there is no {folder.conf}; `oven-controller creds server` writes one")
    base = folder.read_conf()
    password = _existing_password(folder) or secrets.token_urlsafe(24)
    paths = []
    for number, node in enumerate(nodes, 1):
        node_folder = folder.folder / f"node-{number}"
        peer_addresses = [f"{peer.host}:{peer.route_port}" for peer in nodes if peer is not node]
        conf = base | {
            "server_name": f"{base['server_name']}-{number}",
            "listen": f"{node.host}:{node.port}",
            "jetstream": base["jetstream"] | {"store_dir": f"{base['jetstream']['store_dir']}/{node_folder.name}"},
            "cluster": {
                "name": base["server_name"],
                "listen": f"{node.host}:{node.route_port}",
                "authorization": {"user": "node", "password": password, "timeout": 2},
                "routes": [f"nats://node:{password}@{address}" for address in node.routes or peer_addresses],
            },
        }
        node_folder.mkdir(parents=True, exist_ok=True)
        path = node_folder / "nats.conf"
        save_conf(path, conf)
        paths.append(path)
    return paths


def _existing_password(folder: ServerFolder) -> str:
    """Return the password in the files of an earlier call, or "" if there are none. Raises ConfigError."""
    node = ServerFolder(folder.folder / "node-1", "")
    return str(node.read_conf()["cluster"]["authorization"]["password"]) if node.conf.exists() else ""
