"""What torchrun's workers do in the tests of several ranks: each writes what it did, by step, into the folder.

Started as torchrun starts a script, with one difference: the workers are forked from a process that has imported torch,
since importing it four times would take longer than all that they do.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import importlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import oven_learner as oven
from oven_learner import ranks


class Notes:
    """Notes of one rank. It waits before a step that the test has not allowed yet, so that all wait for rank 0."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rank = folder, int(os.environ["RANK"])
        (folder / f"pid-{self._rank}").write_text(str(os.getpid()))

    def step(self, number: int, *values: float) -> None:
        with (self._folder / f"steps-{self._rank}.jsonl").open("a") as out:
            out.write(json.dumps([number, *values]) + "\n")
        allowed = self._folder / "allowed"
        while self._rank == 0 and allowed.exists() and number > int(allowed.read_text() or 0):
            time.sleep(0.002)

    def end(self, weights: list[torch.Tensor], **more: Any) -> None:
        data = b"".join(weight.detach().numpy().tobytes() for weight in weights)
        record = {"weights": hashlib.sha256(data).hexdigest(), **more}
        (self._folder / f"end-{self._rank}.json").write_text(json.dumps(record))


def loop(folder: Path, steps: int, seconds: float | None) -> None:
    """Train with DistributedDataParallel and `oven.connect`."""
    distributed.init_process_group("gloo")
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(ranks.rank())
    notes = Notes(folder)
    with oven.connect(optimizer=optimizer, max_steps=steps, seconds=seconds) as client:
        for step in range(1, steps + 1):
            x = torch.randn(4, 4, generator=data)
            loss = (parallel(x) - x.sum(1, keepdim=True)).square().mean()
            notes.step(step, optimizer.param_groups[0]["lr"], loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            client.observe(step, {"loss": loss.item()})
            client.poll()
            if client.stopping:
                break
    notes.end(list(model.parameters()))


def attached(folder: Path, steps: int, seconds: float | None) -> None:
    """Train with a Trainer under DistributedDataParallel. After a requested end it starts again."""
    from tests.support.attached import rows, trainer
    from tests.support.ranks_trainers import Noting, losses

    job = trainer(
        folder / "out", max_steps=steps, lr_scheduler_type="constant", ddp_backend="gloo", data=rows(256),
    )  # fmt: skip
    notes = Notes(folder)
    measured = losses(job)
    job.add_callback(Noting(notes, measured))
    oven.attach(job, seconds=seconds)
    job.train()
    assert isinstance(job.model, torch.nn.Module)
    notes.end(list(job.model.parameters()))
    job.train()


def sharded(folder: Path, steps: int, seconds: float | None) -> None:
    """Train with a Trainer under FSDP2: alone, then attached without changes, then attached until its end."""
    from tests.support.ranks_trainers import Noting, losses, sharded_trainer, whole

    def train(limit: int, plug: bool, notes: Notes | None = None) -> list[torch.Tensor]:
        job = sharded_trainer(folder / "out", limit)
        if notes is not None:
            job.add_callback(Noting(notes, losses(job)))
        if plug:
            oven.attach(job)
        job.train()
        return whole(job)

    notes = Notes(folder)
    alone, observed = train(6, plug=False), train(6, plug=True)
    same = len(alone) == len(observed) and all(torch.equal(a, b) for a, b in zip(alone, observed, strict=True))
    notes.end(train(steps, True, notes), same=same)


def agreeing(folder: Path, steps: int, seconds: float | None) -> None:
    """Run the cases in which an event happens on one rank only, without a bus."""
    from tests.support.ranks_cases import CASES

    distributed.init_process_group("gloo")
    together = ranks.Ranks.join()
    results = {case.__name__: case(together) for case in CASES}
    (folder / f"end-{together.index}.json").write_text(json.dumps(results))


def oracle(folder: Path, steps: int, seconds: float | None) -> None:
    """Train an oracle with GRPO under DistributedDataParallel without a bus, and watch each pass. `steps` are a rank's
    rows."""
    import warnings

    from tests.support.activation_rows import until

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counted = until(folder, steps, seed=1000, ranks=int(os.environ["WORLD_SIZE"]))
    (folder / f"end-{os.environ['RANK']}.json").write_text(json.dumps(counted))


def channelled(folder: Path, steps: int, seconds: float | None) -> None:
    """Train with GRPO and self-distillation without a bus. Only rank 0's prompts have hints."""
    from tests.support.ranks_channels import trained

    notes = Notes(folder)
    weights, figures = trained(folder, steps)
    notes.end(weights, **figures)


def gauges(folder: Path, steps: int, seconds: float | None) -> None:
    """Compare the gauges of sharded models with those of unsharded ones, without a bus."""
    from tests.support.ranks_sharded import SHARDINGS, gauge_errors

    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    count = ranks.world_size()
    errors = {name: gauge_errors(name, steps) for name in SHARDINGS if not (name == "hybrid" and count % 2)}
    (folder / f"end-{ranks.rank()}.json").write_text(json.dumps(errors))


def copied(folder: Path, steps: int, seconds: float | None) -> None:
    """Restore copies of sharded models, on their device and in the host's memory, without a bus."""
    from tests.support.ranks_sharded import differences_after_rollback

    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    devices = {"beside the weights": None, "in the host's memory": torch.device("cpu")}
    results = {name: differences_after_rollback(steps, device) for name, device in devices.items()}
    (folder / f"end-{ranks.rank()}.json").write_text(json.dumps(results))


KINDS: dict[str, tuple[Callable[[Path, int, float | None], None], str]] = {
    "loop": (loop, "oven_learner.custom_loop"),
    "attach": (attached, "tests.support.ranks_trainers"),
    "sharded": (sharded, "tests.support.ranks_trainers"),
    "gauges": (gauges, "tests.support.ranks_sharded"),
    "copied": (copied, "tests.support.ranks_sharded"),
    "agreeing": (agreeing, "tests.support.ranks_cases"),
    "channels": (channelled, "tests.support.ranks_channels"),
    "oracle": (oracle, "tests.support.activation_rows"),
}


def work(kind: str, folder: Path, steps: int, seconds: float | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a script has none of torchrun's own handlers
    KINDS[kind][0](folder, steps, seconds)
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    importlib.import_module(KINDS[options.kind][1])
    gc.freeze()  # what was imported: each training of each rank begins with a full collection
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=options.ranks, run_id="r", start_method="fork", rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", max_restarts=0, monitor_interval=0.05,
    )  # fmt: skip
    elastic_launch(config, work)(options.kind, options.folder, options.steps, options.seconds)


if __name__ == "__main__":
    main()
