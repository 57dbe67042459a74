"""One call for a model that makes no text: `python examples/motion_model.py`.

A skeleton of 24 joints learns to reach where a sentence says, with a KL term to a teacher. The teacher is swapped
during training, also for one that is registered meanwhile. The call starts a stack, which ends with the script.
"""

from __future__ import annotations

import asyncio
import os
import tempfile

import torch

import oven_learner as oven
from oven_learner.teachers import TeacherConfig
from oven_recipes.motion.intents import TRAINING_TEXTS
from oven_recipes.motion.rewards import RULES
from oven_recipes.motion.settings import MotionSettings
from oven_recipes.motion.skeleton import DIMS
from oven_recipes.motion.training import HELD_OUT_REWARD, held_out_evaluation, new_policy
from oven_recipes.motion.warm_up import warm_up

STEPS = int(os.environ.get("STEPS", "120"))
WARM_STEPS = int(os.environ.get("WARM_STEPS", "300"))


async def main() -> None:
    torch.set_num_threads(1)  # a step is too small for more to help
    settings = MotionSettings(warm_steps=WARM_STEPS)
    policy = warm_up(new_policy(settings, 0), settings, settings.warm_reach, 0)
    strong = warm_up(new_policy(settings, 1), settings, (1.0, 1.0), 1)
    small = warm_up(new_policy(settings, 2), settings, settings.warm_reach, 2)
    wide = warm_up(new_policy(settings.model_copy(update={"hidden": 2 * settings.hidden}), 3), settings, (1.0, 1.0), 3)
    baked = oven.bake(
        policy, name="reach-24", modality="motion", domain="character animation", output_format="trajectory",
        description="Moves a skeleton of 24 joints, 32 frames, so that a hand reaches where a sentence says.",
        prompts=TRAINING_TEXTS, rules=RULES, evaluate=held_out_evaluation(policy, 0), metrics=[HELD_OUT_REWARD],
        total_steps=STEPS, learning_rate=1e-3, beta=0.01,
        teachers=[TeacherConfig(name="small", model=small), TeacherConfig(name="strong", model=strong)],
    )  # fmt: skip
    training = asyncio.create_task(baked.run())
    await asyncio.to_thread(baked.began.wait)
    receipt = await asyncio.to_thread(baked.swap_teacher, "strong")
    print(f"run {baked.run_name}: teacher {receipt.before} → {receipt.after} at step {receipt.step}" if receipt else "")
    with tempfile.TemporaryDirectory() as folder:
        wide.save(folder)
        late = TeacherConfig(
            name="wide", kind="diffusion", model_name=folder, strategy="offload", joint_dim=DIMS,
            intent_dim=wide.intent_dim,
        )  # fmt: skip
        await asyncio.to_thread(baked.register_teacher, late)
    receipt = await asyncio.to_thread(baked.swap_teacher, "wide")
    print(f"registered while training: {receipt.before} → {receipt.after} at step {receipt.step}" if receipt else "")
    await training
    print(f"{DIMS} coordinates a frame, {STEPS} steps\n{baked.summary}")


if __name__ == "__main__":
    asyncio.run(main())
