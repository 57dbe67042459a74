"""The `replay` command: recompute a run's decisions from its log, to verify them or to try other rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli.options import Json, RunName, SameRun, UntilTick, exit_if_incomplete, one_run, print_result
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
from oven_runs.log.counterfactual import Divergence, OpenLoop, decision_text
from oven_runs.log.message_gaps import GapFinder
from oven_runs.log.replay import Replay, ReplayReport, check_version
from oven_runs.settings.resolution import rules_in, with_rules

MAX_GAPS_LISTED = 5


def replay(
    run: RunName = None,
    run_: SameRun = None,
    until: UntilTick = None,
    verify: Annotated[
        bool,
        typer.Option(
            help="Check every signature instead of its presence only, count them by kind, and check that no message of "
            "the learner is missing."
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="Decide with the `rules:` of these settings instead of the run's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute every decision again from the log alone, and compare byte for byte.

    Exit code 1 if a decision differs or --verify finds missing messages; 3 if messages wait to be appended or were
    lost. With --until, also print what the mesh knew at that tick. With --config, compare the decisions of other rules
    instead; the exit code is then 0.

    Example: oven-controller replay grpo-1121-0231 --until 40
    """
    folder = Home().find(one_run(run, run_))
    if config is not None:
        asyncio.run(_with_other_rules(folder, rules_in(config), until, verify, as_json))
        return
    replayed, signatures = asyncio.run(_replayed(folder, until, verify))
    report = replayed.report()
    if not report.same and signatures.signed and not verify:
        # A live replica may have refused an event that was accepted here, because its signature is wrong.
        replayed, signatures = asyncio.run(_replayed(folder, until, True))
        report = replayed.report()
        signatures.explain_difference = report.same
    lacks = signatures.lacking(folder.info().ended, until) if verify else []
    standing = _mesh_report(replayed.mesh) if until is not None else None
    fields = vars(report) | {"same": report.same, "signatures": signatures.fields()}
    fields |= ({"standing": standing} if standing else {}) | ({"lacks": lacks} if verify else {})
    knew = _mesh_lines(standing) if standing else []
    print_result(as_json, fields, [*_lines(report, signatures, until), *knew, *lacks])
    if not report.same or lacks:
        raise typer.Exit(1)
    exit_if_incomplete(LocalRun(folder))


class Signatures:
    """Verifies the signatures of a log's events with the run's keys, and counts the results by event type."""

    def __init__(self, folder: RunFolder, check: bool) -> None:
        self.keyring = Keyring(folder.pin(), check=check)
        self.checked = check
        self.explain_difference = False
        """Whether decisions differ without verification of signatures, and agree with it."""
        self.by_kind: dict[str, Counter[str]] = {}
        self._gap_finder = GapFinder()

    def count(self, verified: Event) -> None:
        if isinstance(verified.body, LearnerMessage):
            self._gap_finder.feed(verified.body)
        kind = names.kind(verified.subject)
        if self.checked and kind not in UNSIGNED:
            fault = verified.body.fault if isinstance(verified.body, Malformed) else "signed"
            result = {"signature": "wrong", "signed": "signed", "unsigned": "unsigned"}.get(fault, "no message")
            self.by_kind.setdefault(kind, Counter())[result] += 1

    def lacking(self, ended: str | None, until: int | None) -> list[str]:
        """Return one line per gap in the numbers of the learner's messages. `ended`: the run's end in run.json.
        `until`: the tick at which reading stopped, if any."""
        gap_finder = self._gap_finder
        lines = []
        if gap_finder.missing:
            ranges = [f"{gap.first} to {gap.last} of incarnation {gap.incarnation}" for gap in gap_finder.gaps]
            which = ", ".join(ranges[:MAX_GAPS_LISTED])
            which += f", and {len(ranges) - MAX_GAPS_LISTED} more gaps" if len(ranges) > MAX_GAPS_LISTED else ""
            lines.append(f"missing: {gap_finder.missing} messages of the learner, by number {which}")
        if ended == "completed" and until is None and not gap_finder.ended:
            lines.append("missing: the run is completed, and its log has no RunEnded")
        return lines

    @property
    def signed(self) -> bool:
        """Whether the run's events are signed."""
        return bool(self.keyring.keys)

    def fields(self) -> dict[str, Any]:
        counts = dict(sorted(self.by_kind.items())) if self.signed else {}
        fields = {"run_signed": self.signed, "checked": self.checked, "decided": self.explain_difference}
        return fields | {"by_kind": counts}

    def lines(self) -> list[str]:
        if not self.checked:
            return []
        if not self.signed:
            return ["signatures: none to check, because this run is not signed (RunStarted names no keys)"]
        out = ["signatures, checked:"]
        for kind, count in sorted(self.by_kind.items()):
            out.append(f"  {kind}: " + ", ".join(f"{number} {result}" for result, number in sorted(count.items())))
        if self.explain_difference:
            out.append(
                "they made the difference: the decisions differ if events with wrong signatures count, and are the "
                "same without those events, which every live replica refused"
            )
        return out


async def _replayed(folder: RunFolder, until: int | None, verify: bool) -> tuple[Replay, Signatures]:
    replayed, signatures = Replay(folder.run), Signatures(folder, verify)
    async for event in LocalRun(folder).events(exact=True, until=until, keyring=signatures.keyring):
        replayed.feed(event)
        signatures.count(event)
    _check_started(folder.run, replayed.mesh.state.started)
    return replayed, signatures


def _check_started(run: str, started: bool) -> None:
    if not started:
        raise ConfigError(
            f"run {run!r} has no RunStarted in the part of its log that was read, so there is nothing to replay"
        )


def _lines(report: ReplayReport, signatures: Signatures, until: int | None) -> list[str]:
    verdict = "the same, byte for byte" if report.same else "NOT the same"
    decided = f"{report.decisions} decisions ({report.adopted} adopted)"
    upto = "" if until is None else f" up to tick {report.tick}"
    out = [f"{report.run}{upto}: {report.events} events, {decided}: {verdict}"]
    if report.counters:
        out.append("ignored: " + ", ".join(f"{kind} {count}" for kind, count in sorted(report.counters.items())))
    differences = {"different": report.different, "missing": report.missing, "unexpected": report.unexpected}
    out += [f"{kind}: {len(subjects)}, first {subjects[0]}" for kind, subjects in differences.items() if subjects]
    if report.first is not None:
        out += [f"logged:   {report.first.logged}", f"computed: {report.first.computed}"]
    if report.mesh_code and report.mesh_code != mesh_code_hash():
        remedy = "" if report.same else ": replay it with the version that its RunStarted names"
        out.append(
            f"another version of the mesh decided the run ({report.mesh_code[:12]}; this one is "
            f"{mesh_code_hash()[:12]}){remedy}"
        )
    return [*out, *signatures.lines()]


def _mesh_report(mesh: Mesh) -> dict[str, Any]:
    """Return the mesh's state as JSON values: settings, agents, open ballots, decisions in flight."""
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
                "earned": state.trust.good_outcomes(name),
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
                "votes": {name: cast.vote.stance for name, cast in sorted(ballot.casts.items())},
            }
            for actuator, ballot in mesh.ballots.items()
        ],
        "in_flight": [
            {"id": flight.decision.id, "actuator": flight.decision.actuator, "value": flight.decision.value}
            for flight in state.changes_in_flight()
        ],
        "adopted": state.adopted,
        "interventions_left": max(0, state.rules.max_interventions - state.adopted),
    }


def _mesh_lines(report: dict[str, Any]) -> list[str]:
    out = [f"what the mesh knew at tick {report['tick']}"]
    out += [f"  {name} = {value_text(value)}" for name, value in report["effective"].items() if value is not None]
    for name, agent in report["agents"].items():
        life = "live" if agent["live"] else f"silent since tick {agent['last_tick']}"
        obstacle = f"; cannot fire: {agent['cannot_fire']}" if agent["cannot_fire"] else ""
        out.append(f"  agent {name}: {life}, reputation {agent['reputation']:.3g}{obstacle}")
    for ballot in report["open_ballots"]:
        votes = ", ".join(f"{name} {stance}" for name, stance in ballot["votes"].items())
        out.append(
            f"  open until tick {ballot['closes_at_tick']}: {ballot['actuator']}, {ballot['opened_by']} proposed "
            f"{value_text(ballot['proposal'])} ({votes})"
        )
    for flight in report["in_flight"]:
        out.append(f"  in flight: {flight['actuator']} to {value_text(flight['value'])} (decision {flight['id']})")
    out.append(f"  {report['adopted']} decisions adopted, {report['interventions_left']} interventions left")
    return out


async def _with_other_rules(
    folder: RunFolder, rules: dict[str, Any], until: int | None, verify: bool, as_json: bool
) -> None:
    run = folder.run
    loop, count = OpenLoop(run, lambda logged: with_rules(logged, rules)), 0
    async for event in LocalRun(folder).events(exact=True, until=until, check=verify):
        check_version(event)
        loop.feed(event)
        count += 1
    _check_started(run, loop.started)
    divergences = loop.divergences()
    fields = {
        "run": run,
        "events": count,
        "tick": loop.tick,
        "rules": rules,
        "same": not divergences,
        "divergences": len(divergences),
        "first": divergences[0] if divergences else None,
        "verdicts": loop.verdicts(),
        "ignored_receipts": loop.ignored_receipts,
    }
    print_result(as_json, fields, _comparison_lines(loop, divergences, run, rules, count))


def _comparison_lines(
    loop: OpenLoop, divergences: list[Divergence], run: str, rules: dict[str, Any], count: int
) -> list[str]:
    out = [
        f"{run}: {count} events to tick {loop.tick}, decided by {', '.join(f'rules.{name}' for name in rules)} as given"
    ]
    if not divergences:
        out.append("the same decisions")
    else:
        first = divergences[0]
        where = f"event {first.seq}, " if first.seq is not None else ""
        out += [
            f"first divergence of {len(divergences)}: tick {first.tick}, {first.actuator} ({where}{first.subject})",
            f"  logged:   {decision_text(first.logged)}",
            f"  computed: {decision_text(first.computed)}",
            "  open loop: after this point the metrics are those of a run that would have gone differently",
        ]
    for actuator, counts in loop.verdicts().items():
        sides = [
            ", ".join(f"{n} {verdict}" for verdict, n in sorted(side.items())) or "none"
            for side in (counts.logged, counts.computed)
        ]
        out.append(f"  {actuator}: logged {sides[0]}; computed {sides[1]}")
    if loop.ignored_receipts:
        out.append(f"  {loop.ignored_receipts} receipts ignored: for decisions that were not made")
    return out
