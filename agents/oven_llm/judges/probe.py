"""One real call to a judge's endpoint: whether it can judge, and what of what was asked for it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from oven_llm.judges import rubric_prompts, verdict
from oven_llm.judges.rubric_prompts import Rubric
from oven_llm.providers.failures import Kind, ModelFailure
from oven_llm.providers.provider import Answer, EndpointProvider, Question
from oven_llm.providers.usage import Ledger, Usage, cost_usd, opened
from oven_runs.settings.judge_providers import ModelEndpoint, SchemaMode

PROBE_S = 30.0
"""For the call with its retries: a model that reasons takes a while even for two short answers."""
ATTEMPT_SHARE = 2 / 3
"""Of that for one HTTP attempt, as in a judge's calls."""
MARK: Final = "mark"
"""A property that only the schema asks for: an answer that has it was held to the schema."""
TASK: Final = "How many days has a week?"
ANSWERS: Final = ("Seven.", "A week has nine days.")


@dataclass(frozen=True)
class ProbeResult:
    """What one call told. It holds no text of the endpoint's."""

    provider: str
    """As in the settings."""
    model: str
    latency_s: float
    failure: Kind | None = None
    """Why it cannot judge; None: it can."""
    detail: str = ""
    remedy: str = ""
    schema: SchemaMode | None = None
    """What its answers are held to; None: not known, since it gave no whole one."""
    top_logprobs: int = 0
    """Alternatives a token that came; 0: no log-probabilities, or not asked for."""
    usd_per_million: tuple[float, float] | None = None
    """Of tokens in and out; None: not known."""
    lacks: tuple[str, ...] = ()
    """A sentence for each thing that was asked for and is not to be had."""
    usage: Usage | None = None
    """Tokens that the call was billed for; None: not said, or no answer."""

    @property
    def can_judge(self) -> bool:
        return self.failure is None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"can_judge": self.can_judge}


async def probe(
    provider: EndpointProvider,
    rubric: Rubric | None = None,
    timeout_s: float = PROBE_S,
    ledger: Ledger | None = None,
) -> ProbeResult:
    """Ask once, as a member asks; `ledger` takes what it cost. Never raises for what the endpoint does; ends by
    `timeout_s`. What the endpoint refuses, the provider asks no more of it: so a judge is probed with the provider that
    it will use."""
    ledger = Ledger() if ledger is None else ledger
    ids = tuple(secrets.token_hex(6) for _ in ANSWERS)
    mark = secrets.token_hex(4)
    question = _marked(
        rubric_prompts.question(rubric or Rubric(), "", TASK, dict(zip(ids, ANSWERS, strict=True))), mark
    )
    asked = provider.asked
    result = ProbeResult(asked.provider, asked.model, 0.0, usd_per_million=usd_per_million(asked))
    started = time.monotonic()
    answer: Answer | None = None
    try:
        with opened(ledger):
            async with asyncio.timeout(timeout_s):
                answer = await provider.ask(question, ATTEMPT_SHARE * timeout_s)
        ledger.usages.append(answer.usage)
        if answer.outcome != "complete":
            raise ModelFailure(answer.outcome, f"the answer ended with {answer.finish_reason}")
        text, held = _without_mark(answer.text, mark)
        terms = provider.terms
        terms.schema_ignored = terms.now.schema == "strict" and not held
        schema = "none" if terms.schema_ignored else terms.now.schema
        result = replace(result, schema=schema, top_logprobs=_alternatives(answer))
        verdict.read(text, ids)
    except TimeoutError:
        result = _failed(result, asked, ModelFailure(ledger.last or "timeout", f"no answer within {timeout_s:g} s"))
    except ModelFailure as failure:
        result = _failed(result, asked, failure)
    lacks = provider.terms.lacks()
    if result.usd_per_million is None:
        lacks += (
            f"the price of {asked.model} is not known: its cost is not counted, and a budget in USD cannot hold it",
        )
    return replace(
        result, latency_s=time.monotonic() - started, lacks=lacks, usage=answer.usage if answer is not None else None
    )


def _marked(question: Question, mark: str) -> Question:
    properties = {**question.schema["properties"], MARK: {"type": "string", "enum": [mark]}}
    required = [*question.schema["required"], MARK]
    return replace(question, schema={**question.schema, "properties": properties, "required": required})


def _without_mark(text: str, mark: str) -> tuple[str, bool]:
    """The answer without the mark, and whether it had it: only the schema asks for it."""
    value: Any = None
    with contextlib.suppress(ValueError, RecursionError):  # with a fence around it, perhaps: `verdict.read` knows
        value = json.loads(text)
    if not isinstance(value, dict) or value.get(MARK) != mark:
        return text, False
    return json.dumps({key: part for key, part in value.items() if key != MARK}), True


def _alternatives(answer: Answer) -> int:
    if answer.logprobs is None:
        return 0
    return max((len(token.top) for token in answer.logprobs.tokens), default=0)


def usd_per_million(asked: ModelEndpoint) -> tuple[float, float] | None:
    """Of tokens in and out, of a short call (some models cost more beyond a length)."""
    thousand = 1000
    into, out = (cost_usd(asked, [usage]) for usage in (Usage(thousand, 0), Usage(0, thousand)))
    return None if into is None or out is None else (into * thousand, out * thousand)


def _failed(result: ProbeResult, asked: ModelEndpoint, failure: ModelFailure) -> ProbeResult:
    return replace(result, failure=failure.kind, detail=failure.detail, remedy=_remedy(failure.kind, asked))


def _remedy(kind: Kind, asked: ModelEndpoint) -> str:
    """What a person can do about it."""
    match kind:
        case "auth" if not asked.key_env:
            return "the endpoint wants a key: name the variable that holds it with key_env"
        case "auth":
            return f"check the key in {asked.key_env}, and the account's credit and rights"
        case "not_found":
            return f"check `model` ({asked.model}) and the address {asked.base_url}"
        case "bad_request":
            return "the endpoint refuses even a plain question: check `model`, its context length and the address"
        case "connection":
            return f"check that {asked.base_url} can be reached from here"
        case "timeout":
            return "the endpoint is slow or hangs: try again, or take a faster model"
        case "rate_limit" | "overloaded" | "server_error":
            return "try again later; while it lasts the member abstains"
        case "budget":
            return "raise the cap, or leave the judge out"
        case "bad_response":
            return f"what answers at {asked.base_url} is not the API of {asked.wire}: check the address and `provider`"
        case "refusal":
            return "the model declines to judge: take another one"
        case "truncated":
            return "the model used up its tokens before the verdict: take one that reasons less"
        case _:
            return (
                "the model does not keep to the form of a verdict: take a stronger one, or one that takes a JSON Schema"
            )
