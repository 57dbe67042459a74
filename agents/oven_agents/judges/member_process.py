"""A committee member's process: one judge, one connection, no rights but to answer the learner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from oven_agents.judges.accounts import Accounts
from oven_agents.judges.adversarial_controls import Controls
from oven_agents.judges.configured_judge import ConfiguredJudge
from oven_agents.judges.member import Member
from oven_agents.judges.probe import ProbeResult, probe
from oven_agents.judges.probe_command import probe_configured
from oven_agents.judges.providers.provider import EndpointProvider
from oven_agents.judges.usage import OnCall, cost_usd
from oven_controller.bus.connection import Bus
from oven_controller.cancellation import call_at_end, end
from oven_controller.errors import ConfigError, UnknownNameError, reason
from oven_controller.protocol import names
from oven_controller.runs import judge_states
from oven_controller.security.credentials import Credentials
from oven_controller.settings.judge_providers import NO_KEY, catalogue
from oven_controller.settings.model import CommitteeSettings
from oven_controller.telemetry import genai, tracing

log = logging.getLogger("oven.member")

WAITING = 512
"""Requests taken in at a time; more are dropped, and their askers' deadlines pass."""
GRACE_S = 2.0
"""For what is under way when the process is asked to end."""


def main(args: list[str]) -> int:
    """Entry point of a member's process."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(judge)
    app(args, prog_name="member")
    return 0


def judge(
    name: Annotated[str, typer.Option(help="which of `committee.members` it is")] = "",
    probe_all: Annotated[
        bool, typer.Option("--probe", help="ask each judge of the committee on stdin once, and print what it can do")
    ] = False,
) -> None:
    """Answer the learner until told to end."""
    if probe_all:
        probe_configured()
        return
    name = names.checked("member", name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(os.environ["OVEN_RUN_DIR"])
    configured, committee = configured_member(folder / "config.json", name)
    if configured.key == NO_KEY:
        log.info("no key_env is set: %s is asked without a key", configured.asked.base_url)
    credentials = Credentials.from_environment()

    def record(result: ProbeResult) -> None:
        try:
            judge_states.write(folder, name, result.as_json())
        except OSError as error:
            log.warning("what the probe found is in this log only: %s", reason(error))

    tracing.start(f"member-{name}", os.environ["OVEN_RUN"])
    try:
        accounts = Accounts(name, committee, folder)
        asyncio.run(host(configured, accounts, os.environ["OVEN_URL"], credentials, genai.trace, record))
    finally:
        tracing.shutdown()


def configured_member(config: Path, name: str) -> tuple[ConfiguredJudge, CommitteeSettings]:
    """The member, and its committee. Raises ConfigError when `config` cannot be read, or the member cannot
    judge as it is configured; UnknownNameError when there is no such member."""
    try:
        committee: dict[str, Any] = json.loads(config.read_text())["committee"]
        members = committee["members"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{config} holds no committee ({reason(error)}); was it written by `up`?") from error
    if name not in members:
        raise UnknownNameError("committee member", name, members)
    settings = CommitteeSettings.model_validate(committee)
    return ConfiguredJudge.look_up(name, settings.members[name], catalogue(settings.providers)), settings


async def host(
    configured: ConfiguredJudge,
    accounts: Accounts,
    url: str,
    credentials: Credentials | None,
    on_call: OnCall | None = None,
    record: Callable[[ProbeResult], None] = lambda _: None,
) -> None:
    """Answer until SIGTERM or SIGINT; what is under way then gets a short grace. `record` is told what the probe at the
    start found."""
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_without_content)
    call_at_end(stop.set)
    provider = accounts.connect(configured)
    name = configured.name
    judge = accounts.cached(configured, configured.judge(provider, Controls(), on_call))
    member = Member(name, judge, partial(cost_usd, configured.asked))
    looking = asyncio.create_task(look(configured, provider, record), name="probe")  # nobody waits for it
    try:
        async with Bus.connect(url, credentials, name=name) as bus:
            log.info("%s judges as %s with %s", name, configured.rubric.role, configured.asked.model)
            await serve(member, bus, stop)
    finally:
        await end(looking)
        await provider.close()
        accounts.close()
        log.info("%s", member.summary())


async def look(configured: ConfiguredJudge, provider: EndpointProvider, record: Callable[[ProbeResult], None]) -> None:
    """Probe the endpoint, and say what it lacks. A judge that cannot be asked now is asked all the same when the
    learner wants scores: it may be back by then."""
    result = await probe(provider, configured.rubric)
    if result.failure is not None:
        log.error("probed, and cannot judge now: %s (%s); %s", result.failure, result.detail, result.remedy)
    provider.terms.tell(result.lacks)
    if result.can_judge:
        log.info("probed: it judges, after %.1f s", result.latency_s)
    record(result)


async def serve(member: Member, bus: Bus, stop: asyncio.Event) -> None:
    """Answer on `oven.reward.<member>` until `stop`. The client subscribes again by itself after a reconnect."""
    tasks: set[asyncio.Task[None]] = set()

    async def respond(message: Msg) -> None:
        reply = await member.answer(message.data, tracing.carried(message.headers))
        with contextlib.suppress(NatsError, OSError):  # the server is away: so is whoever asked
            await bus.publish(message.reply, reply.wire())

    async def hear(message: Msg) -> None:
        # Empty: somebody asks whether there is a listener, and that it came is the answer. A reply elsewhere than to an
        # inbox could make this process publish where only others may.
        if not message.data or not message.reply.startswith("_INBOX_."):
            return
        if len(tasks) >= WAITING:
            log.warning("a request was dropped: %d wait already", len(tasks))
            return
        task = asyncio.create_task(respond(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    subscription = await bus.client.subscribe(names.reward(member.name), cb=hear)
    await bus.flush()
    await stop.wait()
    with contextlib.suppress(NatsError, OSError):
        await subscription.unsubscribe()
    if tasks:
        _, late = await asyncio.wait(set(tasks), timeout=GRACE_S)
        await end(*late)


def _without_content(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler prints tracebacks, and an exception's text may quote a request."""
    log.error("%s (%s)", context.get("message", "error"), type(context.get("exception")).__name__)
