"""A LightningModule under the controller: `oven-controller run -- python examples/lightning_module.py`.

`pip install lightning`, which Oven Controller does not need. Several ranks (`Trainer(devices=8)`) need no other change.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

import oven_learner as oven

STEPS = 60


class Oven(Callback):
    """Publishes each optimizer step, and applies the decisions after it."""

    def __init__(self, evaluate: Callable[[], Mapping[str, float]] | None = None, clip: float | None = None) -> None:
        """Pass `clip` instead of the Trainer's `gradient_clip_val`, which is not a knob."""
        self.evaluate, self.clip = evaluate, clip

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        scheduler = trainer.lr_scheduler_configs[0].scheduler if trainer.lr_scheduler_configs else None
        self.seen = trainer.global_step
        self.client = oven.connect(
            model=module,
            optimizer=trainer.optimizers[0],
            scheduler=scheduler,
            clip=self.clip,
            evaluate=self.evaluate,
            max_steps=trainer.max_steps if trainer.max_steps > 0 else None,
            step=self.seen,
            recipe="lightning",
        )
        # Lightning's own handler ends one rank while the others wait for it.
        signal.signal(signal.SIGTERM, lambda number, _: self.client.request_stop(signal.Signals(number).name))

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, *_: Any) -> None:
        if trainer.global_step == self.seen:
            return  # gradients are accumulated: no optimizer step yet
        self.seen = trainer.global_step
        self.client.observe(self.seen, {"loss": outputs["loss"].item()})
        self.client.poll()
        trainer.should_stop = trainer.should_stop or self.client.stopping

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        stopped = self.client.stopping and not self.client.out_of_time
        self.client.close("stopped" if stopped else "completed", detail=self.client.stop_reason)

    def on_exception(self, trainer: Trainer, module: LightningModule, error: BaseException) -> None:
        if hasattr(self, "client"):  # else it failed before training began
            ended = isinstance(error, KeyboardInterrupt)
            self.client.close("stopped" if ended else "failed", detail=f"{type(error).__name__}: {error}"[:500])


class Sums(LightningModule):
    """Learns to add eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self.body(x), y)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS), "interval": "step",
            },
        }  # fmt: skip


def main() -> None:
    seed_everything(0)
    x, held_out, module = torch.randn(512, 8), torch.randn(256, 8), Sums()

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        inputs = held_out.to(module.device)
        return {"eval/loss": torch.nn.functional.mse_loss(module.body(inputs), inputs.sum(1, keepdim=True)).item()}

    trainer = Trainer(
        max_steps=STEPS, accelerator="cpu", callbacks=[Oven(evaluate, clip=1.0)], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True))


if __name__ == "__main__":
    main()
