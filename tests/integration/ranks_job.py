"""Started by torchrun: two ranks of an attached trainer, or of a loop. Writes what each rank did, by step."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from tests.unit.attached import Toy, rows, trainer
from torch import distributed
from transformers import TrainerCallback

import oven_learner as oven
from oven_learner import ranks


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


class Note(TrainerCallback):
    """Writes (step, rate) at once: a test watches how far the ranks are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        with self.path.open("a") as out:
            out.write(json.dumps([state.global_step + 1, kw["optimizer"].param_groups[0]["lr"]]) + "\n")


def attached(folder: Path, steps: int, seconds: float | None) -> torch.nn.Module:
    rank = distributed.get_rank
    job = trainer(
        folder / "out", max_steps=steps, lr_scheduler_type="constant", ddp_backend="gloo", data=rows(256),
    )  # fmt: skip
    job.add_callback(Note(folder / f"steps-{rank()}.jsonl"))
    oven.attach(job, seconds=seconds)
    job.train()
    assert isinstance(job.model, torch.nn.Module)
    return job.model


def loop(folder: Path, steps: int, seconds: float | None) -> torch.nn.Module:
    distributed.init_process_group("gloo")
    torch.manual_seed(3)
    model = Toy()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    note = folder / f"steps-{ranks.rank()}.jsonl"
    with oven.connect(optimizer=optimizer, max_steps=steps, seconds=seconds) as client:
        for step in range(1, steps + 1):
            with note.open("a") as out:
                out.write(json.dumps([step, optimizer.param_groups[0]["lr"]]) + "\n")
            row = rows(2)[ranks.rank()]
            loss = parallel(row["x"][None], row["labels"][None])["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            client.observe(step, {"loss": loss.item()})
            client.poll()
            if client.stopping:
                break
    return model


def main() -> None:
    kind, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else None
    model = {"attach": attached, "loop": loop}[kind](folder, steps, seconds)
    (folder / f"end-{ranks.rank()}.json").write_text(json.dumps({"weights": digest(model)}))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
