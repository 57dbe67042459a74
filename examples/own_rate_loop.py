"""A loop that sets its learning rate itself, under the controller: `oven-controller run -- python own_rate_loop.py`.

It multiplies the rate by `client.lr_scale`. Otherwise it would overwrite a change of `optimizer.lr_scale` before the
next step, and the change would be rejected, with these two lines as the remedy.
"""

from __future__ import annotations

import math

import torch

import oven_learner as oven

STEPS, WARMUP, RATE = 40, 5, 1e-2


def get_lr(step: int) -> float:
    """Return the rate: a warm-up, then a cosine down to a tenth."""
    if step <= WARMUP:
        return RATE * step / WARMUP
    return RATE * (0.55 + 0.45 * math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    held_out = torch.randn(256, 8)

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        guess = model(held_out)
        return {"eval/loss": torch.nn.functional.mse_loss(guess, held_out.sum(1, keepdim=True)).item()}

    with oven.connect(model=model, optimizer=optimizer, clip=1.0, evaluate=evaluate, max_steps=STEPS) as client:
        for step in range(1, STEPS + 1):
            lr = get_lr(step) * client.lr_scale
            for group in optimizer.param_groups:
                group["lr"] = lr
            x = torch.randn(32, 8)
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            client.observe(step, {"loss": loss.item()})
            client.poll()
            if client.stopping:
                break


if __name__ == "__main__":
    main()
