"""A judge's endpoint on loopback that speaks both wire formats and fails as told, over real HTTP.

The model's name holds the script: `m@429x2,500` fails two requests with 429, one with 500, and answers from then on;
`m@chaos` fails a quarter of all requests, drawn from a seed. It knows what a candidate is worth from its text
("worth 7"), and so a score that is wrong can be told from one that is right. What no judge asks it answers as a
conversation (scripted_conversation.py).
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from aiohttp import web
from tests.support import scripted_conversation as scripted
from tests.support.scripted_conversation import Bills, ChatMessage, ChatRequest, Script

CHAOS = (
    *("429", "500", "529", "reset", "hang", "cutbody"),
    *("html", "prose", "truncated", "refusal", "schema", "foreign_id", "missing_id", "range"),
)
"""What `m@chaos` draws from, all alike."""
SHARE = 0.25
KINDS = {
    **dict.fromkeys(("429", "later"), "rate_limit"),
    **{"500": "server_error", "529": "overloaded", "reset": "connection", "hang": "timeout"},
    **dict.fromkeys(("cutbody", "html"), "bad_response"),
    **{"prose": "bad_json", "truncated": "truncated", "refusal": "refusal", "schema": "schema"},
    **dict.fromkeys(("foreign_id", "missing_id"), "wrong_ids"),
    "range": "out_of_range",
}
"""As what a member counts each of them."""
LATER_S = 300
"""Seconds after which to come back, as a model that is named `m@later` asks."""
_WORTH = re.compile(r"worth (\d+)")


class Endpoint:
    def __init__(self, seed: int = 0) -> None:
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.served: Counter[str] = Counter()
        """Requests by their outcome; "ok" for those that were answered."""
        self.formats = {"json_schema", "json_object"}
        """What an answer can be held to; a request for another format is refused."""
        self.top_logprobs = 20
        """Alternatives a token at most; 0: a request for log-probabilities is refused."""
        self.ignores = False
        """Formats and log-probabilities are taken and then ignored, as `transformers serve` does."""
        self.likes = ""
        """A candidate with this in it gets full marks, whatever it is worth."""
        self.obeys: str | None = None
        """A candidate that is exactly this gets full marks."""
        self.script: Script | None = None
        """What a model says to everything, in place of the rules for judges."""
        self.bills = Bills()
        """Of conversations."""
        self.traces: list[bytes] = []
        """What was sent to this address as a collector of traces."""
        self._draws = random.Random(seed)
        self._scripts: dict[str, list[str]] = {}
        self._released = asyncio.Event()

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_post("/v1/chat/completions", self._openai)
        app.router.add_post("/v1/messages", self._anthropic)
        app.router.add_post("/v1/traces", self._collect)
        app.router.add_get("/served", self._count)
        app.router.add_get("/billed", self._billed)
        app.router.add_post("/deepseek/v1/chat/completions", self._deepseek)
        app.router.add_post("/grok/v1/chat/completions", self._grok)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self._released.set()
            await runner.cleanup()

    def _fault(self, model: str) -> str:
        _, _, script = model.partition("@")
        if script == "chaos":
            return self._chance(CHAOS)
        if model not in self._scripts:
            steps = [step.partition("x") for step in script.split(",") if step]
            self._scripts[model] = [name for name, _, times in steps for _ in range(int(times or 1))]
        remaining = self._scripts[model]
        return remaining.pop(0) if remaining else ""

    def _conversation_fault(self, model: str) -> str:
        return self._chance(scripted.FAULTS) if model.endswith("@chaos") else self._fault(model)

    def _chance(self, faults: tuple[str, ...]) -> str:
        return self._draws.choice(faults) if self._draws.random() < SHARE else ""

    async def _deepseek(self, request: web.Request) -> web.StreamResponse:
        """Accepts any JSON object but no JSON schema, and returns no log-probabilities for the reasoning model."""
        body = await request.json()
        text = "".join(message["content"] for message in body["messages"])
        if "max_completion_tokens" in body:
            return self._refused("max_completion_tokens", "not a parameter of this API")
        if body.get("response_format", {}).get("type") == "json_schema":
            return self._refused("response_format", "This response_format type is unavailable now")
        if "response_format" in body and "json" not in text.lower():
            return self._refused("response_format", "Prompt must contain the word 'json'")
        if "logprobs" in body and body["model"].startswith("deepseek-reasoner"):
            return self._refused("logprobs", "deepseek-reasoner does not support logprobs")
        return await self._openai(request)

    async def _grok(self, request: web.Request) -> web.StreamResponse:
        """Returns at most eight alternatives per token, and none for reasoning models."""
        body = await request.json()
        if body.get("top_logprobs", 0) > 8:
            return self._refused("top_logprobs", "top_logprobs must be between 0 and 8")
        if "logprobs" in body and body["model"].startswith("grok-4-reasoning"):
            return self._refused("logprobs", "logprobs is not supported by reasoning models")
        return await self._openai(request)

    def _refused(self, parameter: str, message: str) -> web.Response:
        self.served[f"no {parameter}"] += 1
        error = {"message": message, "type": "invalid_request_error", "param": parameter, "code": None}
        return web.json_response({"error": error}, status=400)

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self._is_conversation(body, "response_format"):
            return await self._openai_conversation(request, body)
        wanted = body.get("response_format", {})
        if wanted and not self.ignores and wanted["type"] not in self.formats:
            return self._refused("response_format", "response_format is not supported")
        top = body.get("top_logprobs", 0) if body.get("logprobs") and not self.ignores else -1
        if top > self.top_logprobs or (top >= 0 and not self.top_logprobs):
            return self._refused("logprobs", f"{self.top_logprobs} is the most")
        user = body["messages"][-1]["content"]
        schema = wanted["json_schema"]["schema"] if wanted.get("type") == "json_schema" else {}

        def wrap(text: str, ended: str) -> dict[str, Any]:
            refused = ended == "refusal"
            message = {"role": "assistant", "content": None if refused else text, "refusal": text if refused else None}
            finish = "length" if ended == "truncated" else "stop"
            return {
                "id": "c1",
                "object": "chat.completion",
                "created": 1,
                "model": "judge-2026-01-01",
                "choices": [
                    {"index": 0, "message": message, "finish_reason": finish, "logprobs": _logprobs(text, top)}
                ],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }

        return await self._serve(request, body, user, schema, wrap)

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self._is_conversation(body, "output_config"):
            return await self._anthropic_conversation(request, body)
        wanted = body.get("output_config", {}).get("format", {})
        if wanted and not self.ignores and wanted["type"] not in self.formats:
            return self._refused("output_config", "output_config: Extra inputs are not permitted")
        user = body["messages"][-1]["content"]

        def wrap(text: str, ended: str) -> dict[str, Any]:
            stop = {"truncated": "max_tokens", "refusal": "refusal"}.get(ended, "end_turn")
            return {
                "id": "m1",
                "type": "message",
                "role": "assistant",
                "model": "judge-2026-01-01",
                "content": [] if ended == "refusal" else [{"type": "text", "text": text}],
                "stop_reason": stop,
                "stop_sequence": None,
                "usage": {"input_tokens": 100, "output_tokens": 10},
            }

        return await self._serve(request, body, user, wanted.get("schema", {}), wrap)

    def _is_conversation(self, body: dict[str, Any], form: str) -> bool:
        if self.script is not None:
            return True
        last = body["messages"][-1]["content"]
        return not (form in body or body.get("logprobs") or (isinstance(last, str) and "<data>\n" in last))

    async def _openai_conversation(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        messages = scripted.openai_messages(body)

        def wrap(fault: str) -> dict[str, Any]:
            reply, ended = scripted.spoilt(fault, self._reply(body, messages))
            bill = self.bills.book(_named(body), messages, reply, keep=True)
            return scripted.openai_answer(reply, ended, bill | Counter(written=0))

        return await self._faulty(request, body, self._conversation_fault(body["model"]), wrap)

    async def _anthropic_conversation(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        messages = scripted.anthropic_messages(body)
        keep = "cache_control" in json.dumps(body["messages"])

        def wrap(fault: str) -> dict[str, Any]:
            reply, ended = scripted.spoilt(fault, self._reply(body, messages))
            return scripted.anthropic_answer(reply, ended, self.bills.book(_named(body), messages, reply, keep=keep))

        return await self._faulty(request, body, self._conversation_fault(body["model"]), wrap)

    def _reply(self, body: dict[str, Any], messages: tuple[ChatMessage, ...]) -> ChatMessage:
        return (self.script or scripted.default_script)(ChatRequest(_named(body), messages))

    async def _billed(self, _: web.Request) -> web.Response:
        return web.json_response(self.bills.tokens)

    async def _collect(self, request: web.Request) -> web.Response:
        self.traces.append(await request.read())
        return web.Response()

    async def _count(self, _: web.Request) -> web.Response:
        return web.json_response(self.served)

    async def _serve(
        self, request: web.Request, body: dict[str, Any], user: str, schema: dict[str, Any], wrap: Any
    ) -> web.StreamResponse:
        text = self._answer(user) if self.ignores else _held(self._answer(user), schema)
        return await self._faulty(request, body, self._fault(body["model"]), lambda fault: wrap(*_spoilt(fault, text)))

    async def _faulty(
        self, request: web.Request, body: dict[str, Any], fault: str, answer: Callable[[str], dict[str, Any]]
    ) -> web.StreamResponse:
        """Return `answer(fault)`, or a faulty response instead."""
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.served[fault or "ok"] += 1
        if fault.startswith("echo"):  # the key comes back, in an error or in an answer
            echo = f"you sent {request.headers.get('Authorization', '')}"
            if fault != "echo200":
                error = {"error": {"type": "error", "message": echo}}
                return web.json_response(error, status=int(fault[4:]), headers={"retry-after-ms": "5"})
            return web.json_response(_echoed(answer(""), echo))
        if fault.isdigit():
            headers = {"retry-after-ms": "5"} if fault in ("429", "500", "529") else {}
            refused = {"type": "error", "error": {"type": "some_error", "message": "no"}}
            return web.json_response(refused, status=int(fault), headers=headers)
        match fault:
            case "later":
                return web.json_response({"error": {}}, status=429, headers={"retry-after": str(LATER_S)})
            case "hang":
                await self._released.wait()
            case "reset":
                assert request.transport is not None
                request.transport.abort()
            case "cutbody":
                whole = json.dumps(answer(""))
                return web.Response(text=whole[: len(whole) // 2], content_type="application/json")
            case "html":
                return web.Response(text="<html>be right back</html>", content_type="text/html")
            case "empty":
                return web.json_response({})
        return web.json_response(answer(fault))

    def _answer(self, user: str) -> str:
        if "<data>\n" not in user:  # not a judge's question
            return f"The answer to “{user}” is seven."
        data = json.loads(user.split("<data>\n")[1].split("\n</data>")[0])
        verdicts = [
            {"id": answer["id"], "reason": "as it is worth", "score": self._worth(answer["text"])}
            for answer in data["answers"]
        ]
        return json.dumps({"verdicts": verdicts})

    def _worth(self, text: str) -> int:
        if text == self.obeys or (self.likes and self.likes in text):
            return 10
        match = _WORTH.search(text)
        return int(match[1]) if match else 0


def _named(body: dict[str, Any]) -> str:
    model: str = body["model"]
    return model.partition("@")[0]


def _echoed(answer: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the answer with `text` as its content and as its model's name."""
    if "choices" in answer:
        message = {**answer["choices"][0]["message"], "content": text}
        return {**answer, "choices": [{**answer["choices"][0], "message": message}], "model": text}
    return {**answer, "content": [{"type": "text", "text": text}], "model": text}


def _held(text: str, schema: dict[str, Any]) -> str:
    """Return an answer with only what the schema requires: each property that can have only one value."""
    fixed = {
        name: property_schema["enum"][0]
        for name, property_schema in schema.get("properties", {}).items()
        if "enum" in property_schema
    }
    return json.dumps({**json.loads(text), **fixed}) if fixed else text


def _logprobs(text: str, top: int) -> dict[str, Any] | None:
    """Return log-probabilities: 0.9 for each word or mark and the rest shared by the alternatives. `top` < 0: none."""
    if top < 0:
        return None
    content = []
    for token in re.findall(r"\w+|\W", text):
        others = [token, *(f"{token}~{n}" for n in range(1, top))][:top]
        likely = [
            {"token": candidate, "logprob": math.log(0.9 if candidate == token else 0.1 / top)} for candidate in others
        ]
        content.append({"token": token, "logprob": math.log(0.9), "bytes": None, "top_logprobs": likely})
    return {"content": content, "refusal": None}


def _spoilt(fault: str, text: str) -> tuple[str, str]:
    """Return (text, finish reason) of an answer with a fault in its content."""
    match fault:
        case "prose":
            text = "I think the first one is best, 9/10."
        case "truncated":
            return text[: len(text) // 2], "truncated"
        case "refusal":
            return "I cannot help with that.", "refusal"
        case "schema":
            text = text.replace('"score"', '"grade"')
        case "foreign_id":
            text = text.replace('"id": "', '"id": "x', 1)
        case "missing_id":
            text = json.dumps({"verdicts": json.loads(text)["verdicts"][1:]})
        case "range":
            text = re.sub(r'"score": \d+', '"score": 100', text, count=1)
        case "fenced":
            text = f"```json\n{text}\n```"
    return text, "complete"
