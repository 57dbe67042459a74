"""Probes a judge with one real call, which shows whether it can judge and which requested features its endpoint lacks.

A member probes its judge when it starts. `oven-controller doctor --judges` probes all judges (`probe_committee`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from oven_core.errors import ConfigError
from oven_llm.judges import rubric_prompts
from oven_llm.judges.judge import JudgeConfiguration
from oven_llm.judges.rubric_prompts import Rubric
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import FailureKind, ModelFailure
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally, Usage, cost_usd, record_calls_in
from oven_runs.settings.committee_settings import CommitteeSettings, MemberSettings
from oven_runs.settings.judge_providers import Catalogue, ModelEndpoint, SchemaMode, catalogue

TIMEOUT_S: Final = 30.0
"""Timeout of the call in seconds, including its retries. A reasoning model is slow even for two short answers."""
MARK: Final = "mark"
"""Name of a property that only the schema requires. A reply contains it only if the endpoint enforces the schema."""
TASK: Final = "How many days are in a week?"
ANSWERS: Final = ("Seven.", "A week has nine days.")
"""The answers to TASK that the model must score in a probe."""


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe. It contains no text from the endpoint."""

    provider: str
    """The provider's name in the settings."""
    model: str
    latency_s: float
    failure: FailureKind | None = None
    """The reason why the model cannot judge; None if it can."""
    detail: str = ""
    remedy: str = ""
    schema: SchemaMode | None = None
    """The schema mode that the endpoint supports; None if it is unknown because there was no complete reply."""
    top_logprobs: int = 0
    """Number of alternatives returned per token; 0 if they were not requested or not returned."""
    usd_per_million: tuple[float, float] | None = None
    """Price of input and output tokens; None if unknown."""
    missing_features: tuple[str, ...] = ()
    """A sentence for each requested feature that the endpoint does not provide."""
    usage: Usage | None = None
    """The billed usage of the call; None if the endpoint did not report it or did not reply."""

    @property
    def can_judge(self) -> bool:
        return self.failure is None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"can_judge": self.can_judge}


async def probe(
    model: RemoteModel, rubric: Rubric | None = None, timeout_s: float = TIMEOUT_S, tally: CallTally | None = None
) -> ProbeResult:
    """Send one request as a judge would, and return the result within `timeout_s`. `tally` records the cost. A failure
    is part of the result. A RemoteModel remembers features that were refused, so probe the instance that will judge."""
    tally = CallTally() if tally is None else tally
    ids = tuple(secrets.token_hex(6) for _ in ANSWERS)
    mark = secrets.token_hex(4)
    candidates = dict(zip(ids, ANSWERS, strict=True))
    question = _add_mark(rubric_prompts.build_request(rubric or Rubric(), "", TASK, candidates), mark)
    endpoint, terms = model.endpoint, model.terms
    result = ProbeResult(endpoint.provider, endpoint.model, 0.0, usd_per_million=usd_per_million(endpoint))
    started_s = time.monotonic()
    reply: ModelReply | None = None
    try:
        with record_calls_in(tally):
            async with asyncio.timeout(timeout_s):
                reply = await model.ask(question, timeout_s)
        reply.require_complete()
        text, has_mark = _remove_mark(reply.text, mark)
        terms.is_schema_ignored = terms.current.schema == "strict" and not has_mark
        schema = "none" if terms.is_schema_ignored else terms.current.schema
        result = replace(result, schema=schema, top_logprobs=_count_alternatives(reply))
        rubric_prompts.read_verdicts(text, ids)
    except (TimeoutError, ModelFailure) as error:
        if isinstance(error, ModelFailure):
            failure = error
        else:
            failure = ModelFailure(tally.last_failure or "timeout", f"no reply within {timeout_s:g} s")
        remedy = _suggest_remedy(failure.kind, endpoint)
        result = replace(result, failure=failure.kind, detail=failure.detail, remedy=remedy)
    missing_features = terms.missing_features()
    if result.usd_per_million is None:
        missing_features += (
            f"the price of {endpoint.model} is unknown: its cost is not counted, and a budget in USD cannot include it",
        )
    usage = reply.usage if reply is not None else None
    return replace(result, latency_s=time.monotonic() - started_s, missing_features=missing_features, usage=usage)


def usd_per_million(endpoint: ModelEndpoint) -> tuple[float, float] | None:
    """Return the price of a million input and output tokens in short calls. Some models charge more for long calls."""
    tokens = 1000
    input_usd, output_usd = cost_usd(endpoint, [Usage(tokens, 0)]), cost_usd(endpoint, [Usage(0, tokens)])
    if input_usd is None or output_usd is None:
        return None
    return input_usd * 1e6 / tokens, output_usd * 1e6 / tokens


def _add_mark(question: Conversation, mark: str) -> Conversation:
    """Return the question with a schema that also requires the property MARK."""
    schema = dict(question.schema or {})
    schema["properties"] = {**schema["properties"], MARK: {"type": "string", "enum": [mark]}}
    schema["required"] = [*schema["required"], MARK]
    return replace(question, schema=schema)


def _remove_mark(text: str, mark: str) -> tuple[str, bool]:
    """Return the reply without the mark, and whether the reply contained it."""
    value: Any = None
    with contextlib.suppress(ValueError, RecursionError):  # a reply in a code fence cannot be parsed here
        value = json.loads(text)
    if not isinstance(value, dict) or value.get(MARK) != mark:
        return text, False
    del value[MARK]
    return json.dumps(value), True


def _count_alternatives(reply: ModelReply) -> int:
    """Return the largest number of alternatives of a token in the reply."""
    return max((len(token.top) for token in reply.logprobs or ()), default=0)


def _suggest_remedy(kind: FailureKind, endpoint: ModelEndpoint) -> str:
    """Return a suggestion for the user that may fix a failure."""
    match kind:
        case "auth" if not endpoint.key_env:
            return "the endpoint requires an API key: set key_env to the environment variable with the key"
        case "auth":
            return f"check the API key in {endpoint.key_env} and the account's credit and permissions"
        case "not_found":
            return f"check `model` ({endpoint.model}) and `base_url` ({endpoint.base_url})"
        case "bad_request":
            return "the endpoint rejects even a plain request: check `model`, its context length and `base_url`"
        case "connection":
            return f"check that {endpoint.base_url} is reachable from this machine"
        case "timeout":
            return "the endpoint is slow or stuck: try again, or use a faster model"
        case "rate_limit" | "overloaded" | "server_error":
            return "try again later; the member abstains until then"
        case "budget":
            return "raise the cap or remove the judge"
        case "bad_response":
            server = f"the server at {endpoint.base_url}"
            return f"{server} does not implement the {endpoint.wire} API: check `base_url` and `provider`"
        case "refusal":
            return "the model refuses to judge: use another model"
        case "truncated":
            return "the model used all its tokens before the verdict: use a model that reasons less"
        case _:
            advice = "use a stronger model, or one that supports JSON Schema"
            return f"the model does not return verdicts in the required format: {advice}"


def probe_committee() -> None:
    """Read a committee's settings as JSON from stdin, probe all judges concurrently, and print the results as JSON. API
    keys come from the environment, so that neither the command line nor a file contains them."""
    logging.getLogger("oven.member").setLevel(logging.CRITICAL)  # the printed results include the missing features
    committee = CommitteeSettings.model_validate_json(sys.stdin.buffer.read())
    providers = catalogue(committee.providers)

    async def probe_all() -> list[dict[str, Any]]:
        probes = (_probe_member(name, member, providers) for name, member in committee.judges.items())
        return list(await asyncio.gather(*probes))

    results = asyncio.run(probe_all())
    print(json.dumps(dict(zip(committee.judges, results, strict=True))))


async def _probe_member(name: str, member: MemberSettings, providers: Catalogue) -> dict[str, Any]:
    try:
        configuration = JudgeConfiguration.look_up(name, member, providers)
        model = configuration.connect()
    except ConfigError as error:
        unconfigured = {"provider": member.provider, "model": member.model, "can_judge": False, "missing_features": []}
        return unconfigured | {"failure": "not_configured", "detail": str(error), "remedy": ""}
    try:
        return (await probe(model, configuration.rubric)).as_json()
    finally:
        await model.close()
