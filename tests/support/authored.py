"""A script of a user's that bakes a small text model on a PromptSource, with a tuner and an author that ask the endpoint
at `URL`, for the end-to-end test of both. `python -m tests.support.authored RUN URL`."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.support.attached import llama
from tests.support.tiny_grpo import vowels
from tests.unit.learner.test_attach_trl import tokenizer
from transformers import TrainerCallback, set_seed

import oven_learner as oven

STEPS = 60
TOPICS = {"vowels": list("aeiou"), "others": list("bcdfgh")}


class Waiting(TrainerCallback):
    """Holds the training at a step until the agents' answers are there, and turns the knob: a test must not depend on
    how fast a step is."""

    def __init__(self, baked: oven.Oven, source: oven.PromptSource) -> None:
        self._baked, self._source = baked, source

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1:
            print("began", flush=True)


def main(run: str, url: str) -> None:
    set_seed(0)
    llm = {"api": "openai", "model": "m", "base_url": f"{url}/v1"}
    source = oven.PromptSource(TOPICS, seed=2)
    baked = oven.bake(
        llama(),
        tokenizer(),
        prompts=source,
        rules=vowels,
        group_size=4,
        prompts_per_step=2,
        total_steps=STEPS,
        settings={
            "rules": {"autonomy": "auto"},
            "lockstep": True,
            "agents": ["tuner", "author"],
            "tuner": {"llm": llm, "every": 5, "expires": 60},
            "author": {"llm": llm, "every": 10, "prompts": 12},
        },
        run=run,
        max_completion_length=4,
        learning_rate=0.01,
        disable_tqdm=True,
    )
    baked.trainer.add_callback(Waiting(baked, source))
    baked.run_sync()
    print(baked.summary)
    print(f"held {len(source.authored.pool)} share {source.authored.share}")


if __name__ == "__main__":
    main(*sys.argv[1:])
