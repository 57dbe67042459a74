"""Draws a path through the knowledge graph, as boxes with symptom, cause and remedy, and the relations between them."""

from __future__ import annotations

from rich.cells import cell_len

from oven_core.terminal_text import clean
from oven_runs.log.cited_paths import CitedPath
from oven_tui.model.braille_chart import TextRun
from oven_tui.model.cell_text import clip, wrapped

ROLES = {"against": ("against", "bad"), "chosen": ("why this plan", "title"), "for": ("for", "good"), "": ("", "dim")}
"""Label and kind of text for each role of a path."""
LINE_CELLS = 3
"""Length of the lines before and after the name of a relation."""
Rows = list[list[TextRun]]


def picture(path: CitedPath, width: int) -> Rows:
    """Return the boxes in one row if they fit, or below one another, followed by the path's sources."""
    boxes = _draw_horizontal(path)
    if sum(cell_len(text) for text, _ in boxes[0]) > width:
        boxes = _draw_vertical(path)
    return [*boxes, *_list_sources(path, width)]


def _list_hops(path: CitedPath) -> list[tuple[str, str, str, str]]:
    """Return the name and kind of text of each node, and the relation and edge that lead to it."""
    hops = [(path.nodes[0], "text", "", "")]
    for index, (node, relation) in enumerate(zip(path.nodes[1:], path.relations, strict=True)):
        kind = "change" if index == len(path.relations) - 1 else "text"
        edge = path.edges[index] if index < len(path.edges) else ""
        hops.append((node, kind, relation.lower().replace("_", " "), edge))
    return hops


def _draw_horizontal(path: CitedPath) -> Rows:
    """Return the boxes in one row. The arrows point from cause to effect."""
    line = "─" * LINE_CELLS
    start, end = (f"◂{line} ", f" {line}─") if path.backwards else (f"─{line} ", f" {line}▸")
    top: list[TextRun] = []
    middle: list[TextRun] = []
    bottom: list[TextRun] = []
    for node, kind, relation, edge in _list_hops(path):
        if relation:
            arrow = f"{start}{relation}{end}"
            top.append((" " * cell_len(arrow), "blank"))
            middle.append((arrow, "line"))
            bottom.append((clip(edge, cell_len(arrow)).center(cell_len(arrow)), "dim"))
        side = "─" * (cell_len(node) + 2)
        top.append((f"╭{side}╮", "dim"))
        middle += [("│ ", "dim"), (node, kind), (" │", "dim")]
        bottom.append((f"╰{side}╯", "dim"))
    return [top, middle, bottom]


def _draw_vertical(path: CitedPath) -> Rows:
    arrow = "▴" if path.backwards else "▾"
    rows: Rows = []
    for node, kind, relation, edge in _list_hops(path):
        if relation:
            rows.append([(f"  {arrow} {relation}", "line"), (f"  {edge}", "dim")])
        rows.append([(node, kind)])
    return rows


def _list_sources(path: CitedPath, width: int) -> Rows:
    """Return the lines with the path's grade, sources and remark."""
    role, kind = ROLES[path.role]
    parts = [f"grade {path.grade}" if path.grade else "", ", ".join(path.sources), path.remark]
    cited = f"cited by {', '.join(path.agents)}" if path.agents else ""
    words = "; ".join(part for part in (*parts, cited) if part)
    head: list[TextRun] = [(f"{role}: ", kind)] if role else []
    first, *other_lines = wrapped(clean(words), max(8, width - cell_len(role) - 2))
    return [[*head, (first, "dim")], *([("  " + line, "dim")] for line in other_lines)]
