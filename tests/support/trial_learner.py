"""A learner for the tests that kill one in a trial: a loop of its own that saves, resumes, and waits at given steps.

`python -m tests.support.trial_learner FOLDER GATES`: it saves into the folder, continues from what is there, and waits
at the gates. `3,9` are the third and the ninth step that its trials play; each is a named pipe in the folder, and the
learner goes on when somebody has opened and closed it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from torch.nn.functional import mse_loss

import oven_learner as oven

RATE = "optimizer.lr_scale"
STEPS, SAVED = 32, 15
"""The loop ends, and saves, after so many steps."""
SAVE = "saved.pt"


def gate(folder: Path, played: int) -> Path:
    """The pipe at which it waits before the step that its trials play as the so-manieth."""
    return folder / f"gate-{played}"


def _batches(step: int) -> Iterator[torch.Tensor]:
    """Of each step after `step`, always the same."""
    while True:
        step += 1
        yield torch.randn(16, 4, generator=torch.Generator().manual_seed(step))


def train(folder: Path, gates: Collection[int] = ()) -> str:
    """To the end; a digest of the weights."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    held_out = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    began = 0
    if (folder / SAVE).exists():
        saved = torch.load(folder / SAVE)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        began = saved["step"]

    def losses(x: torch.Tensor) -> torch.Tensor:
        return mse_loss(model(x), x.sum(1, keepdim=True), reduction="none")

    @torch.no_grad()
    def evaluate() -> dict[str, list[float]]:
        return {"eval/loss": losses(held_out).flatten().tolist()}

    played = 0
    with oven.connect(
        model=model, optimizer=optimizer, evaluate=evaluate, max_steps=STEPS, step=began, lr_bounds=(0.1, 100.0)
    ) as client:
        for x in client.batches(_batches(began)):
            played += bool(client.branch is not None and client.branch.recorded)
            if played in gates:
                gate(folder, played).read_bytes()
            loss = losses(x).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            client.observe(client.step + 1, {"loss": loss.item()})
            client.poll()
            if client.step == SAVED:
                client.end_trial("the loop saves")
                kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": client.step}
                torch.save(kept, folder / SAVE)
            if client.step >= STEPS or client.stopping:
                break
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    numbers = [int(number) for number in sys.argv[2].split(",") if number]
    for number in numbers:
        os.mkfifo(gate(where, number))
    print(train(where, numbers))
