"""A script of a user's that bakes a small text model on three meshes, for the end-to-end test of its resume: while it
trains another teacher is registered and chosen. `python baked.py RUN [resume]`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.support.attached import llama
from tests.support.tiny_grpo import vowels
from tests.unit.learner.test_attach_trl import tokenizer
from transformers import TrainerCallback, set_seed

import oven_learner as oven
from oven_learner.teachers import TeacherConfig

STEPS = 200


def late() -> TeacherConfig:
    set_seed(9)
    return TeacherConfig(name="late", kind="big", model=llama(), tokenizer=tokenizer())


class BakeCallback(TrainerCallback):
    """A callback that reports when a checkpoint contains the late teacher."""

    def __init__(self, baked: oven.Oven) -> None:
        self._baked = baked

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._baked.teachers is not None and self._baked.teachers.active == "late":
            print("saved a checkpoint with it", flush=True)


async def main(run: str, resume: bool) -> None:
    set_seed(0)
    settings: dict[str, Any] = {"meshes": 3}
    baked = oven.bake(
        llama(),
        tokenizer(),
        prompts=[*"abcdefgh"],
        rules=vowels,
        group_size=4,
        prompts_per_step=2,
        total_steps=STEPS,
        teachers={"first": llama()},
        beta=0.02,
        settings=settings,
        run=run,
        resume=resume,
        max_completion_length=4,
        learning_rate=0.01,
        disable_tqdm=True,
    )
    baked.trainer.add_callback(BakeCallback(baked))
    if resume:
        baked.register_teacher(late())
    training = asyncio.create_task(baked.run())
    await asyncio.to_thread(baked.began.wait)
    if not resume:
        await asyncio.to_thread(baked.register_teacher, late())
        receipt = await asyncio.to_thread(baked.swap_teacher, "late")
        print(f"late from step {receipt.step}" if receipt else "", flush=True)
    await training
    assert baked.teachers is not None
    print(f"{baked.teachers.active} at the end\n{baked.summary}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:] == ["resume"]))
