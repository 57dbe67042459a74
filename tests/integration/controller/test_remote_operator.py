"""Persons on another machine, over TLS, with a key of their own and without the run's folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.tls_stack import RUN, TlsStack
from tests.support.webhook_server import WebhookServer

from oven_core.errors import BusError, RefusedError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Receipt
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_core.security import person_file, tls
from oven_core.security.person_file import PersonFile
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import exported_events
from oven_runs.access.remote_run import RemoteRun
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import execute_command
from oven_tui.log_feed import LogFeed

pytestmark = pytest.mark.e2e

LIMIT_S = 60
ON = Subjects(RUN)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("hold", "--reason", "a look"),
    ("set", "grad.clip", "3"),
    ("resume",),
    ("set", "run.checkpoint"),
    ("set", "run.rollback"),
    ("set", "run.undo_rollback"),
    ("mute", "adviser"),
    ("unmute", "adviser"),
    ("distrust", "adviser"),
    ("trust", "adviser", "grad.clip"),
    ("autonomy", "observe", "grad.clip"),
    ("autonomy", "advise"),
)
"""Approve, veto and stop beside."""
EVERY_ACTION: tuple[dict[str, Any], ...] = (
    {"action": "hold"},
    {"action": "resume"},
    {"action": "stop"},
    {"action": "set", "actuator": "grad.clip", "value": 9.0},
    {"action": "set", "actuator": "run.checkpoint"},
    {"action": "set", "actuator": "run.rollback"},
    {"action": "approve", "of": "grad.clip"},
    {"action": "veto", "of": "grad.clip"},
    {"action": "mute", "agent": "adviser"},
    {"action": "unmute", "agent": "adviser"},
    {"action": "trust", "agent": "adviser"},
    {"action": "distrust", "agent": "adviser"},
    {"action": "autonomy", "autonomy": "auto"},
)


def command(**fields: Any) -> OperatorCommand:
    return OperatorCommand(id=uuid.uuid4().hex, **fields)


def loaded(file: Path) -> PersonFile:
    person = person_file.load(file)
    assert isinstance(person, PersonFile)
    return person


def as_an_attacker(held: PersonFile, far: TlsStack) -> RemoteRun:
    """With the key, at this run's server and under its name, and without what the client itself refuses."""
    trust = tls.trust_file(far.bus / "tls" / "ca.pem")
    return RemoteRun(RUN, far.url, held.credentials, keys=held.keys, trust=trust)


async def attempts(access: RemoteRun) -> list[CommandResult | BaseException]:
    wanted = (execute_command(access, command(**fields), 4) for fields in EVERY_ACTION)
    return await asyncio.gather(*wanted, return_exceptions=True)


class Watching:
    """A monitor's feed."""

    def __init__(self, access: RemoteRun) -> None:
        self.events: list[Event] = []
        self.link_changes: list[tuple[str, str]] = [("", "")]
        self.feed = LogFeed(access, self._take, self._say)
        self._changed = asyncio.Event()

    def _take(self, events: list[Event]) -> None:
        self.events += events
        self._changed.set()

    def _say(self, link: str, detail: str) -> None:
        self.link_changes.append((link, detail))
        self._changed.set()

    async def until(self, link: str, more: int = 0) -> str:
        """Until this is the last word on the connection, and so many more events came; the word's detail."""
        wanted = len(self.events) + more
        async with asyncio.timeout(LIMIT_S):
            while self.link_changes[-1][0] != link or len(self.events) < wanted:
                self._changed.clear()
                await self._changed.wait()
        return self.link_changes[-1][1]


@contextlib.asynccontextmanager
async def watching(file: Path) -> AsyncIterator[Watching]:
    made = Watching(RemoteRun.from_endpoint(Endpoint(creds=file)))
    task = asyncio.create_task(made.feed.run())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def another_runs_key(far: TlsStack) -> PersonFile:
    other_folder = far.stack.folder / "other"
    made = ("creds", "server", str(other_folder), "--run", "other", "--listen", "127.0.0.1:4222")
    assert far.stack.command(*made)[0] == 0
    code, output = far.stack.command(
        "creds", "add", "mallory", "--operator", "--server", str(other_folder), "--nats", far.url, "--json"
    )
    assert code == 0, output
    return loaded(Path(json.loads(output.splitlines()[-1])["file"]))


@pytest.fixture
def hook() -> Iterator[WebhookServer]:
    with WebhookServer() as server:
        yield server


async def test_operators_act_from_another_machine_and_readers_cannot(tls_stack: TlsStack, hook: WebhookServer) -> None:
    far = tls_stack
    far.begin("rules.autonomy=advise", "rules.cooldown_ticks=500", "rules.approve_ticks=100000")
    ann, bob, eve = far.person("ann"), far.person("bob"), far.person("eve", "--read-only")
    far.stack.env["HOOK"] = hook.url
    watcher = far.stack.start("notify", "watch", "--notify", "env:HOOK", "--creds", str(eve))
    assert far.up is not None and "grad.clip 1 → 2 advised" in far.stack.read_until(far.up, "oven-controller approve")
    hook.until(len, "advice is told elsewhere")
    await nothing_without_the_right(far, ann, eve)
    all_with_it(far, ann, bob)
    await two_at_once(ann, bob)
    reading(far, eve)
    await the_bus_goes_away_and_a_key_is_taken_back(far, bob)
    before = await operators_said(far)
    async with watching(eve) as monitor:
        await monitor.until("connected", more=1)
    assert await operators_said(far) == before, "who watches and leaves says nothing"

    far.json_elsewhere(0, ann, "stop")
    far.end(finished=True)
    hook.until(lambda posted: posted[-1].json["kind"] == "ended", "its end is told elsewhere")
    assert far.stack.end_of(watcher)[0] == 0
    code, output = far.elsewhere(eve, "log")
    assert (code, f"no mesh of run '{RUN}' answers" in output) == (3, True), output
    assert {author for kind, author in far.authors() if kind == "OperatorCommand"} == {"ann", "bob"}
    obeyed = {e.body.command for e in exported_events(far.folder) if isinstance(e.body, Receipt) and e.body.command}
    answered = {e.body.operator for e in exported_events(far.folder) if isinstance(e.body, CommandAnswer)}
    assert len(obeyed) == 3 and answered == {"ann", "bob"}


async def nothing_without_the_right(far: TlsStack, ann: Path, eve: Path) -> None:
    """Not even with a client of one's own."""
    eyes = loaded(eve)
    assert eyes.seed not in repr(eyes)
    powerless = {"read-only": eyes, "of another run": await another_runs_key(far)}
    for who, held in powerless.items():
        errors = await attempts(as_an_attacker(held, far))
        assert {type(error) for error in errors} == {RefusedError}, (who, errors)
    async with as_an_attacker(loaded(ann), far).connect("operator") as bus:
        for subject in (ON.operator("bob"), ON.operator("operator"), ON.decision("x"), ON.receipt):
            with pytest.raises(BusError):  # under another's name
                await bus.append(subject, command(action="stop").wire())
    code, output = far.elsewhere(eve, "hold")
    assert (code, "read-only" in output, "creds add NAME --operator" in output) == (2, True, True), output


def all_with_it(far: TlsStack, ann: Path, bob: Path) -> None:
    """From a process that knows nothing of the run's folder."""
    approved = far.json_elsewhere(0, ann, "approve", "grad.clip", "--reason", "go on")
    assert approved["receipt"]["status"] == "applied" and "operator ann" in approved["decision"]["reason"]
    assert far.json_elsewhere(1, bob, "veto", "grad.clip")["answer"]["operator"] == "bob"
    for command in COMMANDS:
        far.json_elsewhere(0, bob, *command)
    for refused, words in (
        (("set", "grad.clip", "-50"), "bounds 0.1 to 10"),
        (("set", "grad.clap", "5"), "no actuator"),
        (("approve", approved["decision"]["of"]), "was approved"),
    ):
        code, output = far.elsewhere(ann, *refused)
        assert (code, words in output) == (1, True), output


async def two_at_once(ann: Path, bob: Path) -> None:
    wanted = ((ann, 4.0), (bob, 5.0))
    both = [
        execute_command(
            RemoteRun.from_endpoint(Endpoint(creds=who)), command(action="set", actuator="grad.clip", value=value), 20
        )
        for who, value in wanted
    ]
    assert [(result.code, result.line()) for result in await asyncio.gather(*both) if result.code] == []


def reading(far: TlsStack, eve: Path) -> None:
    """By who may only read."""
    status = far.json_elsewhere(0, eve, "status")
    assert (status["status"], status["processes"]) == ("running", []) and status["knobs"]["grad.clip"] in (4.0, 5.0)
    for words, arguments in {
        "operator ann": ("decisions",),
        "requested by operator": ("explain", "grad.clip"),
        "OperatorCommand bob": ("log",),
    }.items():
        code, output = far.elsewhere(eve, *arguments)
        assert (code, words in output) == (0, True), output
    code, output = far.elsewhere(None, "status", OVEN_CREDS=str(eve))
    assert (code, f"run {RUN}: running" in output) == (0, True), output
    code, output = far.elsewhere(eve, "log", "--tls-ca", str(another_authority(far)))
    assert (code, "is not trusted" in output, "--tls-ca" in output) == (2, True, True), output


async def the_bus_goes_away_and_a_key_is_taken_back(far: TlsStack, bob: Path) -> None:
    """Under an open monitor, which says so, and finds back."""
    held = loaded(bob)
    async with watching(bob) as monitor:
        await monitor.until("connected", more=1)
        far.kill_server()
        assert (await monitor.until("reconnecting")).startswith("for 0 s: ")
        far.start_server()
        await monitor.until("connected", more=5)
        assert [event.seq for event in monitor.events] == list(range(1, len(monitor.events) + 1))
        code, output = far.stack.command("creds", "revoke", "bob", "--server", str(far.bus))
        assert (code, "reload=PID" in output) == (0, True), output
        far.reload()
        assert "refused the credentials of 'bob'" in await monitor.until("refused")
    errors = await attempts(as_an_attacker(held, far))
    assert {type(error) for error in errors} == {RefusedError}, errors


def another_authority(far: TlsStack) -> Path:
    made = far.stack.folder / "other-tls"
    code, output = far.stack.command("creds", "server", str(made), "--run", "x", "--tls", "--host", "127.0.0.1")
    assert code == 0, output
    return made / "tls" / "ca.pem"


async def operators_said(far: TlsStack) -> list[int]:
    """Sequences of what operators said so far."""
    return [event.seq async for event in LocalRun(far.folder).events() if ".operator." in event.subject]
