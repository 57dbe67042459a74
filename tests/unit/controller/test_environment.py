"""docs/settings.md describes every environment variable of ours that the sources name, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
READ = ("controller", "learner", "agents", "kg", "tui", "bench", "examples", "docker")
ENDINGS = {".py", ".mjs", ".yaml", ".yml", ""}
PREFIX = "OVEN_SET_"


def named() -> dict[str, Path]:
    """Every variable of ours that a source names, with a file that does."""
    variables = {}
    for folder in READ:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in ENDINGS and "node_modules" not in path.relative_to(ROOT).parts:
                for name in re.findall(r"\bOVEN_[A-Z][A-Z0-9_]*", path.read_text(errors="replace")):
                    variables[PREFIX if name.startswith(PREFIX) else name] = path
    return variables


def test_the_docs_describe_exactly_the_variables_in_the_sources() -> None:
    table = set(re.findall(r"^\| `(OVEN_[A-Z0-9_]+)…?` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE))
    variables = named()
    missing = {name: str(path.relative_to(ROOT)) for name, path in variables.items() if name not in table}
    assert not missing, "describe them in docs/settings.md"
    assert table == set(variables) and len(table) > 15
