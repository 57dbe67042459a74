"""Calls that an experiment makes itself (baselines, the judge), kept in the example's folder: none is made twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oven_agents.providers.usage import Usage
from oven_agents.supervisor.log import REMOVED
from oven_agents.supervisor.models import LMResponse, ModelHandler


class AskedOnce:
    """The file of one example, which only one thread at a time writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, LMResponse] = {}
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                found = json.loads(line)
            except ValueError:
                continue  # its process was killed while it wrote
            self._known[found["key"]] = _response(found)

    def ask(self, name: str, handler: ModelHandler, messages: Sequence[Mapping[str, str]]) -> LMResponse:
        """The kept answer to these messages of this model, else the model's. Raises ModelFailure and OSError."""
        key = hashlib.sha256(json.dumps([handler.model, list(map(dict, messages))]).encode()).hexdigest()
        if key not in self._known:
            answer = _without(handler.chat(messages), handler.secrets)
            self._write(name, key, answer)
            self._known[key] = answer
        return self._known[key]

    def _write(self, name: str, key: str, answer: LMResponse) -> None:
        usage = answer.usage
        line = {
            "name": name,
            "key": key,
            "model": answer.model,
            "response": answer.text,
            "usage": None
            if usage is None
            else {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
            "usd": answer.usd,
            "elapsed": round(answer.elapsed, 6),
        }
        data = json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with self._path.open("ab", buffering=0) as file:
            if file.tell() and not self._path.read_bytes().endswith(b"\n"):
                data = b"\n" + data
            if file.write(data) != len(data):
                raise OSError(28, "No space left on device", str(self._path))


def _without(answer: LMResponse, secrets: Sequence[str]) -> LMResponse:
    """An endpoint may send back the key that it was sent."""
    text = answer.text
    for secret in filter(None, secrets):
        text = text.replace(secret, REMOVED)
    return replace(answer, text=text)


def _response(found: Mapping[str, Any]) -> LMResponse:
    said = found["usage"]
    usage = None if said is None else Usage(said["input_tokens"], said["output_tokens"])
    return LMResponse(found["response"], usage, found["elapsed"], found["model"], found["usd"])
