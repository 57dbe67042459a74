"""The frontier calibrator's answers: a process that fetches them once, writes them into the run's folder, and ends.

The learner reads the file when it is there and waits for nothing. A run that is resumed, or whose stack is started
again, finds it. Prompts and answers are in that file and nowhere else: neither in a log nor in a span.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer
from pydantic import ValidationError

from oven_core.errors import ConfigError, ProcessError, reason
from oven_llm import providers
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.provider import Answer, EndpointProvider, Logprobs, Question
from oven_llm.providers.usage import Usage, cost_usd
from oven_runs.home import probe_set
from oven_runs.home.probe_set import Alternative, Probe, ProbeSet, Token
from oven_runs.settings.committee_settings import FrontierSettings
from oven_runs.settings.judge_providers import CALIBRATOR, catalogue, endpoint_of, key_of

log = logging.getLogger("oven.probes")

AT_A_TIME = 4
"""Prompts that are with the provider at a time: there is no hurry."""
ATTEMPT_S = 120.0
"""For one HTTP attempt: a long answer of a model that reasons."""
LIMIT_S = 600.0
"""For one prompt, with the SDK's retries and whatever pause the provider asks for."""
LEAST = 0.5
"""Share of the prompts that must have an answer: fewer are another set than the one that was asked for."""
SYSTEM = "Answer the user."


def main(args: list[str]) -> int:
    """Entry point of the process."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(fetch)
    app(args, prog_name="probes")
    return 0


def fetch() -> None:
    """Fetch the run's probe set, unless it is there."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = Path(os.environ["OVEN_RUN_DIR"])
    settings, overlay = frontier_settings(folder / "config.json")
    prompts = probe_set.read_prompts(Path(settings.prompts))
    key = probe_set.key(settings.provider, settings.base_url, settings.model, prompts)
    try:
        there = probe_set.read(folder, key)
    except ConfigError as error:
        log.warning("%s: it is fetched again", error)
        there = None
    if there is not None:
        log.info("the %d answers of %s are there already", len(there.probes), settings.model)
        return
    found = asyncio.run(_connected(settings, overlay, prompts))
    try:
        probe_set.write(folder, key, found)
    except OSError as error:
        raise ProcessError(f"the probe set cannot be written to {folder}: {reason(error)}") from error
    if found.lacks:
        log.warning("%s", found.lacks)
    log.info("%d answers of %s are there", len(found.probes), settings.model)


def frontier_settings(config: Path) -> tuple[FrontierSettings, str]:
    """With the path of the catalogue that is laid over the packaged one. Raises ConfigError where there are none."""
    try:
        committee = json.loads(config.read_text())["committee"]
        settings = FrontierSettings.model_validate(committee["frontier"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError, ValidationError) as error:
        raise ConfigError(f"{config} holds no calibrator ({type(error).__name__}); was it written by `up`?") from None
    if not settings.model:
        raise ConfigError("committee.frontier names no model; give provider, model and prompts")
    return settings, str(committee.get("providers", ""))


async def _connected(settings: FrontierSettings, overlay: str, prompts: Sequence[str]) -> ProbeSet:
    member = settings.member
    asked = endpoint_of("frontier", member, catalogue(overlay), CALIBRATOR)
    key = key_of("frontier", asked, at=CALIBRATOR)
    provider = providers.connect("frontier", replace(asked, schema_mode="none"), key, settings.top_logprobs)
    try:
        return await fetched(provider, prompts, settings.max_tokens)
    finally:
        await provider.close()


async def fetched(provider: EndpointProvider, prompts: Sequence[str], max_tokens: int) -> ProbeSet:
    """Raises ProcessError where too few of the prompts were answered."""
    free = asyncio.Semaphore(AT_A_TIME)

    async def one(prompt: str) -> Probe | ModelFailure:
        async with free:
            try:
                async with asyncio.timeout(LIMIT_S):
                    answer = await provider.ask(Question(SYSTEM, prompt, {}, max_tokens), ATTEMPT_S)
            except ModelFailure as failure:
                return failure
            except TimeoutError:
                return ModelFailure("timeout", f"no answer within {LIMIT_S:g} s")
            used.append(answer.usage)
            if answer.outcome == "refusal" or not answer.text:
                return ModelFailure("refusal", "no text")
            return Probe(prompt=prompt, completion=answer.text, tokens=tokens_of(answer))

    used: list[Usage | None] = []
    answers = await asyncio.gather(*(one(prompt) for prompt in prompts))
    probes = tuple(answer for answer in answers if isinstance(answer, Probe))
    failures = [answer for answer in answers if isinstance(answer, ModelFailure)]
    cost = cost_usd(provider.asked, used)
    log.info("%d of %d prompts were answered%s", len(probes), len(prompts), f" for {cost:.4f} USD" if cost else "")
    if not probes or len(probes) < LEAST * len(prompts):
        raise ProcessError(
            f"{provider.model} answered {len(probes)} of {len(prompts)} prompts, and the first failure was: "
            f"{failures[0]}; the frontier metrics stay absent"
        )
    return ProbeSet(
        provider=provider.asked.provider, model=provider.model, probes=probes, lacks=_lacks(provider, probes, failures)
    )


def tokens_of(answer: Answer) -> tuple[Token, ...]:
    """The answer's tokens with their alternatives; none where they do not add up to its text."""
    said = answer.logprobs
    if said is None or b"".join(token.data for token in said.tokens) != answer.text.encode():
        return ()
    return _tokens(said)


def _tokens(said: Logprobs) -> tuple[Token, ...]:
    return tuple(
        Token(
            hex=token.data.hex(),
            top=tuple(
                Alternative(hex=spelt.hex(), logprob=odds)
                for spelt, (_, odds) in zip(token.top_data, token.top, strict=True)
            ),
        )
        for token in said.tokens
    )


def _lacks(provider: EndpointProvider, probes: Sequence[Probe], failures: Sequence[ModelFailure]) -> str:
    found = []
    with_tokens = sum(bool(probe.tokens) for probe in probes)
    if not with_tokens:
        found.append(
            f"{provider.model} at {provider.asked.provider} gives no log-probabilities: bits per byte are measured, "
            "and no divergence"
        )
    elif with_tokens < len(probes):
        found.append(f"{len(probes) - with_tokens} of {len(probes)} answers have no log-probabilities")
    if failures:
        found.append(f"{len(failures)} of {len(probes) + len(failures)} prompts have no answer ({failures[0].kind})")
    return "; ".join(found)
