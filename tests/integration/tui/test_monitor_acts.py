"""Every action of the monitor by its keys, on a real stack: receipts in the log, and a replay that is byte-equal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.monitor_person import Person, at_monitor
from tests.support.tls_stack import TlsStack

from oven_core.errors import BusError, RefusedError
from oven_core.protocol.messages import Receipt
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_core.security import person_file, tls
from oven_core.security.person_file import PersonFile
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import exported_events
from oven_runs.access.remote_run import RemoteRun
from oven_runs.operator.operator_client import execute_command
from oven_tui.model.commands import COMMANDS
from oven_tui.screens.questions import ConfirmScreen, KnobScreen

pytestmark = pytest.mark.e2e


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_action_by_its_keys_from_elsewhere(tls_stack: TlsStack) -> None:
    far = tls_stack
    rules = ("rules.autonomy=advise", "rules.cooldown_ticks=1", "rules.approve_ticks=100000")
    await asyncio.to_thread(far.begin, *rules, learner="steered")
    ann = await asyncio.to_thread(far.person, "ann")
    bob = await asyncio.to_thread(far.person, "bob")
    eve = await asyncio.to_thread(far.person, "eve", "--read-only")
    await without_the_right(far, ann, bob, eve)
    async with at_monitor(RemoteRun.from_endpoint(Endpoint("", ann, None))) as person:
        await advice(person)
        await knobs(person)
        await hold_and_resume(person)
        await snapshots(person)
        await agents(person)
        await refusals(person, far)
        await person.press("X")
        await person.done()
        command_ids = {result.command.id for result in person.results}
        assert {result.command.action for result in person.results} == {
            "approve", "set", "hold", "resume", "mute", "unmute", "trust", "distrust", "autonomy", "veto", "stop"
        }  # fmt: skip
    await asyncio.to_thread(far.end)
    events = list(exported_events(far.folder))
    logged = {event.body.id for event in events if isinstance(event.body, OperatorCommand)}
    answered = {event.body.command for event in events if isinstance(event.body, CommandAnswer | Receipt)}
    assert command_ids <= logged <= answered
    assert {author for kind, author in far.authors() if kind == "OperatorCommand"} == {"ann", "operator"}


async def without_the_right(far: TlsStack, ann: Path, bob: Path, eve: Path) -> None:
    """A read-only key, one that is revoked meanwhile, and another run's: nothing acts, and it is said why."""
    async with at_monitor(RemoteRun.from_endpoint(Endpoint("", eve, None))) as reader:
        await reader.until(reader.app.block_reason)
        assert "read-only" in reader.app.block_reason()
        for command in COMMANDS:
            if command.acts_on_run:
                await reader.press(command.key_names()[0])
                assert len(reader.app.screen_stack) == 1, command
    async with at_monitor(RemoteRun.from_endpoint(Endpoint("", bob, None))) as gone:
        code, output = await asyncio.to_thread(far.stack.command, "creds", "revoke", "bob", "--server", str(far.bus))
        assert code == 0, output
        await asyncio.to_thread(far.reload)
        await gone.press("p")
        if not gone.app.block_reason():
            lost = await gone.confirm()
            assert lost.stage == "lost" and not lost.logged_seq, lost.line()
    held = person_file.load(ann)
    assert isinstance(held, PersonFile)
    other_run = RemoteRun(
        "another", far.url, held.credentials, keys=held.keys, trust=tls.trust_text(held.tls_ca, "ann")
    )
    with pytest.raises((BusError, RefusedError)):
        await execute_command(other_run, OperatorCommand(id="of-another-run", action="hold"), 1.0)


async def advice(person: Person) -> None:
    run = person.app.view.run

    async def pick(key: str, decided: str = "") -> None:
        """Press the key once advice other than the one that was decided before waits."""
        await person.until(lambda: any(advice.id != decided for advice in run.advised.values()))
        await person.press("g", key)

    await pick("a")
    await person.on(ConfirmScreen)
    assert "it lapses" in person.text() and " steps" in person.text()  # between them, the line may break
    receipt = await person.done("r", *"fine", "enter")
    approved = person.results[-1]
    assert receipt.status == "applied" and approved.decision is not None and approved.decision.approves
    assert approved.command.reason == "fine"
    await person.sees(f"✔ step {receipt.step}")
    await pick("v", decided=approved.command.subject_id)
    await person.done()


async def knobs(person: Person) -> None:
    run = person.app.view.run
    await person.press("e")
    await person.choose("grad.clip")
    await person.on(KnobScreen)
    await person.press(*"500")
    await person.sees("the mesh would refuse: 500 cannot be set for grad.clip")
    await person.press("backspace", "backspace", "backspace", "3")
    await person.sees("guardrails for the same change by agents:")
    result = await person.give("enter")
    assert result.receipt is not None and result.receipt.after == 3.0
    for knob, keys in (("sampling.warmth", "L"), ("data.mixture", "jl"), ("teacher.active", "l")):
        await person.press("e")
        await person.choose(knob)
        await person.on(KnobScreen)
        await person.press(*keys)
        assert (await person.give("enter")).stage == "done"
    await person.until(lambda: (run.knobs["sampling.warmth"], run.knobs["teacher.active"]) == (0.6, "large"))
    await person.until(lambda: run.knobs["data.mixture"] == {"easy": 0.45, "hard": 0.55})


async def hold_and_resume(person: Person) -> None:
    run = person.app.view.run
    await person.press("p")
    await person.done()
    await person.until(lambda: run.hold_reason)
    await person.press("p")
    await person.done("y")
    await person.until(lambda: not run.hold_reason)


async def snapshots(person: Person) -> None:
    run = person.app.view.run
    await person.press("w")
    snapshot = await person.done()
    await person.until(lambda: run.step > snapshot.step + 2)
    await person.press("b")
    await person.choose(str(snapshot.tick))
    back = await person.done()
    assert back.after <= snapshot.step < back.before, "the newest from there or before that is still kept"
    await person.press("B")
    assert (await person.done()).after == back.before
    await person.press("b")
    await person.choose("newest")
    await person.done()


async def agents(person: Person) -> None:
    for key, *wanted in (
        ("x", "adviser"),
        ("x", "adviser"),
        ("T", "adviser", "grad.clip"),
        ("t", "adviser", ""),
        ("o", "grad.clip", "observe"),
        ("o", "", "advise"),
    ):
        await person.press(key)
        await person.choose(*wanted)
        await person.done()
    run = person.app.view.run
    await person.until(lambda: run.autonomy == {"": "advise"} and not run.muted)


async def refusals(person: Person, far: TlsStack) -> None:
    """Another person is quicker; a value is out of bounds; what was advised has gone: each says so on its row."""
    run = person.app.view.run
    await person.until(lambda: run.advised)
    await person.press("g", "a")
    await person.on(ConfirmScreen)
    approve = OperatorCommand(id="quicker", action="approve", subject_id="grad.clip")
    quicker = await execute_command(LocalRun(far.folder), approve)
    await person.sees("the mesh would refuse")
    late = await person.confirm()
    assert late.stage == "refused", late.line()
    assert quicker.decision is not None and quicker.decision.approves == late.command.subject_id
    assert "was approved as decision" in late.line()
    await person.sees("✗ refused")
    await person.press("e")
    await person.choose("grad.clip")
    await person.on(KnobScreen)
    await person.press(*"500")
    out = await person.give("enter")
    assert out.stage == "refused" and "outside its bounds 0.1 to 10" in out.line()
    assert run.knobs["grad.clip"] != 500
