"""Your own judge for the reward committee, without a provider: `python examples/judge_server.py --model FOLDER`.

It serves the part of OpenAI's chat completions that a committee member uses, over any Hugging Face causal LM in FOLDER:

    committee:
      members:
        critic: {provider: compatible, model: local, base_url: "http://127.0.0.1:8000/v1"}

By default the model generates. `response_format` restricts it to a JSON Schema or to any JSON object (with the grammar
library llguidance: pip install llguidance). `logprobs` and `top_logprobs` come from its own logits, before the
grammar's mask and the temperature. `usage` counts its tokens. Only a model that follows instructions gives useful
scores.

With --likelihood it never reads the rubric. An answer's score is 10 · exp(mean log p of its tokens, end of sequence
included, given the task), rounded: how likely this model would have written that itself. This ranks answers well if the
model knows the subject, and needs no model that can judge. It favours usual answers over original ones (a member
quarantines a judge that prefers stock phrases).
"""

from __future__ import annotations

import argparse
import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

MOST_LOGPROBS = 20
"""Alternatives a token, as with OpenAI."""
MOST_TOKENS = 1024
"""Of an answer, where the request does not say."""


class Local:
    """A model and its tokenizer. It handles one request at a time."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        self.model.eval()  # type: ignore[no-untyped-call]
        self.room: float = getattr(self.model.config, "max_position_embeddings", math.inf)
        self.lock = threading.Lock()

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Return token ids, by the chat template if there is one."""
        if self.tokenizer.chat_template:
            asked = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
            return list(asked["input_ids"])
        return list(self.tokenizer.encode("\n\n".join(message["content"] for message in messages)))


class Grammar(LogitsProcessor):
    """Allows only tokens that continue a text of the grammar, and at its end only the end of sequence."""

    def __init__(self, tokenizer: Any, schema: dict[str, Any], prompt: int) -> None:
        """`prompt` is the number of the prompt's tokens. Raises ValueError for an invalid schema."""
        from llguidance import LLMatcher

        compact: Any = {"whitespace_flexible": False}  # white space would be tokens without end
        self._matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=compact))
        self._seen = prompt
        if self._matcher.is_error():
            raise ValueError(f"the JSON Schema cannot be followed: {self._matcher.get_error()}")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # (1, T), (1, V) -> (1, V)
        for token in input_ids[0, self._seen :].tolist():
            self._matcher.consume_token(token)
        self._seen = input_ids.shape[1]
        # llguidance.torch would compile a kernel for this.
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        allowed = (packed[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten().bool()  # (V,), or a few more
        forbidden = torch.ones(scores.shape[-1], dtype=torch.bool)
        known = min(len(allowed), len(forbidden))  # a model may have rows that no token has
        forbidden[:known] = ~allowed[:known]
        return scores.masked_fill(forbidden.to(scores.device), -math.inf)


class Generation:
    """Answers with generated text in the requested `response_format`."""

    def __init__(self, local: Local, temperature: float) -> None:
        import llguidance.hf

        self.local, self.temperature = local, temperature
        self.grammar_tokens = llguidance.hf.from_tokenizer(local.tokenizer)

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a chat completion. Raises ValueError for an unsupported request."""
        if body.get("stream") or body.get("n", 1) != 1 or body.get("tools"):
            raise ValueError("one whole answer at a time is served: no stream, n or tools")
        top = _alternatives(body)
        prompt = self.local.prompt(body["messages"])
        most = int(body.get("max_completion_tokens") or body.get("max_tokens") or MOST_TOKENS)
        most = int(min(most, self.local.room - len(prompt)))
        if most < 1:
            raise ValueError(f"the prompt has {len(prompt)} tokens, and the model's context {self.local.room}")
        schema = _schema(body.get("response_format") or {"type": "text"})
        grammar = [] if schema is None else [Grammar(self.grammar_tokens, schema, len(prompt))]
        said, logits = self._generated(prompt, most, grammar, float(body.get("temperature") or self.temperature))
        ended = said[-1] == self.local.tokenizer.eos_token_id
        words = said[:-1] if ended else said
        message = {"role": "assistant", "content": self.local.tokenizer.decode(words), "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if ended else "length"}
        counts = {"prompt_tokens": len(prompt), "completion_tokens": len(said), "total_tokens": len(prompt) + len(said)}
        return {
            "choices": [choice | {"logprobs": None if top is None else self._logprobs(words, logits, top)}],
            "usage": counts,
        }

    @torch.inference_mode()
    def _generated(
        self, prompt: list[int], most: int, grammar: list[Grammar], temperature: float
    ) -> tuple[list[int], list[Tensor]]:
        """Return the answer's token ids, and the logits (V,) of each before the grammar's mask."""
        options: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with self.local.lock:
            made = self.local.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=most,
                logits_processor=grammar,
                output_logits=True,
                return_dict_in_generate=True,
                pad_token_id=self.local.tokenizer.eos_token_id,
                **(options if temperature else {"do_sample": False}),
            )
        return made.sequences[0, len(prompt) :].tolist(), [step[0] for step in made.logits]

    def _logprobs(self, words: list[int], logits: list[Tensor], top: int) -> dict[str, Any]:
        content = []
        for token, step in zip(words, logits, strict=False):  # the end of sequence has logits, and is no word
            log_p = step.float().log_softmax(-1)  # (V,)
            best = log_p.topk(top) if top else None
            others = zip(best.indices.tolist(), best.values.tolist(), strict=True) if best is not None else ()
            content.append(
                self._token(token, float(log_p[token])) | {"top_logprobs": [self._token(*other) for other in others]}
            )
        return {"content": content, "refusal": None}

    def _token(self, token: int, log_p: float) -> dict[str, Any]:
        text = self.grammar_tokens.decode_bytes([token])
        # JSON has no −inf; OpenAI writes −9999.
        return {
            "token": text.decode(errors="replace"),
            "logprob": max(log_p, -9999.0),
            "bytes": list(text),
        }


def _alternatives(body: dict[str, Any]) -> int | None:
    """Return the requested alternatives per token, None for no log-probabilities. Raises ValueError for too many."""
    if not body.get("logprobs"):
        if body.get("top_logprobs"):
            raise ValueError("top_logprobs needs logprobs")
        return None
    top = int(body.get("top_logprobs") or 0)
    if not 0 <= top <= MOST_LOGPROBS:
        raise ValueError(f"top_logprobs is {top}; it should be 0 to {MOST_LOGPROBS}")
    return top


def _schema(wanted: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a `response_format`, or None without one. Raises ValueError for another type."""
    match wanted["type"]:
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            schema: dict[str, Any] = wanted["json_schema"]["schema"]
            return schema
    raise ValueError(f"response_format {wanted['type']!r} is not served; json_schema, json_object and text are")


class Likelihood:
    """Scores answers by likelihood. `mean_log_p` is nats per token, so that length alone does not lower a score."""

    def __init__(self, local: Local) -> None:
        self.local = local

    @torch.inference_mode()
    def mean_log_p(self, task: str, answer: str) -> float:
        tokenizer, room = self.local.tokenizer, self.local.room
        asked = self.local.prompt([{"role": "user", "content": task}])
        said = tokenizer.encode(answer, add_special_tokens=False)
        if tokenizer.eos_token_id is not None:
            said.append(tokenizer.eos_token_id)  # without it, the beginning of a right answer would be right
        if not asked or not said or len(asked) + len(said) > room:
            raise ValueError(f"task and answer need 1 to {room} tokens; they have {len(asked)} and {len(said)}")
        with self.local.lock:
            logits = self.local.model(torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1]  # (C, V)
        log_p = logits.float().log_softmax(-1).gather(1, torch.tensor(said)[:, None])  # (C, 1)
        return float(log_p.mean())

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a chat completion. Raises ValueError if this is not a committee member's question."""
        if (body.get("response_format") or {}).get("type") != "json_schema":
            raise ValueError("this server only scores: ask with a response_format of the type json_schema")
        _, opened, rest = body["messages"][-1]["content"].partition("<data>\n")
        block, closed, _ = rest.partition("\n</data>")
        if not opened or not closed:
            raise ValueError("the last message holds no block between <data> and </data>")
        data = json.loads(block)
        verdicts = []
        for answer in data["answers"]:
            mean = self.mean_log_p(data["task"], answer["text"])
            reason = f"mean log p {mean:.3f} per token"
            verdicts.append({"id": answer["id"], "reason": reason, "score": round(10 * math.exp(mean))})
        message = {"role": "assistant", "content": json.dumps({"verdicts": verdicts})}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


class Judge(Protocol):
    """A kind of judge that the server offers."""

    def reply(self, body: dict[str, Any]) -> dict[str, Any]: ...


class Handler(BaseHTTPRequestHandler):
    judge: Judge
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            return self.send(404, {"error": {"message": f"nothing is served at {self.path}"}})
        try:
            body = json.loads(raw)
            about = {"id": "local", "object": "chat.completion", "created": 0, "model": str(body.get("model", ""))}
            self.send(200, about | self.judge.reply(body))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self.send(400, {"error": {"message": str(error)}})

    def send(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing, so that judged texts stay out of the log."""


def main() -> None:
    parser = argparse.ArgumentParser(description="serve a causal LM as a judge")
    parser.add_argument("--model", type=Path, required=True, help="folder as save_pretrained writes it, tokenizer too")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--likelihood", action="store_true", help="score by the likelihood of each answer")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="where a request has none; 0: the likeliest token"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    local = Local(options.model)
    Handler.judge = Likelihood(local) if options.likelihood else Generation(local, options.temperature)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    print(f"judging at http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
