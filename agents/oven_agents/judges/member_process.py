"""A committee member's process: one judge, one connection, no rights but to answer the learner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from oven_agents.judges import providers
from oven_agents.judges.adversarial_controls import Controls
from oven_agents.judges.cached_judge import CachedJudge
from oven_agents.judges.judge import Judge
from oven_agents.judges.member import Member
from oven_agents.judges.metered import Metered, check_priced
from oven_agents.judges.usage import OnCall, cost_usd
from oven_agents.judges.verdict_cache import VerdictCache
from oven_controller.bus.connection import Bus
from oven_controller.cancellation import call_at_end, end
from oven_controller.errors import ConfigError, UnknownNameError, reason
from oven_controller.protocol import names
from oven_controller.runs import judge_spend
from oven_controller.runs.judge_spend import JudgeSpend
from oven_controller.security.credentials import Credentials
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


def judge(name: Annotated[str, typer.Option(help="which of `committee.members` it is")]) -> None:
    """Answer the learner until told to end."""
    name = names.checked("member", name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(os.environ["OVEN_RUN_DIR"])
    committee = committee_settings(folder / "config.json", name)
    settings = committee.members[name]
    key = providers.key_of(name, settings)
    if key == providers.NO_KEY:
        log.info("no key_env is set: %s is asked without a key", settings.base_url)
    credentials = Credentials.from_environment()
    tracing.start(f"member-{name}", os.environ["OVEN_RUN"])
    try:
        asyncio.run(host(name, committee, key, folder, os.environ["OVEN_URL"], credentials, genai.trace))
    finally:
        tracing.shutdown()


def committee_settings(config: Path, name: str) -> CommitteeSettings:
    """Raises ConfigError when `config` cannot be read, UnknownNameError when it has no member of that name."""
    try:
        settings = json.loads(config.read_text())["committee"]
        members: dict[str, Any] = settings["members"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{config} holds no committee ({reason(error)}); was it written by `up`?") from error
    if name not in members:
        raise UnknownNameError("committee member", name, members)
    return CommitteeSettings.model_validate(settings)


async def host(
    name: str,
    committee: CommitteeSettings,
    key: str,
    folder: Path,
    url: str,
    credentials: Credentials | None,
    on_call: OnCall | None = None,
) -> None:
    """Answer until SIGTERM or SIGINT; what is under way then gets a short grace. `folder` is the run's."""
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_without_content)
    call_at_end(stop.set)
    settings = committee.members[name]
    async with AsyncExitStack() as open_until_the_end:
        member = connected(name, committee, key, folder, open_until_the_end, on_call)
        async with Bus.connect(url, credentials, name=name) as bus:
            log.info("%s judges as %s with %s", name, settings.role, settings.model)
            await serve(member, bus, stop)
    log.info("%s", member.summary())


def connected(
    name: str,
    committee: CommitteeSettings,
    key: str,
    folder: Path,
    until: AsyncExitStack,
    on_call: OnCall | None = None,
) -> Member:
    """The member, its meter and its cache in the run's `folder`; `until` closes them. Raises ConfigError."""
    settings = committee.members[name]
    provider = providers.connect(name, settings, key)
    until.push_async_callback(provider.close)
    price = partial(cost_usd, provider.name, settings.base_url, settings.model)
    if committee.budget.usd is not None or settings.budget.usd is not None:
        check_priced(name, settings.model, price)
    spend = JudgeSpend(folder / judge_spend.FOLDER, name, committee.budget, settings.budget)
    until.callback(spend.close)
    judge = Judge(settings.role, Metered(provider, spend, price), Controls(), on_call)
    if not committee.cache:
        return Member(name, judge, price)
    cache = VerdictCache(folder / judge_spend.FOLDER / f"{name}.verdicts.sqlite")
    until.callback(cache.close)
    # All that makes the judge what it is; not what it may spend, nor where its key is.
    identity = settings.model_dump_json(exclude={"budget", "key_env"})
    return Member(name, CachedJudge(judge, cache, identity), price)


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
