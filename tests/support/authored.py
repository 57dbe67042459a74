"""A script of a user's that bakes a small text model on a PromptSource, with a tuner and an author that ask an
endpoint, for the end-to-end test of both: `python -m tests.support.authored RUN [URL]`. Without a URL they are off."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.support.attached import llama
from tests.support.tiny_grpo import vowels
from tests.unit.learner.test_attach_trl import tokenizer
from transformers import TrainerCallback, set_seed

import oven_learner as oven
from oven_core.protocol.messages import MetricSpec
from oven_runs.home.model_spend import read_spend
from oven_runs.home.run_folder import Home

STEPS = 40
TOPICS = {"vowels": list("aeiou"), "others": list("bcdfgh")}


class Patient(TrainerCallback):
    """Holds the training at a step until both agents were answered, so that the speed of steps does not matter."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        while state.global_step == 14 and not self._were_answered():
            time.sleep(0.02)

    def _were_answered(self) -> bool:
        return "tuner" in read_spend(self._folder) and (self._folder / "authored" / "prompts.jsonl").exists()


def settings(url: str) -> dict[str, Any]:
    llm = {"provider": "compatible", "model": "m", "base_url": f"{url}/v1", "key_env": "OVEN_TEST_KEY"}
    asking = {
        "tuner": {"llm": llm, "every": 5, "expires": 30},
        "author": {"llm": llm, "every": 8, "prompts": 12, "total": 30},
        "supervisor": {"model": llm},
    }
    named = {"agents": ["tuner", "author", *(["supervisor"] if url else [])], "lockstep": True}
    return {"rules": {"autonomy": "auto"}, **named, **(asking if url else {})}


def main(run: str, url: str = "") -> None:
    set_seed(0)
    source = oven.PromptSource(TOPICS, seed=2)
    baked = oven.bake(
        llama(),
        tokenizer(),
        prompts=source,
        rules=vowels,
        group_size=4,
        prompts_per_step=2,
        total_steps=STEPS,
        evaluate=lambda: {"eval/quality": 0.5},
        metrics=[MetricSpec(name="eval/quality", better="up", held_out=True)],
        settings=settings(url),
        run=run,
        max_completion_length=4,
        learning_rate=0.01,
        disable_tqdm=True,
    )
    if url:
        baked.trainer.add_callback(Patient(Home().find(run).path))
    baked.run_sync()
    weights = b"".join(value.numpy().tobytes() for value in baked.trainer.model.state_dict().values())
    print(f"{baked.summary}\nauthored {len(source.authored.pool)}\nweights {hashlib.sha256(weights).hexdigest()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
