"""`explain`: one decision in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import HERE, Json, from_anywhere
from oven_controller.cli.options import RunOption as Run
from oven_runs.access.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oven_core.protocol.messages import Decision, Vote
    from oven_runs.access.run_access import RunAccess
    from oven_runs.log.explanation import Explanation
    from oven_runs.log.other_rules import OtherRuling


@from_anywhere
def explain(
    decision: Annotated[
        str,
        typer.Argument(
            help="A decision's or a ballot's id, or how it begins; or an actuator, for the newest decision on it that "
            "passed.",
            autocompletion=completion.decisions,
        ),
    ],
    run: Run = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="rules.KEY=VALUE", help="Also say what it would have been with this rule; repeatable."
        ),
    ] = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Explain a decision: who voted how and why, the knowledge graph's path, guardrails, the forecast, what
    was read back, and its outcome.

    Example: oven-controller explain optimizer.lr_scale

    Example: oven-controller explain 412-00 --set rules.majority=0.5
    """
    import asyncio

    from oven_core.terminal_text import say
    from oven_runs.access.run_finder import find_run
    from oven_runs.settings.resolution import rules_set

    rules, access = rules_set(sets or ()), find_run(run, at)
    found, other = asyncio.run(_read(access, decision, rules))
    if as_json:
        from oven_runs.log.explanation_report import report

        print(report(access.run, found, other).model_dump_json(ensure_ascii=True))
    else:
        say(*lines(found), *(other.lines() if other is not None else ()))


async def _read(access: RunAccess, name: str, rules: dict[str, Any]) -> tuple[Explanation, OtherRuling | None]:
    from oven_core.errors import UnknownNameError
    from oven_runs.access.other_ruling import other_ruling
    from oven_runs.log.explanation import Explanations

    seen = Explanations()
    async for event in access.events():
        seen.feed(event)
    found = seen.find(name)
    if found is None:
        raise UnknownNameError("decision", name, {one.decision.actuator for one in seen.by_id.values()})
    return found, await other_ruling(access, found.decision, rules) if rules else None


def lines(found: Explanation) -> list[str]:
    """The same in words, a fact a line."""
    from oven_controller.stack.line_output import outcome
    from oven_runs.log.announcement_text import announced, injected
    from oven_runs.log.cited_paths import cited_paths
    from oven_runs.log.run_summary import text

    decision, receipt = found.decision, found.receipt
    change = f"{text(decision.before)} → {text(decision.value)}"
    where = f"at tick {decision.tick} (step {found.step}, decision {decision.id})"
    out = [f"{decision.actuator} {change}: {decision.verdict} {where}", f"why: {decision.reason}"]
    if found.operator:
        out.insert(1, f"asked for by the operator {found.operator}")
    if found.announced is not None:
        out.append(f"before it: the learner {announced(found.announced)}")
    if decision.target and decision.expected_change:
        out.append(f"forecast: {decision.target} {decision.expected_change:+.3g} within {decision.horizon} ticks")
    if receipt is not None:
        why = f": {receipt.reason}" if receipt.reason else ""
        values = f"{text(receipt.before)} → {text(receipt.after)}"
        out.append(f"receipt: {receipt.status}, {values}, read back at step {receipt.step}{why}")
    elif decision.verdict == "adopted":
        out.append("receipt: none yet")
    elif decision.verdict == "advised":
        approve = f"`oven-controller approve {decision.id}` carries it out until tick {decision.expires_at_tick}"
        out.append(f"approved: decision {found.approved_by}" if found.approved_by else f"not approved yet: {approve}")
    if found.later is not None:
        out.append(f"later: {found.later.status} at step {found.later.step}: {found.later.reason}")
    if found.outcome is not None:
        out.append(f"outcome: {outcome(found.outcome)}")
    out += [f"beside it: {injected(one)}" for one in found.injected]
    out += voters(decision, found.votes)
    for path in cited_paths(found.votes):
        graded = f", grade {path.grade}" if path.grade else ""
        sources = f" ({', '.join(path.sources)})" if path.sources else ""
        role = {"against": "against it", "chosen": "why this plan"}.get(path.role, "for it")
        out.append(f"the knowledge graph {role}, cited by {', '.join(path.agents)}{graded}{sources}:")
        out += [f"    {line}" for line in path.drawn()]
    return out


def voters(decision: Decision, votes: Mapping[str, Vote]) -> list[str]:
    """Each voter with its weight, its reason in full and its forecast; then who was silent."""
    from oven_runs.log.run_summary import text

    out = []
    for line in decision.tally:
        if line.stance == "silent":
            continue
        vote = votes.get(line.agent)
        value = f" {text(line.value)}" if line.value is not None else ""
        mark = ", a shadow" if line.shadow else ", a newcomer" if line.newcomer else ""
        said = f"{line.agent}: {line.stance}{value} at {line.confidence:.2f}, weight {line.weight:.3g}{mark}"
        why = vote.rationale if vote is not None else line.rationale
        if vote is not None and vote.target:
            said += f", expects {vote.target} {vote.expected_change:+.3g} within {vote.horizon} ticks"
        out.append(said + (f": {why}" if why else ""))
    silent = [line.agent for line in decision.tally if line.stance == "silent"]
    return [*out, f"silent: {', '.join(silent)}"] if silent else out
