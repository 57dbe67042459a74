"""Calls that an experiment makes itself (baselines, the judge), kept in the example's folder: none is made twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from oven_llm.providers.usage import Usage
from oven_llm.supervisor.log import without_secrets
from oven_llm.supervisor.models import LMResponse, ModelHandler

_Read = TypeVar("_Read")


class AskedOnce:
    """The file of one example, which only one thread at a time writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, LMResponse] = {}
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            try:
                found = json.loads(line)
            except ValueError:
                continue  # its process was killed while it wrote
            if not found.get("unread"):
                self._known[found["key"]] = _response(found)

    def ask(
        self,
        name: str,
        handler: ModelHandler,
        messages: Sequence[Mapping[str, str]],
        read: Callable[[str], _Read],
    ) -> tuple[LMResponse, _Read]:
        """The kept answer to these messages of this model, else the model's, and what `read` makes of its text. An
        answer of which `read` raises ValueError is written down, since it was paid for, and asked for again by the next
        process. Raises ModelFailure, OSError and what `read` raises."""
        key = hashlib.sha256(json.dumps([handler.model, list(map(dict, messages))]).encode()).hexdigest()
        answer = self._known.get(key)
        if answer is not None:
            return answer, read(answer.text)
        answer = handler.chat(messages)
        answer = replace(answer, text=without_secrets(answer.text, handler.secrets))
        try:
            found = read(answer.text)
        except ValueError:
            self._write(name, key, answer, unread=True)
            raise
        self._write(name, key, answer)
        self._known[key] = answer
        return answer, found

    def _write(self, name: str, key: str, answer: LMResponse, *, unread: bool = False) -> None:
        line = {
            "name": name,
            "key": key,
            "model": answer.model,
            "response": answer.text,
            "usage": None if answer.usage is None else answer.usage.plain(),
            "usd": answer.usd,
            "elapsed": round(answer.elapsed, 6),
            **({"unread": True} if unread else {}),
        }
        data = json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with self._path.open("ab", buffering=0) as file:
            if file.tell() and not self._path.read_bytes().endswith(b"\n"):
                data = b"\n" + data
            if file.write(data) != len(data):
                raise OSError(28, "No space left on device", str(self._path))


def _response(found: Mapping[str, Any]) -> LMResponse:
    usage = None if found["usage"] is None else Usage.read(found["usage"])
    return LMResponse(found["response"], usage, found["elapsed"], found["model"], found["usd"])
