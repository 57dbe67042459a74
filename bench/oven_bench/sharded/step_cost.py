"""The time of an optimizer step under FSDP2 with the gauges, next to the same step without them, on two ranks.

Blocks with and without the gauges alternate, in an order that a drift of the machine does not favour. A block's time is
the median of its steps. The ratio is that of two neighbouring blocks.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from oven_bench.worker_processes import worker_pool
from oven_learner import ranks
from oven_learner.optim.optimizer_gauges import OptimizerGauges
from oven_learner.optim.sharding import find_sharding

RANKS: Final = 2
ROWS, TOKENS = 4, 128
BLOCK_STEPS, WARM_UP_STEPS = 8, 4
SIZE: Final[dict[str, Any]] = {
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4,
}  # fmt: skip
"""5 million parameters. A step takes as long per token and parameter as that of a large model."""


def measure(pairs: int) -> dict[str, Any]:
    """Return the ratios of `pairs` pairs of blocks, and the median times of a step in ms."""
    with tempfile.TemporaryDirectory() as folder, worker_pool(RANKS) as pool:
        rendezvous = f"file://{Path(folder) / 'rendezvous'}"
        futures = [pool.submit(_train, index, rendezvous, pairs) for index in range(RANKS)]
        times_by_rank = [future.result() for future in futures]
    with_gauges, without = times_by_rank[0]
    return {
        "ratios": [on / off for on, off in zip(with_gauges, without, strict=True)],
        "step_ms": 1000 * median(without),
        "step_with_gauges_ms": 1000 * median(with_gauges),
    }


def _train(index: int, rendezvous: str, pairs: int) -> tuple[list[float], list[float]]:
    """Train as one of the ranks. Return the time of each block with and without gauges, in seconds."""
    distributed.init_process_group("gloo", rendezvous, rank=index, world_size=RANKS)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZE))
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    sharding = find_sharding(model, optimizer)
    gauges = OptimizerGauges(optimizer, model, publishes=ranks.rank() == 0, sharding=sharding)
    data = torch.Generator().manual_seed(index)

    def block(measures: bool, steps: int = BLOCK_STEPS) -> float:
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            tokens = torch.randint(0, SIZE["vocab_size"], (ROWS, TOKENS), generator=data)
            model(input_ids=tokens, labels=tokens).loss.backward()
            if measures:
                gauges.before_step()
            optimizer.step()
            if measures:
                [float(number) for number in gauges.after_step().values()]
            optimizer.zero_grad()
            times.append(time.perf_counter() - began)
        return median(times)

    block(True, WARM_UP_STEPS)
    measured: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs):
        for measures in (True, False) if pair % 2 else (False, True):
            measured[measures].append(block(measures))
    distributed.destroy_process_group()
    return measured[True], measured[False]
