"""A script of a user's, and the agent beside it: it turns the clip all the time, and sends the run back at tick 30.

`python sent_back.py OUTPUT LIMIT`: copies of the state take LIMIT bytes at most, so that 0 leaves checkpoints alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oven_agents import Agent, Vote, Window

BACK_AT, BACK_TO, STEPS, SAVED = 30, 25, 140, 10


class SendsBack(Agent):
    needs = ("loss",)
    moves = ("grad.clip", "run.rollback")

    def vote(self, window: Window) -> Sequence[Vote]:
        clip = window.knobs["grad.clip"]
        wanted = 0.4 if clip.number > 0.6 else 0.8
        votes = [window.propose("grad.clip", wanted, confidence=0.9, why="to and fro", target="loss", horizon=5)]
        if window.tick >= BACK_AT and not window.applied("run.rollback") and "run.rollback" not in window.open_ballots:
            votes.append(window.propose("run.rollback", BACK_TO, confidence=0.95, why="once", target="loss"))
        return votes


def main(output: str, limit: str) -> None:
    import torch
    from transformers import Trainer, TrainingArguments, set_seed

    import oven_learner as oven
    from oven_learner.rollback import snapshot_memory

    snapshot_memory.LIMIT_BYTES = int(limit)
    if not snapshot_memory.LIMIT_BYTES:
        snapshot_memory.MAX_HOST_SHARE = 0.0

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.mse_loss(self.inside(x), labels)}

    set_seed(0)
    xs = torch.randn(64, 4)
    trainer = Trainer(
        model=Line(),
        args=TrainingArguments(
            output_dir=output, max_steps=STEPS, per_device_train_batch_size=4, learning_rate=0.01, report_to=[],
            save_strategy="steps", save_steps=SAVED, use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True,
        ),
        train_dataset=[{"x": x, "labels": x.sum().reshape(1)} for x in xs],
    )  # fmt: skip
    oven.attach(trainer)
    trainer.train()
    print("trained to the end")


if __name__ == "__main__":
    main(*sys.argv[1:])
