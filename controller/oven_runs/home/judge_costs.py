"""What a run's remote judges have cost so far, for `status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oven_runs.home.model_spend import Spend, read_spend
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.run_summary import RunSummary


def judge_costs(folder: RunFolder, view: RunSummary) -> dict[str, Any]:
    """US dollars, tokens and calls, in all and by member, and the caps; empty for a run that no judge was paid in.

    From the members' own books in the run's folder, which know of answers that came too late, too. Where there are
    none, because the members are elsewhere, from the log: then `calls` is None. Raises ConfigError for books that
    cannot be read.
    """
    members = read_spend(folder.path)
    if not members and not view.judge_tokens:
        return {}
    committee = folder.earlier_settings().get("committee", {})
    caps = {name: cap for name, cap in (committee.get("budget") or {}).items() if cap is not None}
    if not members:
        return {"cost_usd": view.judge_usd, "tokens": int(view.judge_tokens), "calls": None, "budget": caps}
    total = sum(members.values(), Spend())
    return {**_fields(total), "budget": caps, "members": {name: _fields(spent) for name, spent in members.items()}}


def cost_lines(costs: Mapping[str, Any]) -> list[str]:
    """The same for people."""
    if not costs:
        return []
    caps = costs["budget"]
    used = [
        f"${costs['cost_usd']:.4f}" + (f" of ${caps['usd']:g}" if "usd" in caps else ""),
        f"{costs['tokens']:,} tokens" + (f" of {caps['tokens']:,}" if "tokens" in caps else ""),
    ]
    if costs["calls"] is not None:
        used.append(f"{costs['calls']:,} calls" + (f" of {caps['calls']:,}" if "calls" in caps else ""))
    lines = [f"judges: {', '.join(used)}"]
    if costs.get("unanswered_calls"):
        lines.append(f"  {costs['unanswered_calls']} of the calls were not answered, and count at their greatest cost")
    if costs.get("unpriced_calls"):
        lines.append(f"  {costs['unpriced_calls']} of the calls went to models whose price is not known")
    return lines


def _fields(spent: Spend) -> dict[str, Any]:
    return {
        "cost_usd": round(spent.usd, 6),
        "tokens": spent.tokens,
        "calls": spent.calls,
        "unanswered_calls": spent.unanswered,
        "unpriced_calls": spent.unpriced,
    }
