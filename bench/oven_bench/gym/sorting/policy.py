"""The policy, a small autoregressive network, and the supervised warm-up that stands in for its pre-training."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.sorting_task import ANSWER, END, LENGTHS, PAD, PROMPT, SYMBOLS, Prompts, padded, pools
from oven_recipes.grpo.sorting_task import HABITS

TOKENS = END + 1
"""Tokens of an answer: the digits and END."""
BATCH, RAMP, RATE = 128, 20, 1e-2
"""The warm-up's batch, steps of rising learning rate, and peak learning rate."""


class Policy(nn.Module):
    """Predicts the next token from the prompt and the answer so far. 24,000 parameters.

    Each position of prompt and answer has its own embeddings, which are summed. There is no recurrence, so the
    log-probabilities of whole answers take one pass.
    """

    def __init__(self, hidden: int = 96) -> None:
        super().__init__()
        self.places = nn.Embedding((PROMPT + ANSWER - 1) * SYMBOLS, hidden)
        self.position = nn.Parameter(torch.randn(ANSWER, hidden) * 0.3)
        self.middle = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, TOKENS)
        nn.init.normal_(self.places.weight, std=0.3)
        rows = torch.arange(PROMPT + ANSWER - 1) * SYMBOLS  # the first row of `places` of each position
        self._prompt_rows, self._answer_rows = rows[:PROMPT], rows[PROMPT:]

    def forward(self, digits: Tensor, answers: Tensor) -> Tensor:
        """Log-probabilities [N, TOKENS] at each of the N tokens of `answers` [B, ANSWER] that is not PAD, row by row,
        given the prompt digits [B, PROMPT] and the tokens before it."""
        prompt = self.places(digits + self._prompt_rows).sum(1, keepdim=True)  # [B, 1, H]
        before = self.places(answers[:, :-1] + self._answer_rows).cumsum(1)  # [B, ANSWER - 1, H]
        summed = prompt + nn.functional.pad(before, (0, 0, 1, 0)) + self.position  # [B, ANSWER, H]
        return self._logits(summed[answers != PAD]).log_softmax(-1)

    def _logits(self, summed: Tensor) -> Tensor:
        hidden = torch.relu(summed)
        out: Tensor = self.head(hidden + torch.relu(self.middle(hidden)))
        return out

    @torch.no_grad()
    def sample(self, digits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
        """Sample answers [B, ANSWER] with PAD behind END. Greedy without a generator.

        Samples by the inverse of the cumulative distribution, which works for NaN, too: a broken policy answers
        nonsense and does not raise.
        """
        count = len(digits)
        summed: Tensor = self.places(digits + self._prompt_rows).sum(1)  # [B, H]
        answers = torch.full((count, ANSWER), PAD)
        ended = torch.zeros(count, dtype=torch.bool)
        draws = None if generator is None else torch.rand(ANSWER, count, 1, generator=generator)
        for position in range(ANSWER):
            logits = self._logits(summed + self.position[position])
            if draws is None:
                token = logits.argmax(-1)
            else:
                cumulative = (logits / temperature).softmax(-1).cumsum(-1)
                token = (draws[position] * cumulative[:, -1:] >= cumulative).sum(-1).clamp(max=END)
            token = token.masked_fill(ended, PAD)
            answers[:, position] = token
            ended = ended | (token == END)
            if position < ANSWER - 1:
                summed = summed + self.places(token + self._answer_rows[position])
        return answers


@cache
@torch.enable_grad()
def warm_weights(seed: int, steps: int = 120, right: float = 0.47) -> dict[str, Tensor]:
    """A policy's weights after the warm-up: mixed habits, from which GRPO has to select the right one.

    `right` is the share of right answers among the targets. The others follow one of HABITS: descending, copy, reverse,
    repeat. Do not change the tensors in place. torch's global generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator("policy", seed).initial_seed())
        policy = Policy()
    # A short memory of the squared gradient: in a few hundred steps, 0.999 still remembers the initial weights.
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)
    prompts, targets = _prompts_and_targets()
    for step in range(steps):
        draws = generator("warm-up", seed, step)
        rows = torch.randint(len(prompts.digits), (BATCH,), generator=draws)
        is_wrong = torch.rand(BATCH, generator=draws) >= right
        habits = is_wrong * torch.randint(1, 1 + len(HABITS), (BATCH,), generator=draws)
        target = targets[habits, rows]  # [BATCH, ANSWER]
        loss = nll_loss(policy(prompts.digits[rows], target), target[target != PAD])
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / RAMP) * (1 - 0.95 * step / steps)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: weight.detach().clone() for name, weight in policy.state_dict().items()}


@cache
def _prompts_and_targets() -> tuple[Prompts, Tensor]:
    """All training prompts, and the answer of each habit, the right one first: int64 [1 + habits, N, ANSWER]."""
    levels = pools()
    prompts = Prompts(
        *(
            torch.cat([getattr(prompts_of_level, part) for prompts_of_level in levels])
            for part in ("digits", "levels", "answers")
        )
    )
    texts = [
        "".join(map(str, row[: LENGTHS[level]]))
        for row, level in zip(prompts.digits.tolist(), prompts.levels.tolist(), strict=True)
    ]
    habits = [torch.tensor([padded(habit(text), ANSWER, end=True) for text in texts]) for habit in HABITS]
    return prompts, torch.stack([prompts.answers, *habits])
