"""Runs the process of a committee member. Its NATS connection may only answer requests from the learner."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from oven_core.bus import Msg, NatsError
from oven_core.bus.connection import PATIENT_CONNECT_TIMEOUT_S, Bus
from oven_core.cancellation import end, on_termination
from oven_core.errors import ConfigError, UnknownNameError, reason
from oven_core.protocol import names
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import Message
from oven_core.security.credentials import Credentials
from oven_core.telemetry import tracing
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge import CheckSettings, JudgeConfiguration
from oven_llm.judges.judge_probe import ProbeResult, probe, probe_committee
from oven_llm.judges.member_judges import BudgetAndCache, MemberJudges
from oven_llm.providers import genai_telemetry as genai
from oven_runs.home import endpoint_checks
from oven_runs.settings.committee_members import with_judge
from oven_runs.settings.committee_settings import CommitteeSettings
from oven_runs.settings.judge_providers import NO_KEY, catalogue

log = logging.getLogger("oven.member")

MAX_PENDING: Final = 512
"""Maximum pending requests. Further requests are dropped and miss their deadlines."""
GRACE_S: Final = 2.0
"""Seconds that requests in progress may still take when the process stops."""


def main(args: list[str]) -> int:
    run(args, prog_name="member")
    return 0


@click.command()
@click.option("--name", default="", help="the member's name in `committee.members`")
@click.option(
    "--probe",
    "probe_all",
    is_flag=True,
    help="read a committee from stdin, probe each of its judges once and print the results",
)
def run(name: str, probe_all: bool) -> None:
    """Answer the learner until the process receives SIGTERM or SIGINT."""
    if probe_all:
        probe_committee()
        return
    name = names.validate("member", name)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(os.environ["OVEN_RUN_DIR"])
    configuration = look_up_judge(folder / "config.json", name)
    if configuration.key == NO_KEY:
        log.info("key_env is not set: %s is called without an API key", configuration.endpoint.base_url)
    credentials = Credentials.from_environment()

    def save_probe(result: ProbeResult) -> None:
        try:
            endpoint_checks.write(folder, name, result.as_json())
        except OSError as error:
            log.warning("could not save the result of the probe, which is only in this log: %s", reason(error))

    tracing.start(f"member-{name}", os.environ["OVEN_RUN"])
    look_up = partial(look_up_judge, folder / "config.json", name)
    budget_and_cache = BudgetAndCache(name, read_committee_settings(folder / "config.json"), folder)
    judges = MemberJudges(configuration, look_up, genai.trace, save_probe, budget_and_cache)
    try:
        asyncio.run(run_member(configuration, judges, os.environ["OVEN_URL"], credentials, save_probe))
    finally:
        budget_and_cache.close()
        tracing.shutdown()


def look_up_judge(config: Path, name: str, spec: JudgeSpec | None = None) -> JudgeConfiguration:
    """Return the configuration of the member's judge, with the model `spec` if it is not None. Raises ConfigError if
    the file `config` or a setting of the judge is unusable, and UnknownNameError if there is no such member."""
    committee = read_committee_settings(config)
    if name not in committee.members:
        raise UnknownNameError("committee member", name, committee.members)
    member = committee.members[name]
    if spec is not None:
        member = with_judge(member, spec)
    check_settings = CheckSettings(
        max_characters=committee.characters,
        reversed_share=committee.reversed_share,
        rescore_interval=committee.rescore_every,
        results=config.parent / endpoint_checks.FOLDER / name,
    )
    return JudgeConfiguration.look_up(name, member, catalogue(committee.providers), check_settings=check_settings)


def read_committee_settings(config: Path) -> CommitteeSettings:
    """Return the committee's settings from a run's config file. Raises ConfigError if it cannot be read."""
    try:
        return CommitteeSettings.model_validate(json.loads(config.read_text())["committee"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{config} does not contain the settings of a committee ({reason(error)}); was it written by `up`?"
        ) from error


async def run_member(
    configuration: JudgeConfiguration,
    judges: MemberJudges,
    url: str,
    credentials: Credentials | None,
    on_probe: Callable[[ProbeResult], None] = lambda _: None,
) -> None:
    """Probe the judge and answer requests until SIGTERM or SIGINT. Then finish active requests if possible."""
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_log_without_content)
    on_termination(stop.set)
    name = configuration.name
    member = Member(name, judges, judges.probe)
    probe_task = asyncio.create_task(probe_configured_judge(configuration, judges, on_probe), name="probe")
    try:
        async with Bus.connect(url, credentials, name=name, timeout_s=PATIENT_CONNECT_TIMEOUT_S) as bus:
            log.info("%s is judging as %s with %s", name, configuration.rubric.role, configuration.endpoint.model)
            await serve(member, bus, stop)
    finally:
        await end(probe_task)
        await judges.close()
        member.failed_attempts.update(judges.collect_unreported_tally().failed_attempts)
        log.info("%s", member.summary())


async def probe_configured_judge(
    configuration: JudgeConfiguration, judges: MemberJudges, on_probe: Callable[[ProbeResult], None]
) -> None:
    """Probe the configured judge and log its missing features. A judge that fails the probe still gets requests."""
    model = judges.configured_model.model
    result = await probe(model, configuration.rubric)
    if result.failure is not None:
        problem = f"{result.failure} ({result.detail}); {result.remedy}"
        log.error("the probe failed, so the model cannot judge at the moment: %s", problem)
    model.terms.log_missing_features(result.missing_features)
    if result.can_judge:
        log.info("the probe succeeded after %.1f s", result.latency_s)
    on_probe(result)


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
        if reply is None:
            return
        with contextlib.suppress(NatsError, OSError):  # if the server is down, the learner cannot receive the reply
            await bus.publish(message.reply, reply.wire())

    async def receive(message: Msg) -> None:
        # An empty message only checks that a listener exists, and needs no reply. If the reply subject were not an
        # inbox, the sender could make this process publish on another process's subject.
        if not message.data or not message.reply.startswith("_INBOX_."):
            return
        if len(tasks) >= MAX_PENDING:
            log.warning("dropped a request because %d are pending", len(tasks))
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
        _, unfinished_tasks = await asyncio.wait(set(tasks), timeout=GRACE_S)
        await end(*unfinished_tasks)


def _log_without_content(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error without its traceback, because an exception's message may quote a request."""
    log.error("%s (%s)", context.get("message", "error"), type(context.get("exception")).__name__)
