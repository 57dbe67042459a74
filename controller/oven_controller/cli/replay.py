"""The `replay` command: recompute a run's decisions from its log, to verify them or to try other rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oven_controller.cli.options import (
    DEFAULT_RUN,
    PATH,
    exit_if_incomplete,
    json_option,
    print_result,
    run_argument,
    until_option,
)
from oven_core.errors import ConfigError
from oven_core.mesh.actuator_values import show as value_text
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import names
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import LearnerMessage
from oven_core.protocol.subjects import UNSIGNED
from oven_core.security.signing import Keyring
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.message_gaps import GapFinder
from oven_runs.log.replay import Replay, ReplayReport, check_version

if TYPE_CHECKING:
    from oven_runs.log.counterfactual import ChangedMesh, Divergence

MAX_GAPS = 5
"""Maximum number of gaps in the log to print."""


@click.command()
@run_argument(DEFAULT_RUN)
@until_option
@click.option(
    "--verify/--no-verify",
    help="Verify every signature instead of only its presence, count signatures by kind, and check that no message of "
    "the learner is missing.",
)
@click.option(
    "--config", type=PATH, help="Decide with the `rules:` in this settings file instead of the run's own rules."
)
@json_option
def replay(run: str | None, until: int | None, verify: bool, config: Path | None, as_json: bool) -> None:
    """Recompute every decision from the log alone, and compare it with the logged decision byte for byte.

    With --until, also print the mesh's state at that tick. With --config, show what other rules would have decided.

    Exit code 1 if a decision differs or --verify finds missing messages, 3 if messages were lost or have not been
    appended yet. With --config it is 0.

    Example: oven-controller replay grpo-1121-0231 --until 40
    """
    folder = Home().find(run)
    if config is not None:
        from oven_runs.settings.resolution import read_rules

        asyncio.run(_replay_with_rules(folder, read_rules(config), until, verify, as_json))
        return
    log_replay, signatures = asyncio.run(_replay_log(folder, until, verify))
    report = log_replay.report()
    if not report.same and signatures.is_signed and not verify:
        # The live replicas may have ignored an event with a wrong signature, but this replay accepted it.
        log_replay, signatures = asyncio.run(_replay_log(folder, until, True))
        report = log_replay.report()
        signatures.explains_difference = report.same
    fields = vars(report) | {"same": report.same, "signatures": signatures.fields()}
    lines = _report_lines(report, signatures, until)
    if until is not None:
        fields["mesh_state"] = _mesh_report(log_replay.mesh)
        lines += _mesh_lines(fields["mesh_state"])
    gaps: list[str] = []
    if verify:
        fields["missing_messages"] = gaps = signatures.message_gaps(folder.info().ended, until)
    print_result(as_json, fields, [*lines, *gaps])
    if not report.same or gaps:
        raise click.exceptions.Exit(1)
    exit_if_incomplete(LocalRun(folder))


class Signatures:
    """Verifies the signatures of a log's events with the run's keys, and counts the results for each kind of subject.
    Also finds missing messages of the learner."""

    def __init__(self, folder: RunFolder, check: bool) -> None:
        self.keyring = Keyring(folder.pin(), check=check)
        self.is_checked = check
        self.explains_difference = False
        """Whether the decisions agree only if events with wrong signatures are ignored."""
        self.by_kind: dict[str, Counter[str]] = {}
        self._gap_finder = GapFinder()

    def count(self, event: Event) -> None:
        """Count an event that was read with the keyring."""
        if isinstance(event.body, LearnerMessage):
            self._gap_finder.feed(event.body)
        kind = names.kind(event.subject)
        if self.is_checked and kind not in UNSIGNED:
            result = "signed"
            if isinstance(event.body, Malformed):  # "no message" if its content is invalid
                result = {"signature": "wrong", "unsigned": "unsigned"}.get(event.body.fault, "no message")
            self.by_kind.setdefault(kind, Counter())[result] += 1

    def message_gaps(self, ended: str | None, until: int | None) -> list[str]:
        """Describe the learner's missing messages. `ended` is the final status in run.json. `until` is the tick at
        which reading stopped, if any."""
        gap_finder = self._gap_finder
        lines = []
        if gap_finder.missing_count:
            ranges = [f"{gap.first} to {gap.last} of incarnation {gap.incarnation}" for gap in gap_finder.gaps]
            numbers = ", ".join(ranges[:MAX_GAPS])
            numbers += f", and {len(ranges) - MAX_GAPS} more gaps" if len(ranges) > MAX_GAPS else ""
            lines.append(f"missing: {gap_finder.missing_count} messages of the learner, with the numbers {numbers}")
        if ended == "completed" and until is None and not gap_finder.has_ended:
            lines.append("missing: the run is completed, but its log has no RunEnded")
        return lines

    @property
    def is_signed(self) -> bool:
        """Whether the run's events are signed."""
        return bool(self.keyring.keys)

    def fields(self) -> dict[str, Any]:
        counts = dict(sorted(self.by_kind.items())) if self.is_signed else {}
        fields = {"signed": self.is_signed, "checked": self.is_checked, "explain_difference": self.explains_difference}
        return fields | {"by_kind": counts}

    def lines(self) -> list[str]:
        if not self.is_checked:
            return []
        if not self.is_signed:
            return ["signatures: none to check, because this run is not signed (RunStarted contains no keys)"]
        lines = ["signatures, checked:"]
        for kind, results in sorted(self.by_kind.items()):
            lines.append(f"  {kind}: " + ", ".join(f"{count} {result}" for result, count in sorted(results.items())))
        if self.explains_difference:
            lines.append(
                "the decisions agree only if the events with wrong signatures are ignored, as every live replica did"
            )
        return lines


async def _replay_log(folder: RunFolder, until: int | None, verify: bool) -> tuple[Replay, Signatures]:
    log_replay, signatures = Replay(folder.run), Signatures(folder, verify)
    async for event in LocalRun(folder).events(exact=True, until=until, keyring=signatures.keyring):
        log_replay.feed(event)
        signatures.count(event)
    _check_started(folder.run, log_replay.mesh.state.started)
    return log_replay, signatures


def _check_started(run: str, has_started: bool) -> None:
    if not has_started:
        raise ConfigError(
            f"there is nothing to replay, because run {run!r} has no RunStarted in the part of its log that was read"
        )


def _report_lines(report: ReplayReport, signatures: Signatures, until: int | None) -> list[str]:
    verdict = "the same, byte for byte" if report.same else "NOT the same"
    decisions = f"{report.decisions} decisions ({report.adopted} adopted)"
    limit = "" if until is None else f" up to tick {report.tick}"
    lines = [f"{report.run}{limit}: {report.events} events, {decisions}: {verdict}"]
    if report.counters:
        lines.append("ignored: " + ", ".join(f"{kind} {count}" for kind, count in sorted(report.counters.items())))
    differences = {"different": report.different, "missing": report.missing, "unexpected": report.unexpected}
    lines += [f"{kind}: {len(subjects)}, first {subjects[0]}" for kind, subjects in differences.items() if subjects]
    if report.first is not None:
        lines += [f"logged:   {report.first.logged}", f"computed: {report.first.computed}"]
    if report.mesh_code and report.mesh_code != mesh_code_hash():
        remedy = "" if report.same else "; replay it with the version in its RunStarted"
        lines.append(
            f"another version of the mesh made these decisions ({report.mesh_code[:12]}; this one is "
            f"{mesh_code_hash()[:12]}){remedy}"
        )
    return [*lines, *signatures.lines()]


def _mesh_report(mesh: Mesh) -> dict[str, Any]:
    """Return the mesh's state as JSON values: knobs, agents, open ballots, and adopted decisions without a receipt."""
    state = mesh.state
    return {
        "tick": state.tick,
        "effective": dict(sorted(state.effective.items())),
        "agents": {
            name: {
                "live": agent.is_live,
                "last_tick": agent.last_tick,
                "cannot_fire": agent.cannot_fire,
                "reputation": state.reputations.get(name, 1.0),
                "trusted": list(state.trust.grants(name)),
                "good_outcomes": state.trust.good_outcomes(name),
            }
            for name, agent in sorted(state.agents.items())
        },
        "open_ballots": [
            {
                "id": ballot.opened.id,
                "actuator": actuator,
                "proposal": ballot.opened.proposal,
                "opened_by": ballot.opened.opened_by,
                "closes_at_tick": ballot.opened.closes_at_tick,
                "votes": {name: cast.vote.stance for name, cast in sorted(ballot.votes.items())},
            }
            for actuator, ballot in mesh.ballots.items()
        ],
        "in_flight": [
            {"id": change.decision.id, "actuator": change.decision.actuator, "value": change.decision.value}
            for change in state.changes_in_flight()
        ],
        "adopted": state.interventions,
        "interventions_left": max(0, state.rules.max_interventions - state.interventions),
    }


def _mesh_lines(report: dict[str, Any]) -> list[str]:
    lines = [f"mesh state at tick {report['tick']}"]
    lines += [f"  {name} = {value_text(value)}" for name, value in report["effective"].items() if value is not None]
    for name, agent in report["agents"].items():
        activity = "live" if agent["live"] else f"silent since tick {agent['last_tick']}"
        obstacle = f"; cannot fire: {agent['cannot_fire']}" if agent["cannot_fire"] else ""
        lines.append(f"  agent {name}: {activity}, reputation {agent['reputation']:.3g}{obstacle}")
    for ballot in report["open_ballots"]:
        votes = ", ".join(f"{name} {stance}" for name, stance in ballot["votes"].items())
        lines.append(
            f"  open until tick {ballot['closes_at_tick']}: {ballot['actuator']}, {ballot['opened_by']} proposed "
            f"{value_text(ballot['proposal'])} ({votes})"
        )
    for change in report["in_flight"]:
        lines.append(f"  in flight: {change['actuator']} to {value_text(change['value'])} (decision {change['id']})")
    lines.append(f"  {report['adopted']} decisions adopted, {report['interventions_left']} interventions left")
    return lines


async def _replay_with_rules(
    folder: RunFolder, rules: dict[str, Any], until: int | None, verify: bool, as_json: bool
) -> None:
    from oven_runs.log.counterfactual import ChangedMesh
    from oven_runs.settings.resolution import with_rules

    run = folder.run
    changed_mesh = ChangedMesh(run, lambda logged: with_rules(logged, rules))
    count = 0
    async for event in LocalRun(folder).events(exact=True, until=until, check=verify):
        check_version(event)
        changed_mesh.feed(event)
        count += 1
    _check_started(run, changed_mesh.started)
    divergences = changed_mesh.divergences()
    fields = {
        "run": run,
        "events": count,
        "tick": changed_mesh.tick,
        "rules": rules,
        "same": not divergences,
        "divergences": len(divergences),
        "first": divergences[0] if divergences else None,
        "verdicts": changed_mesh.verdict_counts(),
        "ignored_receipts": changed_mesh.ignored_receipts,
    }
    print_result(as_json, fields, _comparison_lines(changed_mesh, divergences, run, rules, count))


def _comparison_lines(
    changed_mesh: ChangedMesh, divergences: list[Divergence], run: str, rules: dict[str, Any], count: int
) -> list[str]:
    from oven_runs.log.counterfactual import decision_text

    rule_names = ", ".join(f"rules.{name}" for name in rules)
    lines = [f"{run}: {count} events to tick {changed_mesh.tick}, decided with other {rule_names}"]
    if not divergences:
        lines.append("the same decisions")
    else:
        first = divergences[0]
        position = f"event {first.seq}, " if first.seq is not None else ""
        lines += [
            f"first divergence of {len(divergences)}: tick {first.tick}, {first.actuator} ({position}{first.subject})",
            f"  logged:   {decision_text(first.logged)}",
            f"  computed: {decision_text(first.computed)}",
            "  open loop: after this point the run would have gone differently, so its metrics no longer apply",
        ]
    for actuator, counts in changed_mesh.verdict_counts().items():
        logged, computed = _format_counts(counts.logged), _format_counts(counts.computed)
        lines.append(f"  {actuator}: logged {logged}; computed {computed}")
    if changed_mesh.ignored_receipts:
        lines.append(f"  {changed_mesh.ignored_receipts} receipts ignored, because their decisions were not made")
    return lines


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "none"
