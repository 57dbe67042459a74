"""Runs a one-time process that fetches replies for the frontier calibrator and writes them to the run's folder.

The learner reads the file once it exists, and does not wait for it. A resumed run or a restarted stack finds it again.
Prompts and replies are in that file only: neither logs nor spans contain them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import typer

from oven_core.errors import ConfigError, ProcessError, reason
from oven_llm import providers
from oven_llm.judges.member_process import committee_settings
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.remote_model import RemoteModel
from oven_runs.home import probe_set
from oven_runs.home.probe_set import Alternative, Probe, ProbeSet, Token
from oven_runs.settings.committee_settings import FrontierSettings
from oven_runs.settings.judge_providers import CALIBRATOR, catalogue, endpoint_of, key_of

log = logging.getLogger("oven.probes")

CONCURRENT: Final = 4
"""Maximum concurrent prompts. A low value is enough because nothing waits for the replies."""
TIMEOUT_S: Final = 300.0
"""Timeout of one prompt in seconds, including the SDK's retries and pauses requested by the provider."""
MIN_SHARE: Final = 0.5
"""Minimum share of prompts with a reply. Fewer replies would be a different set of prompts."""
SYSTEM: Final = "Answer the user."


def main(args: list[str]) -> int:
    """Entry point of the process."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(fetch)
    app(args, prog_name="probes")
    return 0


def fetch() -> None:
    """Fetch the run's probe set if it does not exist yet."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(os.environ["OVEN_RUN_DIR"])
    settings, providers_file = frontier_settings(folder / "config.json")
    prompts = probe_set.read_prompts(Path(settings.prompts))
    key = probe_set.key(settings.provider, settings.base_url, settings.model, prompts)
    try:
        existing = probe_set.read(folder, key)
    except ConfigError as error:
        log.warning("%s; it is fetched again", error)
        existing = None
    if existing is not None:
        log.info("the %d answers of %s exist already", len(existing.probes), settings.model)
        return
    fetched = asyncio.run(_connect_and_fetch(settings, providers_file, prompts))
    try:
        probe_set.write(folder, key, fetched)
    except OSError as error:
        raise ProcessError(f"the probe set cannot be written to {folder}: {reason(error)}") from error
    if fetched.lacks:
        log.warning("%s", fetched.lacks)
    log.info("%d answers of %s were saved", len(fetched.probes), settings.model)


def frontier_settings(config: Path) -> tuple[FrontierSettings, str]:
    """Return the calibrator's settings and the path of the user's catalogue. Raises ConfigError if there are none."""
    committee = committee_settings(config)
    if not committee.frontier.model:
        raise ConfigError("committee.frontier names no model; give provider, model and prompts")
    return committee.frontier, committee.providers


async def _connect_and_fetch(settings: FrontierSettings, providers_file: str, prompts: Sequence[str]) -> ProbeSet:
    model = endpoint_of("frontier", settings.member, catalogue(providers_file), CALIBRATOR)
    key = key_of("frontier", model, setting=CALIBRATOR)
    endpoint = providers.connect("frontier", replace(model, schema_mode="none"), key, settings.top_logprobs)
    try:
        return await fetch_probes(endpoint, prompts, settings.max_tokens)
    finally:
        await endpoint.close()


async def fetch_probes(endpoint: RemoteModel, prompts: Sequence[str], max_tokens: int) -> ProbeSet:
    """Ask all prompts. Raises ProcessError if too few of them have a reply."""
    free = asyncio.Semaphore(CONCURRENT)
    costs: list[float | None] = []

    async def ask(prompt: str) -> Probe | ModelFailure:
        question = Conversation.question(SYSTEM, prompt, None, max_tokens)
        async with free:
            try:
                reply = await endpoint.ask(question, TIMEOUT_S)
            except ModelFailure as failure:
                return failure
        costs.append(reply.cost_usd)
        if reply.finish == "refusal" or not reply.text:
            return ModelFailure("refusal", "no text")
        return Probe(prompt=prompt, completion=reply.text, tokens=tokens_of(reply))

    replies = await asyncio.gather(*(ask(prompt) for prompt in prompts))
    probes = tuple(reply for reply in replies if isinstance(reply, Probe))
    failures = [reply for reply in replies if isinstance(reply, ModelFailure)]
    cost = None if None in costs else sum(cost or 0.0 for cost in costs)
    log.info("%d of %d prompts were answered%s", len(probes), len(prompts), f" for {cost:.4f} USD" if cost else "")
    if not probes or len(probes) < MIN_SHARE * len(prompts):
        raise ProcessError(
            f"{endpoint.model} answered {len(probes)} of {len(prompts)} prompts, and the first failure was: "
            f"{failures[0]}; the frontier metrics stay absent"
        )
    lacks = _lacks(endpoint, probes, failures)
    return ProbeSet(provider=endpoint.settings.provider, model=endpoint.model, probes=probes, lacks=lacks)


def tokens_of(reply: ModelReply) -> tuple[Token, ...]:
    """Return the reply's tokens with their alternatives, or nothing if the tokens do not add up to its text."""
    tokens = reply.logprobs or ()
    if b"".join(token.data for token in tokens) != reply.text.encode():
        return ()
    return tuple(
        Token(
            hex=token.data.hex(),
            top=tuple(
                Alternative(hex=data.hex(), logprob=logprob)
                for data, (_, logprob) in zip(token.top_data, token.top, strict=True)
            ),
        )
        for token in tokens
    )


def _lacks(endpoint: RemoteModel, probes: Sequence[Probe], failures: Sequence[ModelFailure]) -> str:
    lacks = []
    with_tokens = sum(bool(probe.tokens) for probe in probes)
    if not with_tokens:
        lacks.append(
            f"{endpoint.model} at {endpoint.settings.provider} offers no log-probabilities: bits per byte are "
            "measured, and no divergence"
        )
    elif with_tokens < len(probes):
        lacks.append(f"{len(probes) - with_tokens} of {len(probes)} answers have no log-probabilities")
    if failures:
        lacks.append(f"{len(failures)} of {len(probes) + len(failures)} prompts have no answer ({failures[0].kind})")
    return "; ".join(lacks)
