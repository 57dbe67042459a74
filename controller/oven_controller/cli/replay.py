"""`replay`: verifies that decisions follow from the log, and decides it again with other rules."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oven_controller.cli.options import Json, RunName, SameRun, exit_if_incomplete, one_run
from oven_core.terminal_text import say

if TYPE_CHECKING:
    from oven_core.protocol.events import Event
    from oven_runs.home.run_folder import RunFolder
    from oven_runs.log.counterfactual import OpenLoop
    from oven_runs.log.replay import Replay, ReplayReport

GAPS_SHOWN = 5

UntilTick = Annotated[
    int | None, typer.Option("--until", metavar="TICK", min=0, help="Stop at the first observation beyond this tick.")
]


def replay(
    run: RunName = None,
    run_: SameRun = None,
    until: UntilTick = None,
    verify: Annotated[
        bool,
        typer.Option(
            help="Check every signature, not only that it is there, and count them by kind; and that no message of the "
            "learner is missing."
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings whose `rules:` are put in place of the run's: what would they have decided?"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute every decision again from the log alone, and compare byte for byte. Exit code 1 if one differs, or if
    --verify finds that messages are missing; 3 if some wait to be appended or were lost.

    With --until also what the mesh knew at that tick. With --config it is a question and no check, and the exit code 0.

    Example: oven-controller replay grpo-1121-0231 --until 40
    """
    import asyncio

    from oven_runs.access.local_run import LocalRun
    from oven_runs.home.run_folder import Home
    from oven_runs.settings.resolution import rules_in

    folder = Home().find(one_run(run, run_))
    if config is not None:
        asyncio.run(_asked(folder, rules_in(config), until, verify, as_json))
        return
    again, signatures = asyncio.run(_again(folder, until, verify))
    report = again.report()
    if not report.same and signatures.signed and not verify:
        # What a live replica refused may have been taken here: the presence of a signature says little.
        again, signatures = asyncio.run(_again(folder, until, True))
        report = again.report()
        signatures.decided = report.same
    lacks = signatures.lacking(folder.info().ended, until) if verify else []
    if as_json:
        print(json.dumps(_plain(again, report, signatures, until) | ({"lacks": lacks} if verify else {})))
    else:
        say(*_lines(again, report, signatures, until), *lacks)
    if not report.same or lacks:
        raise typer.Exit(1)
    exit_if_incomplete(LocalRun(folder))


class Signatures:
    """A log's events as the run's keys judge them, counted by kind."""

    def __init__(self, folder: RunFolder, check: bool) -> None:
        from oven_core.security.signing import Keyring
        from oven_runs.log.message_gaps import Numbering

        self._keyring = Keyring(folder.pin(), check=check)
        self.checked = check
        self.decided = False
        """A replay that only asked whether signatures are there came out different; this one did not."""
        self.by_kind: dict[str, Counter[str]] = {}
        self._numbering = Numbering()

    def judge(self, event: Event) -> Event:
        return self._keyring.verify(event)

    def count(self, judged: Event) -> None:
        from oven_core.protocol import names
        from oven_core.protocol.codec import Malformed
        from oven_core.protocol.messages import LearnerMessage
        from oven_core.protocol.subjects import UNSIGNED

        if isinstance(judged.body, LearnerMessage):
            self._numbering.take(judged.body)
        kind = names.kind(judged.subject)
        if self.checked and kind not in UNSIGNED:
            fault = judged.body.fault if isinstance(judged.body, Malformed) else "signed"
            said = {"signature": "wrong", "signed": "signed", "unsigned": "unsigned"}.get(fault, "no message")
            self.by_kind.setdefault(kind, Counter())[said] += 1

    def lacking(self, ended: str | None, until: int | None) -> list[str]:
        """What is not there of the learner's messages, a line each, as their numbers show. `ended`: how run.json says
        that the run ended. `until`: the tick at which the reading stopped, if it did."""
        numbering = self._numbering
        lines = []
        if numbering.missing:
            shown = numbering.gaps[:GAPS_SHOWN]
            which = ", ".join(f"{hole.first} to {hole.last} of incarnation {hole.incarnation}" for hole in shown)
            more = len(numbering.gaps) - len(shown)
            which += f", and {more} more holes" if more else ""
            lines.append(f"missing: {numbering.missing} messages of the learner, by number {which}")
        if ended == "completed" and until is None and not numbering.ended:
            lines.append("missing: the run is completed, and its log has no RunEnded")
        return lines

    @property
    def signed(self) -> bool:
        """Whether this is a run whose events are signed."""
        return bool(self._keyring.keys)

    def plain(self) -> dict[str, Any]:
        counts = {kind: dict(count) for kind, count in sorted(self.by_kind.items())} if self.signed else {}
        return {"run_signed": self.signed, "checked": self.checked, "decided": self.decided, "by_kind": counts}

    def lines(self) -> list[str]:
        if not self.checked:
            return []
        if not self.signed:
            return ["signatures: none to check; RunStarted names no keys, so this run is not a signed one"]
        out = ["signatures, checked:"]
        for kind, count in sorted(self.by_kind.items()):
            out.append(f"  {kind}: " + ", ".join(f"{number} {said}" for said, number in sorted(count.items())))
        if self.decided:
            out.append(
                "they made the difference: with signatures that are there but do not hold, the decisions came out "
                "otherwise; without those events, as every live replica judged, they are the same"
            )
        return out


async def _again(folder: RunFolder, until: int | None, verify: bool) -> tuple[Replay, Signatures]:
    from oven_runs.access import log_reader
    from oven_runs.log.replay import Replay

    again, signatures = Replay(folder.run), Signatures(folder, verify)
    async for event in log_reader.events(folder, exact=True, until=until, verify=signatures.judge):
        again.take(event)
        signatures.count(event)
    _started(folder.run, again.mesh.state.started)
    return again, signatures


def _started(run: str, started: bool) -> None:
    from oven_core.errors import ConfigError

    if not started:
        raise ConfigError(
            f"run {run!r} never started: there is no RunStarted to replay from in what was read of its log"
        )


def _plain(again: Replay, report: ReplayReport, signatures: Signatures, until: int | None) -> dict[str, Any]:
    from oven_runs.log.mesh_report import report_of

    first = dataclasses.asdict(report.first) if report.first else None
    found = vars(report) | {"first": first, "same": report.same, "signatures": signatures.plain()}
    return found if until is None else found | {"standing": report_of(again.mesh)}


def _lines(again: Replay, report: ReplayReport, signatures: Signatures, until: int | None) -> list[str]:
    from oven_core.mesh.code_hash import mesh_code_hash
    from oven_runs.log import mesh_report

    verdict = "the same, byte for byte" if report.same else "NOT the same"
    decided = f"{report.decisions} decisions ({report.adopted} adopted)"
    upto = "" if until is None else f" up to tick {report.tick}"
    out = [f"{report.run}{upto}: {report.events} events, {decided}: {verdict}"]
    if report.counters:
        out.append("ignored: " + ", ".join(f"{kind} {count}" for kind, count in sorted(report.counters.items())))
    parted = {"different": report.different, "missing": report.missing, "unexpected": report.unexpected}
    out += [f"{what}: {len(subjects)}, first {subjects[0]}" for what, subjects in parted.items() if subjects]
    if report.first is not None:
        out += [f"logged:   {report.first.logged}", f"computed: {report.first.computed}"]
    if report.mesh_code and report.mesh_code != mesh_code_hash():
        remedy = "" if report.same else ": replay it with the version that its RunStarted names"
        out.append(
            f"the run was decided by another version of the mesh ({report.mesh_code[:12]}; this one is "
            f"{mesh_code_hash()[:12]}){remedy}"
        )
    out += signatures.lines()
    return out if until is None else out + mesh_report.lines(mesh_report.report_of(again.mesh))


async def _asked(folder: RunFolder, rules: dict[str, Any], until: int | None, verify: bool, as_json: bool) -> None:
    from oven_runs.access import log_reader
    from oven_runs.log.counterfactual import OpenLoop
    from oven_runs.log.replay import refuse_another_version
    from oven_runs.settings.resolution import with_rules

    run = folder.run
    loop, count = OpenLoop(run, lambda logged: with_rules(logged, rules)), 0
    async for event in log_reader.events(folder, exact=True, until=until, verify=Signatures(folder, verify).judge):
        refuse_another_version(event)
        loop.take(event)
        count += 1
    _started(run, loop.started)
    if as_json:
        print(json.dumps(_answer(loop, run, rules, count)))
    else:
        say(*_told(loop, run, rules, count))


def _answer(loop: OpenLoop, run: str, rules: dict[str, Any], count: int) -> dict[str, Any]:
    parted = loop.divergences()
    first = parted[0] if parted else None
    return {
        "run": run,
        "events": count,
        "tick": loop.tick,
        "rules": rules,
        "same": not parted,
        "divergences": len(parted),
        "first": None
        if first is None
        else {
            "tick": first.tick,
            "actuator": first.actuator,
            "seq": first.seq,
            "subject": first.subject,
            "logged": first.logged.model_dump(mode="json") if first.logged else None,
            "computed": first.computed.model_dump(mode="json") if first.computed else None,
        },
        "verdicts": {
            actuator: {"logged": dict(found.logged), "computed": dict(found.computed)}
            for actuator, found in loop.verdicts().items()
        },
        "ignored_receipts": loop.ignored_receipts,
    }


def _told(loop: OpenLoop, run: str, rules: dict[str, Any], count: int) -> list[str]:
    from oven_runs.log.counterfactual import decision_text

    parted = loop.divergences()
    out = [
        f"{run}: {count} events to tick {loop.tick}, decided by {', '.join(f'rules.{name}' for name in rules)} as given"
    ]
    if not parted:
        out.append("the same decisions")
    else:
        first = parted[0]
        where = f"event {first.seq}, " if first.seq is not None else ""
        out += [
            f"first divergence of {len(parted)}: tick {first.tick}, {first.actuator} ({where}{first.subject})",
            f"  logged:   {decision_text(first.logged)}",
            f"  computed: {decision_text(first.computed)}",
            "  open loop: from there on the metrics are those of a run that would have gone another way",
        ]
    for actuator, found in loop.verdicts().items():
        sides = [
            ", ".join(f"{n} {verdict}" for verdict, n in sorted(side.items())) or "none"
            for side in (found.logged, found.computed)
        ]
        out.append(f"  {actuator}: logged {sides[0]}; computed {sides[1]}")
    if loop.ignored_receipts:
        out.append(f"  {loop.ignored_receipts} receipts ignored: for decisions that were not made")
    return out
