"""Models of this repository behind an endpoint: `python -m oven_bench.trace_replay.model_endpoint CACHE [quick]`.

Chat completions with tools and several samples, from small policies that are trained on the spot (or are in the cache),
of unlike size and training. It prints its address when all are there, and serves until its standard input ends. Answers
are drawn from a seed of the question: the same question gets the same answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from aiohttp import web
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl.chat_template_utils import parse_response

from oven_bench.endpoint_child import running_child, told_to_end
from oven_bench.trace_replay.local_models import LocalModel, models
from oven_recipes.quiet_libraries import quiet_libraries
from oven_recipes.repair.chat_format import ASSISTANT
from oven_recipes.repair.warm_policy import POSITIONS, warm_policy

LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""What the most tokens of an answer are called."""


@dataclass(frozen=True)
class Loaded:
    """A model in memory."""

    policy: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast


class ModelEndpoint:
    """The HTTP side. One answer is generated at a time."""

    def __init__(self, models: Mapping[str, Loaded]) -> None:
        self._models = models
        self._lock = threading.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its address."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_post("/v1/chat/completions", self._completions)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("model") not in self._models:
            return _refused(404, f"no model is called {str(body.get('model'))[:60]!r}")
        try:
            return web.json_response(await asyncio.to_thread(self._answer, body))
        except (KeyError, TypeError, ValueError) as error:
            return _refused(400, f"{type(error).__name__}: {error}"[:200])

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return answer(self._models[body["model"]], body)


def answer(model: Loaded, body: Mapping[str, Any]) -> dict[str, Any]:
    """The API's object for a request. Raises ValueError for a context that is too long."""
    ids: list[int] = model.tokenizer.apply_chat_template(  # type: ignore[assignment]
        [message | {"content": message.get("content") or ""} for message in body["messages"]],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    most = min(next((int(body[name]) for name in LIMITS if name in body), 128), POSITIONS - len(ids))
    if most < 1:
        raise ValueError(f"the context has {len(ids)} tokens, and the model's window {POSITIONS}")
    count, temperature = int(body.get("n", 1)), float(body.get("temperature", 1.0))
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    prompt = torch.tensor([ids] * count)  # (samples, P)
    chosen = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    end = model.tokenizer.eos_token_id
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(digest[:15], 16))
        out = model.policy.generate(  # type: ignore[misc]
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=most,
            pad_token_id=model.tokenizer.pad_token_id,
            eos_token_id=end,
            **chosen,
        )  # (samples, P + C)
    answers = [row[: row.index(end) + 1] if end in row else row for row in out[:, len(ids) :].tolist()]
    tokens = sum(len(one) for one in answers)
    return {
        "id": f"local-{digest[:12]}",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [_choice(number, one, model.tokenizer) for number, one in enumerate(answers)],
        "usage": {"prompt_tokens": len(ids), "completion_tokens": tokens, "total_tokens": len(ids) + tokens},
    }


def _choice(number: int, ids: list[int], tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    ended = bool(ids) and ids[-1] == tokenizer.eos_token_id
    said: dict[str, Any] = {}
    if ended:
        try:
            said = parse_response(tokenizer, ids, prefix=tokenizer(ASSISTANT)["input_ids"])
        except (TypeError, ValueError):  # a call that is no JSON: it is what the model said, as a text
            said = {}
    calls = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": str(call["function"]["name"]), "arguments": _text(call["function"]["arguments"])},
        }
        for place, call in enumerate(said.get("tool_calls") or ())
    ]
    text = said.get("content") or ("" if calls else tokenizer.decode(ids, skip_special_tokens=True))
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
    finish = "length" if not ended else "tool_calls" if calls else "stop"
    return {"index": number, "message": message | ({"tool_calls": calls} if calls else {}), "finish_reason": finish}


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _refused(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status)


def load(model: LocalModel, cache: Path) -> Loaded:
    """Trains it, unless the cache has it. Seconds to minutes."""
    policy, tokenizer = warm_policy(model.settings, model.seed, cache)
    policy.train(False)
    return Loaded(policy, tokenizer)


def running_models(cache: Path, *, quick: bool = False) -> AbstractAsyncContextManager[str]:
    """The address of an endpoint with all local models, until the context ends. Raises ProcessError where it does not
    start."""
    return running_child("oven_bench.trace_replay.model_endpoint", str(cache), *(["quick"] if quick else []))


async def _serve(cache: Path, quick: bool) -> None:
    stop = told_to_end()
    loaded = {name: await asyncio.to_thread(load, model, cache) for name, model in models(quick=quick).items()}
    async with ModelEndpoint(loaded).running() as url:
        print(url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    quiet_libraries()
    torch.set_num_threads(1)
    asyncio.run(_serve(Path(sys.argv[1]), "quick" in sys.argv[2:]))
