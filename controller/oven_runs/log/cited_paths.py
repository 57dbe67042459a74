"""Parse the knowledge graph paths that votes cite in their evidence.

Agents cite a path in this form:
"for: loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr [C001 S001; D; own-faults]". The brackets contain the ids of
the edges, the path's grade and its sources. Evidence is free text, so any other text is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.messages import Vote

Role: TypeAlias = Literal["for", "against", "chosen", ""]
ROLES: Final[tuple[Role, ...]] = ("for", "against", "chosen")
_RELATION: Final = re.compile(r" (?:←|→) ([A-Z_]+) (?:←|→) ")
_CITATION: Final = re.compile(
    r"(?P<text>.*?)(?: \[(?P<edges>[^;\]]*); (?P<grade>[^;\]]*); (?P<sources>[^\]]*)\])?", re.DOTALL
)


class CitedPath(BaseModel):
    """A path through the graph that one or more votes cite."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    role: Role = Field(description="for or against the change; chosen: why the plan was chosen; empty if not stated")
    nodes: tuple[str, ...] = Field(description="in reading order: symptom, cause, remedy")
    relations: tuple[str, ...] = Field(description="relations between consecutive nodes")
    backwards: bool = Field(description="whether relations lead from the later node to the earlier: A ← CAUSES ← B")
    remark: str = Field(default="", description="the text in parentheses after the last node")
    edges: tuple[str, ...] = Field(default=(), description="the edges' ids in the graph")
    grade: str = Field(default="", description="grade of the path's weakest edge, A to D")
    sources: tuple[str, ...] = ()
    agents: tuple[str, ...] = Field(default=(), description="the agents whose votes cite the path")

    @property
    def text(self) -> str:
        """Format the path on one line."""
        arrow = "←" if self.backwards else "→"
        parts = [self.nodes[0]]
        for relation, node in zip(self.relations, self.nodes[1:], strict=True):
            parts.append(f"{arrow} {relation} {arrow} {node}")
        return " ".join(parts)

    def diagram(self) -> list[str]:
        """Format the path with one line per node and one line for each arrow, with its relation and edge."""
        arrow = "↑" if self.backwards else "↓"
        lines = [self.nodes[0]]
        for i, (relation, node) in enumerate(zip(self.relations, self.nodes[1:], strict=True)):
            edge = f" {self.edges[i]}" if i < len(self.edges) else ""
            lines += [f"  {arrow} {relation}{edge}", node]
        if self.remark:
            lines[-1] += f" ({self.remark})"
        return lines


def parse_path(entry: str) -> CitedPath | None:
    """Parse an entry of a vote's evidence. Return None if it does not cite a path."""
    prefix, _, rest = entry.partition(": ")
    role = next((role for role in ROLES if role == prefix), "")
    match = _CITATION.fullmatch(rest if role else entry)
    assert match is not None  # the pattern matches any text
    parts = _RELATION.split(match["text"])  # nodes and relations alternate
    if len(parts) < 3:
        return None
    last, _, remark = parts[-1].partition(" (")
    return CitedPath(
        role=role,
        nodes=(*parts[:-1:2], last),
        relations=tuple(parts[1::2]),
        backwards="←" in match["text"],
        remark=remark.removesuffix(")"),
        edges=tuple((match["edges"] or "").split()),
        grade=match["grade"] or "",
        sources=tuple((match["sources"] or "").split()),
    )


def cited_paths(votes: Mapping[str, Vote]) -> tuple[CitedPath, ...]:
    """Return each path that the votes (agent → vote) cite, with the agents that cite it."""
    agents_by_path: dict[CitedPath, list[str]] = {}
    for agent, vote in sorted(votes.items()):
        for path in _distinct_paths(vote.evidence):
            agents_by_path.setdefault(path, []).append(agent)
    return tuple(path.model_copy(update={"agents": tuple(agents)}) for path, agents in agents_by_path.items())


def _distinct_paths(evidence: Iterable[str]) -> Iterable[CitedPath]:
    """Return the distinct paths in a vote's evidence, in order."""
    return dict.fromkeys(path for entry in evidence if (path := parse_path(entry)) is not None)
