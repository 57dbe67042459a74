"""A cluster of nats-servers for one run, with the same users on each: losing one ends nothing.

Three keep a log of three copies (`stream_replicas`), and continue while two of them hear each other.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_runs.server.embedded import ServerFolder

ROUTE_OFFSET = 2000
"""A node listens for its peers so far above the port for clients: 6222 beside 4222, as NATS does by default."""


@dataclass(frozen=True)
class Node:
    """One server. `routes`: how it reaches its peers, where that is not their `host` and `route_port`."""

    host: str
    port: int
    route_port: int
    routes: tuple[str, ...] = ()


def write_confs(folder: ServerFolder, nodes: Sequence[Node]) -> list[Path]:
    """`node-1/nats.conf` and so on, from the folder's own nats.conf; each node has its store beside it. They know each
    other by a password that is in the files. Raises ConfigError when there is none to go by, or for two nodes."""
    if len(nodes) not in (3, 5):
        raise ConfigError(f"a cluster of {len(nodes)} servers outlives none of them; give it 3 or 5")
    try:
        base: dict[str, Any] = json.loads(folder.conf.read_text())
    except OSError as error:
        raise ConfigError(f"there is no {folder.conf}; `oven-controller creds server` makes one") from error
    except (ValueError, RecursionError) as error:
        problem = f"{folder.conf} is not a configuration that `creds server` wrote ({reason(error)})"
        raise ConfigError(problem) from error
    password = secrets.token_urlsafe(24)
    written = []
    for number, node in enumerate(nodes, 1):
        home = folder.folder / f"node-{number}"
        others = [f"{other.host}:{other.route_port}" for other in nodes if other is not node]
        conf = base | {
            "server_name": f"{base['server_name']}-{number}",
            "listen": f"{node.host}:{node.port}",
            "jetstream": base["jetstream"] | {"store_dir": str(home / "store")},
            "cluster": {
                "name": base["server_name"],
                "listen": f"{node.host}:{node.route_port}",
                "authorization": {"user": "node", "password": password, "timeout": 2},
                "routes": [f"nats://node:{password}@{address}" for address in node.routes or others],
            },
        }
        home.mkdir(parents=True, exist_ok=True)
        path = home / "nats.conf"
        write_atomic(path, json.dumps(conf, indent=1), private=True)
        written.append(path)
    return written
