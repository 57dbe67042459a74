"""A loop of your own under the controller: `oven-controller run -- python examples/raw_loop.py`."""

from __future__ import annotations

import torch

import oven_learner as oven
from oven_controller.messages import MetricSpec

STEPS = 40


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    clip = [0.1]
    knobs = oven.Actuators()
    knobs.scalar("grad.clip", lambda: clip[0], lambda value: clip.__setitem__(0, value), low=0.01, high=10, scale="log")
    gauges = (MetricSpec(name="loss", better="down"), MetricSpec(name="grad_norm"))

    with oven.connect(knobs, optimizer=optimizer, scheduler=schedule, max_steps=STEPS, metrics=gauges) as client:
        for step in range(1, STEPS + 1):
            x = torch.randn(32, 8)
            loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip[0])
            optimizer.step()
            schedule.step()
            client.observe(step, {"loss": loss.item(), "grad_norm": norm.item()})
            client.poll()
            if client.stopping:
                break


if __name__ == "__main__":
    main()
