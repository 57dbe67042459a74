"""Your own loop under the controller: `oven-controller run -- python examples/raw_loop.py`.

`OVEN_MODE=optional python examples/raw_loop.py` runs it without one.
"""

from __future__ import annotations

import torch

import oven_learner as oven

STEPS = 40


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    held_out = torch.randn(256, 8)

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        guess = model(held_out)
        return {"eval/loss": torch.nn.functional.mse_loss(guess, held_out.sum(1, keepdim=True)).item()}

    with oven.connect(
        model=model, optimizer=optimizer, scheduler=schedule, clip=0.1, evaluate=evaluate, max_steps=STEPS
    ) as client:
        for step in range(1, STEPS + 1):
            x = torch.randn(32, 8)
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            client.observe(step, {"loss": loss.item()})
            client.poll()
            if client.stopping:
                break


if __name__ == "__main__":
    main()
