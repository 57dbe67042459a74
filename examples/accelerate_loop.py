"""A loop under Accelerate with the controller: `oven-controller run -- accelerate launch examples/accelerate_loop.py`.

Gradients are accumulated over two batches: one step of the optimizer is one `observe`.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import oven_learner as oven

STEPS, ACCUMULATED = 40, 2


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATED)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS * accelerator.num_processes)
    x = torch.randn(STEPS * ACCUMULATED * 32 * accelerator.num_processes, 8)
    rows = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model, optimizer, rows, scheduler = accelerator.prepare(model, optimizer, rows, scheduler)
    held_out = torch.randn(256, 8, device=accelerator.device)

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        guess = model(held_out)
        return {"eval/loss": torch.nn.functional.mse_loss(guess, held_out.sum(1, keepdim=True)).item()}

    step, losses = 0, []
    with oven.connect(
        model=model, optimizer=optimizer, scheduler=scheduler, clip=1.0, evaluate=evaluate, max_steps=STEPS
    ) as client:  # after `prepare`, on every process
        for inputs, wanted in rows:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), wanted)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if not accelerator.sync_gradients:
                continue
            step += 1
            client.observe(step, {"loss": sum(losses) / len(losses)})
            losses.clear()
            client.poll()
            if client.stopping:
                break


if __name__ == "__main__":
    main()
