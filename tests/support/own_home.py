"""A home for a test, with this checkout's entry points regardless of what is installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from oven_controller.cli.main import run
from oven_runs.home.run_folder import Home

ROOT = Path(__file__).parents[2]


def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    metadata = tmp_path / "meta" / "oven_controller-0.dist-info"
    metadata.mkdir(parents=True)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    text = "".join(
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in values.items()) for group, values in groups.items()
    )
    (metadata / "entry_points.txt").write_text(text)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: oven-controller\nVersion: 0\n")
    monkeypatch.syspath_prepend(str(metadata.parent))
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


def invoke(*args: str) -> int:
    """Run the command line and return its exit code."""
    with pytest.raises(SystemExit) as caught:
        run(args)
    return int(caught.value.code or 0)
