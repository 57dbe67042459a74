"""The bench of teachers: what it measures of one, and what it calls too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY
from tests.unit.learner.test_teachers import teacher

from oven_bench.performance.teachers import FORMS, missed_bars, most_bytes, teacher_model
from oven_learner.teachers.memory import own_bytes
from oven_learner.teachers.offload import offload

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def figures(**of_it: float) -> dict[str, float]:
    return {"float32_bytes": 1e8, "idle": 0.0, "active": 0.2, "stall_s": 0.1} | of_it


@pytest.mark.parametrize(
    ("form", "of_it", "text"),
    [
        ("resident", {"active": 1.0}, ""),
        ("resident", {"stall_s": 0.21}, "stalls 0.21 s, bar 0.20"),
        ("8 bits", {"active": 0.36}, "8 bits: when active, it holds 0.360"),
        ("4 bits", {"active": 0.26}, "bar 0.25"),
        ("offload", {"idle": 0.06}, "offload: when idle, it holds 0.060"),
        ("offload", {"active": 0.9, "stall_s": 1.9}, ""),
        ("offload", {"stall_s": 2.0}, "bar 2.00"),
        ("offload", {"stall_s": 3.0, "float32_bytes": 2e8}, ""),
    ],
)
def test_each_bar_is_named_when_it_is_missed(form: str, of_it: dict[str, float], text: str) -> None:
    result = missed_bars({form: figures(**of_it)})
    assert (len(result) == 1 and text in result[0]) if text else not result


def test_the_model_has_the_size_that_was_asked_for() -> None:
    with torch.device("meta"):
        sizes = {
            megabytes: sum(p.numel() * 4 for p in teacher_model(megabytes).parameters()) / 1e6
            for megabytes in (100.0, 110.0, 300.0)
        }
    assert all(megabytes <= size < megabytes + 60 for megabytes, size in sizes.items())
    assert set(FORMS) == {"resident", "8 bits", "4 bits", "offload"}


def test_the_most_that_an_offloaded_model_holds_is_a_layer_and_its_head(tmp_path: Path) -> None:
    model: Any = teacher(1, width=64)
    whole, head = own_bytes(model), own_bytes(model.lm_head)
    offload(model, torch.device("cpu"), tmp_path)
    idle = own_bytes(model)
    with torch.no_grad():
        most = most_bytes(model, lambda: model(input_ids=torch.arange(4)[None]))
    largest = max(module.weight.numel() * 4 for module in teacher(1, width=64).model.layers.modules()
                  if isinstance(module, torch.nn.Linear))  # fmt: skip
    assert idle + largest + head <= most < idle + largest + head + whole / 10
    assert own_bytes(model) == idle
