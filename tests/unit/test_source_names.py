"""The tables of names in docs/from-the-source.md: each name on the right can be imported or is a command."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest
from tests.support.command_line import all_commands

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "oven-controller "


def tables() -> dict[str, list[tuple[str, str]]]:
    """Return the rows (name in the source, name here) of each source."""
    page = (ROOT / "docs" / "from-the-source.md").read_text().partition("## Names in the five sources")[2]
    sections = re.split(r"^### (.*)$", page, flags=re.MULTILINE)[1:]
    rows = {}
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        cells = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
        rows[title] = [(cell[0].strip(), cell[1].strip()) for cell in cells[2:]]
    return rows


def names() -> list[str]:
    cells = [here for rows in tables().values() for _, here in rows]
    return list(dict.fromkeys(name for cell in cells for name in re.findall(r"`([^`]+)`", cell) if name[:2] != "--"))


def test_there_is_a_table_for_each_of_the_five_sources() -> None:
    assert len(tables()) == 5 and all(len(rows) >= 5 for rows in tables().values())
    assert all("`" in here for rows in tables().values() for _, here in rows), "each row names something"


@pytest.mark.parametrize("name", names())
def test_each_name_here_can_be_imported_or_is_a_command(name: str) -> None:
    if name.startswith(COMMAND):
        assert tuple(name.removeprefix(COMMAND).split()) in {words for words, _ in all_commands()}
    else:
        pkgutil.resolve_name(name)


def test_the_supervisor_runs_under_the_name_of_its_users() -> None:
    from oven_agents.supervisor import run
    from oven_llm.supervisor import orchestrator

    assert run is orchestrator.run
