"""The `explain` command: explain one decision in words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import click

from oven_controller.cli import completion
from oven_controller.cli.options import (
    DEFAULT_RUN,
    argument,
    json_option,
    print_result,
    remote_options,
    rules_option,
    run_argument,
)
from oven_core.protocol.messages import Decision, Vote
from oven_core.security.signing import OPERATOR
from oven_runs.access.decision_explanations import explain_decision
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_finder import find_run
from oven_runs.log.announcement_text import describe_actuator, describe_prompts
from oven_runs.log.cited_paths import cited_paths
from oven_runs.log.explanation import Explanation
from oven_runs.log.explanation_report import report
from oven_runs.log.run_summary import format_value, verdict_text


@click.command()
@argument(
    "decision",
    shell_complete=completion.decisions,
    help="The id of a decision or ballot, or the start of it. An actuator selects its newest decision that passed.",
)
@run_argument(DEFAULT_RUN)
@rules_option
@json_option
@remote_options
def explain(decision: str, run: str | None, overrides: Sequence[str], as_json: bool, endpoint: Endpoint) -> None:
    """Explain a decision: the votes and their reasons, the knowledge graph's paths, the guardrails, the forecast, the
    value that was read back, and the outcome.

    Example: oven-controller explain optimizer.lr_scale

    Example: oven-controller explain 412-00 --set rules.majority=0.5
    """
    rules = {}
    if overrides:
        from oven_runs.settings.resolution import rules_from_sets

        rules = rules_from_sets(overrides)
    access = find_run(run, endpoint)
    explanation, alternative = asyncio.run(explain_decision(access, decision, rules))
    lines = [*explanation_lines(explanation), *(alternative.lines() if alternative is not None else ())]
    print_result(as_json, report(access.run, explanation, alternative), lines)


def explanation_lines(explanation: Explanation) -> list[str]:
    """Return the explanation as text, one fact per line."""
    from oven_controller.stack.line_output import outcome_text

    decision, receipt = explanation.decision, explanation.receipt
    change = f"{format_value(decision.before)} → {format_value(decision.value)}"
    position = f"at tick {decision.tick} (step {explanation.step}, decision {decision.id})"
    lines = [
        f"{decision.actuator} {change}: {verdict_text(decision.verdict, decision.reason)} {position}",
        f"why: {decision.reason}",
    ]
    if explanation.operator:
        requester = "the operator" if explanation.operator == OPERATOR else f"operator {explanation.operator}"
        lines.insert(1, f"requested by {requester}")
    if explanation.announced is not None:
        lines.append(f"earlier: the learner {describe_actuator(explanation.announced)}")
    if decision.target and decision.expected_change:
        lines.append(f"forecast: {decision.target} {decision.expected_change:+.3g} within {decision.horizon} ticks")
    if receipt is not None:
        reason = f": {receipt.reason}" if receipt.reason else ""
        values = f"{format_value(receipt.before)} → {format_value(receipt.after)}"
        lines.append(f"receipt: {receipt.status}, {values}, read back at step {receipt.step}{reason}")
    elif decision.verdict == "adopted":
        lines.append("receipt: none yet")
    elif decision.verdict == "advised" and explanation.approved_by:
        lines.append(f"approved: decision {explanation.approved_by}")
    elif decision.verdict == "advised":
        command = f"`oven-controller approve {decision.id}`"
        lines.append(f"not approved yet: {command} applies it until tick {decision.expires_at_tick}")
    if (later := explanation.later_receipt) is not None:
        lines.append(f"later: {later.status} at step {later.step}: {later.reason}")
    if explanation.outcome is not None:
        lines.append(f"outcome: {outcome_text(explanation.outcome)}")
    lines += [f"also: {describe_prompts(prompts)}" for prompts in explanation.injected]
    lines += vote_lines(decision, explanation.votes)
    for path in cited_paths(explanation.votes):
        grade = f", grade {path.grade}" if path.grade else ""
        sources = f" ({', '.join(path.sources)})" if path.sources else ""
        role = {"against": "against it", "chosen": "for this plan"}.get(path.role, "for it")
        lines.append(f"knowledge graph {role}, cited by {', '.join(path.agents)}{grade}{sources}:")
        lines += [f"    {line}" for line in path.diagram()]
    return lines


def vote_lines(decision: Decision, votes: Mapping[str, Vote]) -> list[str]:
    """Return one line per vote with its weight, forecast and full reason, and one with the agents that did not vote."""
    lines = []
    for entry in decision.tally:
        if entry.stance == "silent":
            continue
        vote = votes.get(entry.agent)
        value = f" {format_value(entry.value)}" if entry.value is not None else ""
        status = ", shadow" if entry.shadow else ", newcomer" if entry.newcomer else ""
        line = f"{entry.agent}: {entry.stance}{value} at {entry.confidence:.2f}, weight {entry.weight:.3g}{status}"
        rationale = vote.rationale if vote is not None else entry.rationale
        if vote is not None and vote.target:
            line += f", expects {vote.target} {vote.expected_change:+.3g} within {vote.horizon} ticks"
        lines.append(line + (f": {rationale}" if rationale else ""))
    silent_agents = [entry.agent for entry in decision.tally if entry.stance == "silent"]
    return [*lines, f"silent: {', '.join(silent_agents)}"] if silent_agents else lines
