"""The costs of a run's remote judges so far, for `status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oven_runs.home.model_spend import JUDGES, Spend, read_spend
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.run_summary import RunSummary


def judge_costs(folder: RunFolder, view: RunSummary) -> dict[str, Any]:
    """Return US dollars, tokens and calls, in total and by member, and the caps; empty if no judge was paid.

    The members' own records in the run's folder include answers that came too late. If the members run elsewhere and
    there are no records, the figures come from the log, and `calls` is None. Raises ConfigError for damaged records.
    """
    accounts = read_spend(folder.path, JUDGES)
    members = {account.removeprefix(f"{JUDGES}/"): spend for account, spend in accounts.items()}
    if not members and not view.judge_tokens:
        return {}
    committee = folder.earlier_settings().get("committee", {})
    caps = {name: cap for name, cap in (committee.get("budget") or {}).items() if cap is not None}
    if not members:
        return {"cost_usd": view.judge_usd, "tokens": int(view.judge_tokens), "calls": None, "budget": caps}
    total = sum(members.values(), Spend())
    return {**_fields(total), "budget": caps, "members": {name: _fields(spend) for name, spend in members.items()}}


def cost_lines(costs: Mapping[str, Any]) -> list[str]:
    """Return the costs as lines for people."""
    if not costs:
        return []
    caps = costs["budget"]
    parts = [
        f"${costs['cost_usd']:.4f}" + (f" of ${caps['usd']:g}" if "usd" in caps else ""),
        f"{costs['tokens']:,} tokens" + (f" of {caps['tokens']:,}" if "tokens" in caps else ""),
    ]
    if costs["calls"] is not None:
        parts.append(f"{costs['calls']:,} calls" + (f" of {caps['calls']:,}" if "calls" in caps else ""))
    lines = [f"judges: {', '.join(parts)}"]
    if costs.get("unanswered_calls"):
        lines.append(f"  {costs['unanswered_calls']} of the calls got no answer, and count with their maximum cost")
    if costs.get("unpriced_calls"):
        lines.append(f"  {costs['unpriced_calls']} of the calls went to models with an unknown price")
    return lines


def _fields(spend: Spend) -> dict[str, Any]:
    return {
        "cost_usd": round(spend.usd, 6),
        "tokens": spend.tokens,
        "calls": spend.calls,
        "unanswered_calls": spend.unanswered,
        "unpriced_calls": spend.unpriced,
    }
