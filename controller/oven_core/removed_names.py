"""Names that were removed from the project, and messages with the last git tag that still has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TAG: Final = "evidence-1"
COMMIT: Final = "bd5379d1453e678330abff41fc609c67028186e7"
"""The commit that the tag names, for clones without tags."""

_NAMES: Final = {
    "bench": (
        "aggregation alerts arm-comparison completions escalation faults hackable-judge healthy judge-bias "
        "judge-swaps keypress local-teachers loop-trials motion notifications oracle oracle-step outage "
        "overlap pairs questions replay reputation short-horizon source-swarm supervised-run supervisor swaps "
        "telemetry token-prior trace-pairs trace-replay trials"
    ),
    "command of kg": "learn",
    "command of supervise": "analyze ask data grid",
    "command of traces": "ab cost gate pairs replay",
    "format of graphs": "causenet gexf graphrag neo4j-csv neo4j-jsonl nquads trig",
    "setting": (
        "author.enabled rules.control_share rules.sure_confidence rules.trial_cooldown rules.trial_margin "
        "rules.trial_share rules.trial_steps rules.trials"
    ),
    "task": "qasper stdlib",
}
REMOVED: Final[Mapping[str, frozenset[str]]] = {kind: frozenset(names.split()) for kind, names in _NAMES.items()}
"""Kind of name, as in UnknownNameError → the removed names of that kind."""


def removal_message(kind: str, name: str) -> str | None:
    """Return a sentence about a removed name and the tag that still has it, or None if it was not removed."""
    if name not in REMOVED.get(kind, ()):
        return None
    is_subcommand = kind.startswith("command of ")
    subject = f"`{kind.removeprefix('command of ')} {name}`" if is_subcommand else f"the {kind} {name!r}"
    return f"{subject} was removed; check out the tag {TAG} (commit {COMMIT[:12]}) to use it"


def removed_content_message(content: str) -> str:
    """Return a sentence about a log with content that this version cannot replay, for example "trials"."""
    return f"this log has {content}, which were removed; check out the tag {TAG} (commit {COMMIT[:12]}) to replay it"
