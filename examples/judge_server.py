"""A judge of one's own for the reward committee, without a provider: `python examples/judge_server.py --model FOLDER`.

It serves the part of OpenAI's chat completions that a committee member uses, over any Hugging Face causal LM in FOLDER:

    committee:
      members:
        critic: {api: openai, model: local, base_url: "http://127.0.0.1:8000/v1"}

It is a likelihood judge, not one that follows instructions: it never reads the rubric. An answer's score is
10 · exp(mean log p of its tokens, end of sequence included, given the task), rounded: how much this model would have
said that itself. That ranks well what the model knows, favours the usual over the original (a member quarantines a
judge that prefers stock phrases), and knows nothing of what the rubric asks for.
"""

from __future__ import annotations

import argparse
import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Likelihood:
    """`mean_log_p` is per token and in nats, so that long answers are not worse by their length alone."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        self.model.eval()  # type: ignore[no-untyped-call]
        self.lock = threading.Lock()

    @torch.inference_mode()
    def mean_log_p(self, task: str, answer: str) -> float:
        if self.tokenizer.chat_template:
            turn = [{"role": "user", "content": task}]
            asked = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True)["input_ids"]
        else:
            asked = self.tokenizer.encode(task)
        said = self.tokenizer.encode(answer, add_special_tokens=False)
        if self.tokenizer.eos_token_id is not None:
            said.append(self.tokenizer.eos_token_id)  # without it, the beginning of a right answer would be right
        room = getattr(self.model.config, "max_position_embeddings", math.inf)
        if not asked or not said or len(asked) + len(said) > room:
            raise ValueError(f"task and answer need 1 to {room} tokens; they have {len(asked)} and {len(said)}")
        with self.lock:
            logits = self.model(torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1]  # (C, V)
        log_p = logits.float().log_softmax(-1).gather(1, torch.tensor(said)[:, None])  # (C, 1)
        return float(log_p.mean())

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """A chat completion. Raises ValueError when this is not a committee member's question."""
        if body.get("response_format", {}).get("type") != "json_schema":
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
        return {
            "id": "likelihood",
            "object": "chat.completion",
            "created": 0,
            "model": str(body.get("model", "")),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }


class Handler(BaseHTTPRequestHandler):
    judge: Likelihood
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            return self.send(404, {"error": {"message": f"nothing is served at {self.path}"}})
        try:
            self.send(200, self.judge.reply(json.loads(raw)))
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
        """Nothing a request: what is judged stays out of the log."""


def main() -> None:
    parser = argparse.ArgumentParser(description="serve a causal LM as a likelihood judge")
    parser.add_argument("--model", type=Path, required=True, help="folder as save_pretrained writes it, tokenizer too")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    options = parser.parse_args()
    Handler.judge = Likelihood(options.model)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    print(f"judging at http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
