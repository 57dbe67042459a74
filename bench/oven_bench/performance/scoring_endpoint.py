"""An endpoint of judges for the benches: chat completions over HTTP, by models that each score in their own way.

What a model gives a text is known to the bench (`score_of`), so that a score by another model shows. A model whose name
says so is dead in one of several ways.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

DEAD: Final = ("401", "404", "500", "hang", "html", "prose")
"""Ways to be dead, as the end of a model's name: `m-500`. A closed port is another."""
MARKS: Final = 11
"""Marks 0 to 10, as judges are told to give."""


def score_of(model: str, text: str) -> float:
    """What the model gives a text, 0..1. Two models agree on one in eleven."""
    return int(hashlib.sha256(f"{model}\0{text}".encode(errors="replace")).hexdigest(), 16) % MARKS / (MARKS - 1)


class ScoringEndpoint:
    """Use it in a `with`. `delay_s` is what an answer takes."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.asked: Counter[str] = Counter()
        """Model → requests."""
        self.real: Mapping[str, Collection[str]] = {}
        """Task → the policy's answers to it in this step. What is shown beside these is a control, and gets no marks:
        a judge that rewarded it would be in quarantine."""
        self._delay_s = delay_s
        self._ended = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                """A chat completion."""
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, kind, said = endpoint._answered(body)
                data = said.encode()
                with contextlib.suppress(ConnectionError):  # who asked has given up
                    self.send_response(status)
                    self.send_header("content-type", kind)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, name="endpoint", daemon=True)

    def __enter__(self) -> ScoringEndpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _answered(self, body: dict[str, Any]) -> tuple[int, str, str]:
        model = str(body["model"])
        self.asked[model] += 1
        time.sleep(self._delay_s)
        way = model.rpartition("-")[2]
        if way == "hang":
            self._ended.wait()
        if way in ("401", "404", "500"):
            return int(way), "application/json", json.dumps({"error": {"message": "no"}})
        if way == "html":
            return 200, "text/html", "<html>be right back</html>"
        said = "The first is best." if way == "prose" else self._verdicts(model, body)
        return 200, "application/json", json.dumps(_completion(model, said))

    def _verdicts(self, model: str, body: dict[str, Any]) -> str:
        data = json.loads(body["messages"][-1]["content"].split("<data>\n")[1].split("\n</data>")[0])
        texts = [answer["text"] for answer in data["answers"]]
        real = set(texts).intersection(self.real.get(data["task"], ())) or set(texts)  # none: a probe, or asked again
        verdicts = [
            {
                "id": answer["id"],
                "reason": "by its digest",
                "score": round((MARKS - 1) * score_of(model, answer["text"])) if answer["text"] in real else 0,
            }
            for answer in data["answers"]
        ]
        return json.dumps({"verdicts": verdicts})


def _completion(model: str, text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": usage}
