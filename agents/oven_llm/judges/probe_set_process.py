"""Runs a one-time process that fetches a frontier model's replies to a set of prompts, and saves them for the run.

The learner's calibrator reads the file once it exists, and does not wait for it. A resumed run uses the existing file.
Only that file contains the prompts and replies. Logs and spans do not."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from oven_core.errors import ConfigError, ProcessError, reason
from oven_llm import providers
from oven_llm.judges.member_process import read_committee_settings
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.remote_model import RemoteModel
from oven_runs.home import probe_set
from oven_runs.home.probe_set import Alternative, Probe, ProbeSet, Token
from oven_runs.settings.committee_settings import FrontierSettings
from oven_runs.settings.judge_providers import CALIBRATOR, catalogue, endpoint_of, key_of

log = logging.getLogger("oven.probes")

MAX_CONCURRENT: Final = 4
"""Maximum prompts in progress at once. The value is low because nothing waits for the replies."""
TIMEOUT_S: Final = 300.0
"""Timeout in seconds of one prompt, including retries and the pauses that a provider requests."""
MIN_REPLY_SHARE: Final = 0.5
"""Minimum share of prompts with a reply. With fewer, the metrics would describe a different set of prompts."""
SYSTEM: Final = "Answer the user."


def main(args: list[str]) -> int:
    fetch(args, prog_name="probes")
    return 0


@click.command()
def fetch() -> None:
    """Fetch the run's probe set if it does not exist yet."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(os.environ["OVEN_RUN_DIR"])
    settings, providers_file = read_frontier_settings(folder / "config.json")
    prompts = probe_set.read_prompts(Path(settings.prompts))
    key = probe_set.key_of(settings.provider, settings.base_url, settings.model, prompts)
    try:
        existing = probe_set.read(folder, key)
    except ConfigError as error:
        log.warning("%s; fetching the probe set again", error)
        existing = None
    if existing is not None:
        log.info("the run's folder already contains %d replies of %s", len(existing.probes), settings.model)
        return
    new_probe_set = asyncio.run(_connect_and_fetch(settings, providers_file, prompts))
    try:
        probe_set.write(folder, key, new_probe_set)
    except OSError as error:
        raise ProcessError(f"could not write the probe set to {folder}: {reason(error)}") from error
    if new_probe_set.missing_features:
        log.warning("%s", new_probe_set.missing_features)
    log.info("saved %d replies of %s", len(new_probe_set.probes), settings.model)


def read_frontier_settings(config: Path) -> tuple[FrontierSettings, str]:
    """Return the settings of the frontier model and the path of the user's provider catalogue. Raises ConfigError if
    `config` cannot be read or names no frontier model."""
    committee = read_committee_settings(config)
    if not committee.frontier.model:
        raise ConfigError("committee.frontier.model is not set; set provider, model and prompts of committee.frontier")
    return committee.frontier, committee.providers


async def _connect_and_fetch(settings: FrontierSettings, providers_file: str, prompts: Sequence[str]) -> ProbeSet:
    endpoint = endpoint_of("frontier", settings.member, catalogue(providers_file), CALIBRATOR)
    key = key_of("frontier", endpoint, setting=CALIBRATOR)
    model = providers.connect("frontier", replace(endpoint, schema_mode="none"), key, settings.top_logprobs)
    try:
        return await fetch_probes(model, prompts, settings.max_tokens)
    finally:
        await model.close()


async def fetch_probes(model: RemoteModel, prompts: Sequence[str], max_tokens: int) -> ProbeSet:
    """Send all prompts and return the replies. Raises ProcessError if too few prompts get a reply."""
    slots = asyncio.Semaphore(MAX_CONCURRENT)
    costs: list[float | None] = []

    async def send(prompt: str) -> Probe | ModelFailure:
        question = Conversation.question(SYSTEM, prompt, None, max_tokens)
        async with slots:
            try:
                reply = await model.ask(question, TIMEOUT_S)
            except ModelFailure as failure:
                return failure
        costs.append(reply.cost_usd)
        if reply.finish == "refusal" or not reply.text:
            return ModelFailure("refusal", "the reply has no text")
        return Probe(prompt=prompt, completion=reply.text, tokens=extract_tokens(reply))

    replies = await asyncio.gather(*(send(prompt) for prompt in prompts))
    probes = tuple(reply for reply in replies if isinstance(reply, Probe))
    failures = [reply for reply in replies if isinstance(reply, ModelFailure)]
    cost = None if None in costs else sum(cost or 0.0 for cost in costs)
    log.info(
        "received replies to %d of %d prompts%s", len(probes), len(prompts), f" for {cost:.4f} USD" if cost else ""
    )
    if not probes or len(probes) < MIN_REPLY_SHARE * len(prompts):
        raise ProcessError(
            f"{model.model} replied to only {len(probes)} of {len(prompts)} prompts, and the first failure was "
            f"{failures[0]}; the run continues without frontier metrics"
        )
    missing = _describe_missing_features(model, probes, failures)
    return ProbeSet(provider=model.endpoint.provider, model=model.model, probes=probes, missing_features=missing)


def extract_tokens(reply: ModelReply) -> tuple[Token, ...]:
    """Return the reply's tokens with their alternatives, or an empty tuple if the tokens do not add up to its text."""
    tokens = reply.logprobs or ()
    if b"".join(token.data for token in tokens) != reply.text.encode():
        return ()
    extracted = []
    for token in tokens:
        logprobs = [logprob for _, logprob in token.top]
        pairs = zip(token.top_data, logprobs, strict=True)
        alternatives = tuple(Alternative(hex=data.hex(), logprob=logprob) for data, logprob in pairs)
        extracted.append(Token(hex=token.data.hex(), top=alternatives))
    return tuple(extracted)


def _describe_missing_features(model: RemoteModel, probes: Sequence[Probe], failures: Sequence[ModelFailure]) -> str:
    """Return sentences about replies and log-probabilities that the probe set lacks, or an empty string."""
    sentences = []
    logprobs_count = sum(bool(probe.tokens) for probe in probes)
    if not logprobs_count:
        sentences.append(
            f"{model.model} at {model.endpoint.provider} returns no log-probabilities: only bits per byte can be "
            "measured, not the divergence"
        )
    elif logprobs_count < len(probes):
        sentences.append(f"{len(probes) - logprobs_count} of {len(probes)} replies have no log-probabilities")
    if failures:
        sentences.append(f"{len(failures)} of {len(probes) + len(failures)} prompts have no reply ({failures[0].kind})")
    return "; ".join(sentences)
