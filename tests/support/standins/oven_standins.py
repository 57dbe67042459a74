"""A recipe and a learner without torch, so that the stack around them is tested in seconds. `recipe_options.mode` says
what the learner does: end by itself, wait to be told, or die."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_core.bus.connection import Bus
from oven_core.errors import ConfigError
from oven_core.protocol.messages import (
    ActuatorSpec,
    Horizon,
    LearnerMessage,
    MetricSpec,
    Observation,
    RunEnded,
    RunStarted,
)
from oven_core.protocol.names import Subjects
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_core.security.signing import load_keys
from oven_runs.process.child_process import wait_until_released


class ToySettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mode: Literal["end", "wait", "die", "refuse", "misses_package"] = "end"
    width: int = Field(default=8, ge=1, le=64)


@dataclass(frozen=True)
class ToyStart:
    name: str
    label: str

    def describe(self) -> str:
        return self.label or "as it should be"


class ToyRecipe:
    name = "toy"
    default_start = "drill:slow"
    starts: ClassVar = {"tuned": "", "drill:slow": "everything was made slow"}
    settings_model = ToySettings

    def parse_start(self, text: str, seed: int, options: ToySettings) -> ToyStart:
        if text not in ("tuned", "drill:slow"):
            raise ValueError(f"no start is called {text!r}; nearest: tuned")
        return ToyStart(text, "everything was made slow" if text == "drill:slow" else "")


RECIPE = ToyRecipe()


def learner(args: list[str]) -> int:
    wait_until_released()
    settings = json.loads((Path(os.environ["OVEN_RUN_DIR"]) / "config.json").read_text())
    mode = settings["recipe_options"].get("mode", "end")
    if mode == "die":
        print("out of memory, says the learner", file=sys.stderr)
        return 7
    if mode == "misses_package":
        raise ConfigError("it needs the package 'torch'")
    return asyncio.run(_learn(mode, settings["steps"] or 12, Rules.model_validate(settings["rules"])))


async def _learn(mode: str, steps: int, rules: Rules) -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    on = Subjects(os.environ["OVEN_RUN"])
    folder = Path(os.environ["OVEN_RUN_DIR"])
    credentials = Credentials.load(Path(os.environ["OVEN_CREDS"]))
    count = 0
    async with Bus.connect(os.environ["OVEN_URL"], credentials) as bus:
        incarnation = 1 + await bus.head(on.run.split(".")[1])

        async def say(subject: str, message: LearnerMessage) -> None:
            await bus.append(subject, message.wire(), message_id=f"{message.incarnation}-{message.n}")

        started = RunStarted(
            incarnation=incarnation,
            n=count,
            recipe="toy",
            horizon=Horizon(max_steps=steps),
            rules=rules,
            actuators=(
                ActuatorSpec(name="optimizer.lr_scale", kind="scalar", scale="log", low=0.01, high=100, value=1.0),
            ),
            metrics=(
                MetricSpec(name="reward", better="up"),
                MetricSpec(name="eval/accuracy", better="up", held_out=True),
            ),
            keys=load_keys(Path(os.environ["OVEN_KEYS"])),
        )
        await say(on.run, started)
        for step in range(1, steps + 1):
            count += 1
            metrics = {"reward": step / steps} | (
                {"eval/accuracy": 0.5 + step / steps / 4} if step in (1, steps) else {}
            )
            seen = Observation(
                incarnation=incarnation, n=count, tick=step, step=step, progress=step / steps, metrics=metrics
            )
            await say(on.observation, seen)
        if mode == "wait":
            await stop.wait()
            (folder / "checkpoints" / "last").write_text("all of it")
        reason: Literal["completed", "stopped"] = "stopped" if stop.is_set() else "completed"
        await say(on.run, RunEnded(incarnation=incarnation, n=count + 1, reason=reason, tick=steps, step=steps))
    return 0
