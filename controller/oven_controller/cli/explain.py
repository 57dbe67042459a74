"""`explain`: one decision in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import HERE, Json, from_anywhere
from oven_controller.cli.options import RunOption as Run
from oven_controller.runs.endpoint import Endpoint

if TYPE_CHECKING:
    from oven_controller.log.explanation import Explanation
    from oven_controller.log.trial_findings import Trial
    from oven_controller.protocol.messages import LogMessage, TallyLine


def register(app: typer.Typer) -> None:
    app.command()(from_anywhere(explain))


def explain(
    decision: Annotated[
        str,
        typer.Argument(
            help="A decision's or a ballot's id; or an actuator, for the newest decision on it that passed.",
            autocompletion=completion.knobs,
        ),
    ],
    run: Run = None,
    as_json: Json = False,
    at: Endpoint = HERE,
) -> None:
    """Explain a decision: who wanted it and why, what a trial measured, what was read back, and its outcome.

    Example: oven-controller explain optimizer.lr_scale
    """
    import asyncio

    from oven_controller.errors import UnknownNameError
    from oven_controller.log.explanation import Explanations
    from oven_controller.runs.run_finder import find_run
    from oven_controller.terminal_text import say

    access, seen = find_run(run, at), Explanations()

    async def read() -> None:
        async for event in access.events():
            seen.feed(event)

    asyncio.run(read())
    found = seen.find(decision)
    if found is None:
        raise UnknownNameError("decision", decision, {d.actuator for d in seen.decisions.values()})
    if as_json:
        print(json.dumps(plain(found)))
    else:
        say(*lines(found))


def plain(found: Explanation) -> dict[str, Any]:
    """The messages as they are in the log, None where there is none, and the trial's finding in words."""
    parts: dict[str, LogMessage | None] = {"decision": found.decision, "receipt": found.receipt}
    parts |= {"outcome": found.outcome, "later": found.later, "announced": found.announced}
    told: dict[str, Any] = {name: part and part.model_dump(mode="json") for name, part in parts.items()}
    told["injected"] = [one.model_dump(mode="json") for one in found.injected]
    trial = found.trial
    if trial is None:
        return told | {"trial": None}
    return told | {
        "trial": {
            "started": trial.started.model_dump(mode="json"),
            "ended": trial.ended and trial.ended.model_dump(mode="json"),
            "arm": found.arm,
            "finding": trial.finding(found.arm),
        }
    }


def lines(found: Explanation) -> list[str]:
    """The same in words, a fact a line."""
    from oven_controller.log.announcement_text import announced, injected
    from oven_controller.log.run_summary import text
    from oven_controller.stack.line_output import outcome

    decision, receipt = found.decision, found.receipt
    change = f"{text(decision.before)} → {text(decision.value)}"
    out = [
        f"{decision.actuator} {change}: {decision.verdict} at tick {decision.tick} (decision {decision.id})",
        f"why: {decision.reason}",
    ]
    if found.announced is not None:
        out.append(f"before it: the learner {announced(found.announced)}")
    if found.trial is not None:
        out += trial_lines(found.trial, found.arm)
    if receipt is not None:
        why = f": {receipt.reason}" if receipt.reason else ""
        values = f"{text(receipt.before)} → {text(receipt.after)}"
        out.append(f"receipt: {receipt.status}, {values}, read back at step {receipt.step}{why}")
    elif decision.verdict in ("adopted", "tried"):
        out.append("receipt: none yet")
    if found.later is not None:
        out.append(f"later: {found.later.status} at step {found.later.step}: {found.later.reason}")
    if found.outcome is not None:
        out.append(f"outcome: {outcome(found.outcome)}")
    out += [f"beside it: {injected(one)}" for one in found.injected]
    out += [_voter(line) for line in decision.tally if line.stance != "silent"]
    silent = [line.agent for line in decision.tally if line.stance == "silent"]
    return [*out, f"silent: {', '.join(silent)}"] if silent else out


def trial_lines(trial: Trial, arm: int) -> list[str]:
    """What a trial measured, arm by arm, and what it took."""
    from oven_controller.log.trial_findings import changes

    out = [f"trial {trial.started.id}: {trial.finding(arm)}"]
    readings = trial.ended.arms if trial.ended is not None else ()
    for index, (tried, reading) in enumerate(zip(trial.started.arms, readings, strict=False)):
        parts = []
        if reading.mean is not None:
            error = f" ± {reading.error:.2g}" if reading.error is not None else ""
            parts.append(f"{trial.started.reading} {reading.mean:.4g}{error} over {reading.examples} examples")
        if difference := trial.difference(index):
            parts.append(f"{difference} against the control")
        parts += [reading.reason] if reading.reason else []
        parts += ["kept"] if trial.kept(index) else []
        out.append(f"  arm {index}, {changes(tried)}: {'; '.join(parts)}")
    return [*out, f"  {trial.terms()}", *([f"  {cost}"] if (cost := trial.cost()) else [])]


def _voter(line: TallyLine) -> str:
    from oven_controller.log.run_summary import text

    value = f" {text(line.value)}" if line.value is not None else ""
    mark = ", a shadow" if line.shadow else ", a newcomer" if line.newcomer else ""
    why = f": {line.rationale}" if line.rationale else ""
    return f"{line.agent}: {line.stance}{value} at {line.confidence:.2f}, weight {line.weight:.3g}{mark}{why}"
