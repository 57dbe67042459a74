"""A generation batch of one rank, as TRL made and scored it: what channels choose their columns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Generated:
    """One entry for each of this rank's B completions, unless it says otherwise."""

    rows: Sequence[Mapping[str, Any]]
    """The dataset's."""
    prompts: Sequence[Any]
    """Texts or conversations, as the policy was given them: with what an environment said at its reset."""
    completion_ids: Sequence[Sequence[int]]
    """Without padding; with what tools wrote."""
    rewards: Tensor
    """(ranks · B), the weighted sum over reward functions, of all ranks; NaN where none has scored."""
    tools: Sequence[Sequence[Any]]
    """Those that the row's prompt was rendered with."""
    environments: Sequence[Any] | None
    """The environments of the rows, as the rollouts left them."""
    group: int
    """Completions of a prompt, which follow each other over the ranks."""
