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


def _hops(path: CitedPath) -> list[tuple[str, str, str, str]]:
    """Return each node's name and kind of text, and the relation and edge that lead to it. The remedy stands out."""
    relations = ["", *(relation.lower().replace("_", " ") for relation in path.relations)]
    kinds = ["text"] * (len(path.nodes) - 1) + ["change"]
    edges = ["", *path.edges, *[""] * len(path.nodes)]
    return list(zip(path.nodes, kinds, relations, edges, strict=False))


def _wide(path: CitedPath) -> int:
    return sum(
        cell_len(node) + 4 + (2 * ARM + 4 + cell_len(words) if words else 0) for node, _, words, _ in _hops(path)
    )


def _across(path: CitedPath) -> Rows:
    """Return boxes in a line. The arrows show which node has the effect."""
    line = "─" * ARM
    before, behind = (f"◂{line} ", f" {line}─") if path.backwards else (f"─{line} ", f" {line}▸")
    top: list[Run] = []
    middle: list[Run] = []
    bottom: list[Run] = []
    for node, kind, words, edge in _hops(path):
        if words:
            arm = f"{before}{words}{behind}"
            top.append((" " * cell_len(arm), "blank"))
            middle.append((arm, "line"))
            bottom.append((clip(edge, cell_len(arm)).center(cell_len(arm)), "dim"))
        side = "─" * (cell_len(node) + 2)
        top.append((f"╭{side}╮", "dim"))
        middle += [("│ ", "dim"), (node, kind), (" │", "dim")]
        bottom.append((f"╰{side}╯", "dim"))
    return [top, middle, bottom]


def _down(path: CitedPath) -> Rows:
    arrow = "▴" if path.backwards else "▾"
    rows: Rows = []
    for node, kind, words, edge in _hops(path):
        rows += [[(f"  {arrow} {words}", "line"), (f"  {edge}", "dim")]] if words else []
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
