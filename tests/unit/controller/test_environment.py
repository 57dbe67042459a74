"""The table of environment variables: it has every one that the sources name, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from oven_runs.settings.environment import VARIABLES

ROOT = Path(__file__).parents[3]
READ = ("controller", "learner", "agents", "kg", "tui", "bench", "examples", "docker")
ENDINGS = {".py", ".mjs", ".yaml", ".yml", ""}
TABLE = "controller/oven_runs/settings/environment.py"
PREFIXES = tuple(one.name for one in VARIABLES if one.name.endswith("_"))


def named() -> dict[str, Path]:
    """Every variable of ours that a source names, with a file that does."""
    found = {}
    for folder in READ:
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT).parts
            if path.suffix not in ENDINGS or path == ROOT / TABLE or "node_modules" in inside:
                continue
            if path.is_file():
                for name in re.findall(r"\bOVEN_[A-Z][A-Z0-9_]*", path.read_text(errors="replace")):
                    found[next((prefix for prefix in PREFIXES if name.startswith(prefix)), name)] = path
    return found


def test_the_table_has_exactly_the_variables_in_the_sources() -> None:
    found, listed = named(), {one.name for one in VARIABLES}
    missing = {name: str(path.relative_to(ROOT)) for name, path in found.items() if name not in listed}
    assert not missing, f"describe them in {TABLE}"
    assert listed == set(found) and len(found) > 15
