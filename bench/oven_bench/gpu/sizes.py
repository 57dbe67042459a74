"""The models, batches and repetitions of `bench gpu`: full ones for a card, and tiny ones for a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass

from oven_bench.performance.step_arm import Device, Dtype, Order, Size


@dataclass(frozen=True)
class Sizes:
    """What every part measures. Plain values: they travel to the parts' processes."""

    device: Device
    dtype: Dtype
    generating: tuple[Size, int, int, int]
    """GRPO's model, prompts per step, completions per prompt, and tokens per completion at most."""
    models: tuple[Size, ...]
    """Models of the supervised parts."""
    rows: int
    """Rows per supervised batch."""
    tokens: int
    """Tokens per row."""
    steps: int
    """Steps of each training whose bits are compared."""
    rounds: int
    """Rounds of alternating blocks."""
    block: int
    """Counted steps per block."""
    teacher_megabytes: tuple[float, ...]
    """Sizes of the teachers, in MB of float32."""
    drill_steps: int
    quick_drill: bool
    """Whether the drill trains a policy that takes seconds, which no agent can repair."""

    def order(self, cache: str) -> Order:
        """The order for GRPO's trainer. `cache` is a folder."""
        size, prompts, group, completion = self.generating
        return Order(cache, size, self.device, self.dtype, prompts, group, completion)


def full(device: Device) -> Sizes:
    return Sizes(
        device=device, dtype="bf16", generating=("0.5b", 8, 8, 16), models=("0.5b", "1.5b"), rows=8, tokens=512,
        steps=6, rounds=6, block=3, teacher_megabytes=(2000.0, 6000.0), drill_steps=120, quick_drill=False,
    )  # fmt: skip


def tiny(device: Device) -> Sizes:
    return Sizes(
        device=device, dtype="bf16" if device == "cuda" else "f32", generating=("tiny", 2, 2, 4), models=("tiny",),
        rows=2, tokens=16, steps=3, rounds=4, block=3, teacher_megabytes=(100.0,), drill_steps=12, quick_drill=True,
    )  # fmt: skip
