"""The generation batch of one rank, with its rewards. Channels build their columns from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Generated:
    """A scored generation batch. Each field has one entry per completion of this rank, unless stated otherwise."""

    rows: Sequence[Mapping[str, Any]]
    """The dataset's rows."""
    prompts: Sequence[Any]
    """Texts or conversations as the policy received them, including the environment's reset message."""
    completion_ids: Sequence[Sequence[int]]
    """Token ids without padding, including tool output."""
    rewards: Tensor
    """(ranks · B): weighted sums over reward functions, of all ranks. NaN where no function scored."""
    tools: Sequence[Sequence[Any]]
    """The tools with which the row's prompt was rendered."""
    environments: Sequence[Any] | None
    """The rows' environments after their rollouts."""
    group: int
    """Completions per prompt. They are adjacent across ranks."""
