"""Runs a committee member's process. Its NATS connection has permission only to answer the learner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from oven_core.bus.connection import PATIENT_S, Bus
from oven_core.cancellation import call_at_end, end
from oven_core.errors import ConfigError, UnknownNameError, reason
from oven_core.protocol import names
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import Message
from oven_core.security.credentials import Credentials
from oven_core.telemetry import tracing
from oven_llm.judges.judge import ConfiguredJudge, Watching
from oven_llm.judges.member import Member
from oven_llm.judges.member_judges import Accounts, MemberJudges
from oven_llm.judges.probe import ProbeResult, probe, probe_committee
from oven_llm.providers import genai_telemetry as genai
from oven_runs.home import judge_states
from oven_runs.settings.committee_members import with_judge
from oven_runs.settings.committee_settings import CommitteeSettings
from oven_runs.settings.judge_providers import NO_KEY, catalogue

log = logging.getLogger("oven.member")

MAX_WAITING: Final = 512
"""Maximum pending requests. Further requests are dropped and miss their deadlines."""
GRACE_S: Final = 2.0
"""Grace period in seconds for active requests when the process ends."""


def main(args: list[str]) -> int:
    """Entry point of a member's process."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(judge)
    app(args, prog_name="member")
    return 0


def judge(
    name: Annotated[str, typer.Option(help="the member's name in `committee.members`")] = "",
    probe_all: Annotated[
        bool, typer.Option("--probe", help="probe each judge of the committee on stdin once, and print the results")
    ] = False,
) -> None:
    """Answer the learner until the process gets a signal to end."""
    if probe_all:
        probe_committee()
        return
    name = names.checked("member", name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(os.environ["OVEN_RUN_DIR"])
    configured = configured_member(folder / "config.json", name)
    if configured.key == NO_KEY:
        log.info("no key_env is set: %s is asked without a key", configured.model.base_url)
    credentials = Credentials.from_environment()

    def record(result: ProbeResult) -> None:
        try:
            judge_states.write(folder, name, result.as_json())
        except OSError as error:
            log.warning("the result of the probe cannot be saved, and is in this log only: %s", reason(error))

    tracing.start(f"member-{name}", os.environ["OVEN_RUN"])
    look_up = partial(configured_member, folder / "config.json", name)
    accounts = Accounts(name, committee_settings(folder / "config.json"), folder)
    judges = MemberJudges(configured, look_up, genai.trace, record, accounts)
    try:
        asyncio.run(host(configured, judges, os.environ["OVEN_URL"], credentials, record))
    finally:
        accounts.close()
        tracing.shutdown()


def configured_member(config: Path, name: str, spec: JudgeSpec | None = None) -> ConfiguredJudge:
    """Return the judge with this name. With `spec`, it uses that model instead. Raises ConfigError if `config` cannot
    be read or the judge cannot be configured, and UnknownNameError if there is no such member."""
    committee = committee_settings(config)
    if name not in committee.members:
        raise UnknownNameError("committee member", name, committee.members)
    member = committee.members[name]
    if spec is not None:
        member = with_judge(member, spec)
    watching = Watching(
        characters=committee.characters,
        swapped=committee.swapped,
        asked_again_every=committee.asked_again_every,
        store=config.parent / judge_states.FOLDER / name,
    )
    return ConfiguredJudge.look_up(name, member, catalogue(committee.providers), watching=watching)


def committee_settings(config: Path) -> CommitteeSettings:
    """Return the committee's settings. Raises ConfigError if `config` cannot be read."""
    try:
        return CommitteeSettings.model_validate(json.loads(config.read_text())["committee"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{config} holds no committee ({reason(error)}); was it written by `up`?") from error


async def host(
    configured: ConfiguredJudge,
    judges: MemberJudges,
    url: str,
    credentials: Credentials | None,
    record: Callable[[ProbeResult], None] = lambda _: None,
) -> None:
    """Answer until SIGTERM or SIGINT, then give active requests a short grace period. `record` receives the probe."""
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_without_content)
    call_at_end(stop.set)
    name = configured.name
    member = Member(name, judges, judges.probe)
    probing = asyncio.create_task(probe_first(configured, judges, record), name="probe")  # nothing waits for it
    try:
        async with Bus.connect(url, credentials, name=name, timeout_s=PATIENT_S) as bus:
            log.info("%s judges as %s with %s", name, configured.rubric.role, configured.model.model)
            await serve(member, bus, stop)
    finally:
        await end(probing)
        await judges.close()
        member.faults.update(judges.unreported().faults)
        log.info("%s", member.summary())


async def probe_first(configured: ConfiguredJudge, judges: MemberJudges, record: Callable[[ProbeResult], None]) -> None:
    """Probe the configured judge and log its missing features. A judge that fails now is still asked for scores."""
    endpoint = judges.first.endpoint
    result = await probe(endpoint, configured.rubric)
    if result.failure is not None:
        log.error("probed, and cannot judge now: %s (%s); %s", result.failure, result.detail, result.remedy)
    endpoint.terms.log_lacks(result.lacks)
    if result.can_judge:
        log.info("probed: it judges, after %.1f s", result.latency_s)
    record(result)


async def serve(member: Member, bus: Bus, stop: asyncio.Event) -> None:
    """Answer on `oven.reward.<member>` and `oven.probe.<member>` until `stop`."""
    tasks: set[asyncio.Task[None]] = set()
    probe_subject = names.probe(member.name)

    async def respond(message: Msg) -> None:
        reply: Message | None
        if message.subject == probe_subject:
            reply = await member.probe(message.data)
        else:
            reply = await member.answer(message.data, tracing.context_of(message.headers))
        with contextlib.suppress(
            NatsError, OSError
        ):  # the server is down, and the requester has lost its connection too
            if reply is not None:
                await bus.publish(message.reply, reply.wire())

    async def receive(message: Msg) -> None:
        # An empty message only checks for a listener, and its delivery is the answer. A reply subject that is not an
        # inbox could make this process publish on another process's subject.
        if not message.data or not message.reply.startswith("_INBOX_."):
            return
        if len(tasks) >= MAX_WAITING:
            log.warning("a request was dropped: %d wait already", len(tasks))
            return
        task = asyncio.create_task(respond(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    subscriptions = [
        await bus.client.subscribe(subject, cb=receive) for subject in (probe_subject, names.reward(member.name))
    ]
    await bus.flush()
    await stop.wait()
    with contextlib.suppress(NatsError, OSError):
        for subscription in subscriptions:
            await subscription.unsubscribe()
    if tasks:
        _, late = await asyncio.wait(set(tasks), timeout=GRACE_S)
        await end(*late)


def _without_content(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors without tracebacks, which asyncio's own handler prints: an exception's text may quote a request."""
    log.error("%s (%s)", context.get("message", "error"), type(context.get("exception")).__name__)
