"""A language model on loopback that answers `tuner` and `author`: a vote for the first knob, new prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.judge_endpoint import Endpoint

KEY = "sk-canary-1b7e"
GOOD = {
    "decision": "propose",
    "actuator": "optimizer.lr_scale",
    "value": 0.5,
    "target": "eval/accuracy",
    "expected_change": 0.03,
    "horizon": 30,
    "confidence": 0.7,
    "reason": "grad_norm doubled to 2 while the reward stood at .2",
}


class ScriptedModel(Endpoint):
    """A model. `says` is its answer to a data block; None: a fitting one."""

    def __init__(self, says: Callable[[dict[str, Any]], str] | None = None) -> None:
        super().__init__()
        self.ignores = True  # what is said may break the schema, too
        self.says = says or self.fit
        self.data: list[dict[str, Any]] = []
        """The data blocks of the requests."""

    def fit(self, data: dict[str, Any]) -> str:
        if "knobs" in data:
            target = next(name for name, about in data["metrics"].items() if about.get("held_out"))
            return json.dumps(GOOD | {"actuator": next(iter(data["knobs"])), "target": target})
        pairs = [(entry["topic"], f"{len(self.data)} + {n}?") for entry in data["topics"] for n in range(6)]
        return json.dumps({"prompts": [{"topic": topic, "prompt": f"{topic} {text}"} for topic, text in pairs]})

    def _answer(self, user: str) -> str:
        self.data.append(json.loads(user.split("<data>\n")[1].split("\n</data>")[0]))
        return self.says(self.data[-1])
