"""Trials in a loop of one's own: with its scheduler, by the client's steps, and by its own count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.trial_driver import digest
from tests.support.trial_link import TrialLink, order

import oven_learner as oven

STEPS = 24


def trained(link: TrialLink, *, scheduled: bool = True, counts_on: bool = True) -> tuple[list[str], Any]:
    """The bits after each step that the run has behind it, and the client."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100) if scheduled else None
    x = torch.randn(400, 4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 4, True)
    held_out = torch.randn(12, 4)
    bits: dict[int, str] = {}

    def evaluate() -> dict[str, list[float]]:
        return {"eval_loss": (model(held_out) - held_out.sum(1, keepdim=True)).square().flatten().tolist()}

    with oven.connect(
        model=model, optimizer=optimizer, scheduler=scheduler, evaluate=evaluate, evaluate_every=1000, link=link
    ) as client:
        step = 0
        for inputs, targets in client.batches(loader):
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
            step = step + 1 if counts_on else client.step + 1
            client.observe(step, {"loss": 0.0})
            bits[client.step] = digest(dict(model.state_dict()), optimizer.state_dict())
            client.poll()
            if client.step >= STEPS:
                break
    return [bits[step] for step in sorted(bits)], client


@pytest.mark.parametrize(("scheduled", "counts_on"), [(True, True), (True, False), (False, False)])
def test_the_control_is_kept_bit_for_bit(scheduled: bool, counts_on: bool) -> None:
    alone, _ = trained(TrialLink(), scheduled=scheduled, counts_on=counts_on)
    link = TrialLink(order(6, {"optimizer.lr_scale": 0.2}, reading="eval_loss", margin=1e9))
    tried, _ = trained(link, scheduled=scheduled, counts_on=counts_on)
    (ended,) = link.ended()
    assert link.announced() == "eval_loss"
    assert (ended.status, ended.kept, ended.steps, ended.extra) == ("completed", 0, 8, 4), ended
    assert tried[9:] == alone[9:], "from the end of the trial on"
    assert [one.step for one in link.observed()] == list(range(STEPS + 1)), "the evaluation at the start, and each step"


def test_a_change_is_kept_bit_for_bit() -> None:
    direct, _ = trained(TrialLink(plan={7: ("optimizer.lr_scale", 0.2)}))
    link = TrialLink(order(7, {"optimizer.lr_scale": 0.2}, reading="eval_loss", margin=0.0))
    tried, _ = trained(link)
    (ended,), (receipt,) = link.ended(), link.receipts()
    assert ended.kept == 1, ended
    assert (receipt.status, receipt.before, receipt.after) == ("applied", 1.0, 0.2)
    assert tried[6:] == direct[6:], "as if it had been made at once"


def test_a_loop_that_sets_its_rate_by_its_own_count_makes_no_trial_and_says_so() -> None:
    link = TrialLink(*(order(tick, {"optimizer.lr_scale": 0.5}, reading="eval_loss") for tick in (6, 15)))
    trained(link, scheduled=False, counts_on=True)
    first, second = link.ended()
    remedy = "begin each step at client.step + 1, or give connect() the scheduler"
    assert (first.status, first.kept) == ("interrupted", 0) and first.reason.endswith(remedy)
    assert (second.status, second.steps) == ("refused", 0) and second.reason == first.reason
    assert {receipt.status for receipt in link.receipts()} == {"skipped"}
