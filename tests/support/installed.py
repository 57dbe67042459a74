"""This checkout's own entry points, whatever else is installed: the first distribution of a name on the path counts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def entry_points() -> Mapping[str, Mapping[str, str]]:
    """Return the entry points of pyproject.toml by group and name."""
    groups: dict[str, dict[str, str]] = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    return groups


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "meta" / "oven_controller-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: oven-controller\nVersion: 0\n")
    lines = []
    for group, named in entry_points().items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in named.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(metadata.parent))
