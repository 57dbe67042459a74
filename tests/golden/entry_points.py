"""This checkout's own entry points, with its agents under the names that the golden files know them by."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.golden.store import CHECKOUT

AGENTS_GROUP = "oven.agents"


@contextlib.contextmanager
def installed(agents: Mapping[str, str]) -> Iterator[Path]:
    """Puts a distribution with the entry points of pyproject.toml in front of the path: the first distribution of a
    name counts, whatever else is installed. `agents`: golden name → entry point of today; an agent that is not among
    them came after the recordings and is left out, since recorded receipts name decisions by their place in the log.
    Yields the folder that PYTHONPATH has to name for other processes."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    groups: dict[str, dict[str, str]] = project["entry-points"]
    today = groups[AGENTS_GROUP]
    known = {name: today[point] for name, point in agents.items() if point in today}
    groups = {group: dict(points) for group, points in groups.items()} | {AGENTS_GROUP: known}
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder) / f"oven_controller-{project['version']}.dist-info"
        metadata.mkdir()
        about = f"Metadata-Version: 2.1\nName: oven-controller\nVersion: {project['version']}\n"
        (metadata / "METADATA").write_text(about)
        lines = [
            line
            for group, points in groups.items()
            for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
        ]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        sys.path.insert(0, folder)
        try:
            yield Path(folder)
        finally:
            sys.path.remove(folder)
