"""A LightningModule under the controller: `oven-controller run -- python examples/lightning_module.py`.

`pip install lightning`, which Oven Controller does not need. Several ranks (`Trainer(devices=8)`) need no other change.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from oven_learner.integrations.lightning import OvenCallback

STEPS = 60


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
        max_steps=STEPS, accelerator="cpu", callbacks=[OvenCallback(evaluate, clip=1.0)], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True))


if __name__ == "__main__":
    main()
