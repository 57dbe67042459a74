"""A picture of a path through the knowledge graph: symptom, cause and remedy in boxes, with their relations."""

from __future__ import annotations

from rich.cells import cell_len

from oven_core.terminal_text import clean
from oven_runs.log.cited_paths import CitedPath
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import clip, wrapped

ROLES = {"against": ("against", "bad"), "chosen": ("why this plan", "title"), "for": ("for", "good"), "": ("", "dim")}
"""Role of a path → its name, kind of text."""
ARM = 3
"""Cells of line on either side of a relation's name."""

Rows = list[list[Run]]


def picture(path: CitedPath, width: int) -> Rows:
    """Return the boxes in one line if they fit, otherwise below one another, with the path's sources below them."""
    drawn = _across(path) if _wide(path) <= width else _down(path)
    return [*drawn, *_ground(path, width)]


def _arms(path: CitedPath) -> tuple[str, str]:
    """Return the parts before and after a relation's name. The arrow shows which node has the effect."""
    line = "─" * ARM
    return (f"◂{line} ", f" {line}─") if path.backwards else (f"─{line} ", f" {line}▸")


def _words(relation: str) -> str:
    return relation.lower().replace("_", " ")


def _wide(path: CitedPath) -> int:
    boxes = sum(cell_len(node) + 4 for node in path.nodes)
    return boxes + sum(2 * ARM + 4 + cell_len(_words(relation)) for relation in path.relations)


def _kinds(path: CitedPath) -> list[str]:
    """Return the kind of text of each node's name. The remedy stands out."""
    return ["text"] * (len(path.nodes) - 1) + ["change"]


def _across(path: CitedPath) -> Rows:
    top: list[Run] = []
    middle: list[Run] = []
    bottom: list[Run] = []
    before, behind = _arms(path)
    for index, (node, kind) in enumerate(zip(path.nodes, _kinds(path), strict=True)):
        if index:
            arm = f"{before}{_words(path.relations[index - 1])}{behind}"
            edge = path.edges[index - 1] if index <= len(path.edges) else ""
            middle.append((arm, "line"))
            top.append((" " * cell_len(arm), "blank"))
            bottom.append((clip(edge, cell_len(arm)).center(cell_len(arm)), "dim"))
        line = "─" * (cell_len(node) + 2)
        top.append((f"╭{line}╮", "dim"))
        middle += [("│ ", "dim"), (node, kind), (" │", "dim")]
        bottom.append((f"╰{line}╯", "dim"))
    return [top, middle, bottom]


def _down(path: CitedPath) -> Rows:
    arrow = "▴" if path.backwards else "▾"
    rows: Rows = []
    for index, (node, kind) in enumerate(zip(path.nodes, _kinds(path), strict=True)):
        if index:
            edge = path.edges[index - 1] if index <= len(path.edges) else ""
            rows.append([(f"  {arrow} {_words(path.relations[index - 1])}", "line"), (f"  {edge}", "dim")])
        rows.append([(node, kind)])
    return rows


def _ground(path: CitedPath, width: int) -> Rows:
    role, kind = ROLES[path.role]
    parts = [f"grade {path.grade}" if path.grade else "", ", ".join(path.sources), path.remark]
    cited = f"cited by {', '.join(path.agents)}" if path.agents else ""
    words = "; ".join(part for part in (*parts, cited) if part)
    head: list[Run] = [(f"{role}: ", kind)] if role else []
    first, *more = wrapped(clean(words), max(8, width - cell_len(role) - 2)) or [""]
    return [[*head, (first, "dim")], *([("  " + line, "dim")] for line in more)]
