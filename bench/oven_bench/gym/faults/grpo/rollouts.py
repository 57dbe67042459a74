"""Answers that are not the policy's own: the sampler has other weights, other settings, or its own cache."""

from __future__ import annotations

import copy
from random import Random
from typing import cast

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Rewards, Step, fault
from oven_bench.gym.faults.grpo.judges import struck_groups
from oven_bench.gym.seeded_draws import choice, count, drawn, generator, integer, log10_uniform, random_seed, uniform
from oven_bench.gym.sorting.sorting_prompts import ANSWER, END, PAD, SYMBOLS
from oven_bench.gym.sorting.two_layer_policy import Policy
from oven_bench.gym.sorting.warm_weights import warm_weights


def _some_digits(rng: Random) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(range(10), rng.choice((1, 1, 2, 3)))))


@fault("grpo.banned_tokens", written="seventh set")
class BannedTokens(Fault):
    """The server that samples has a list of tokens that must not be said, some of them digits. Whatever needs them is
    never answered right, the next best is praised, and the policy gets used to doing without."""

    length: int = count(8, 1.2)
    banned: tuple[int, ...] = drawn(_some_digits)
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        draws = self.draws("banned", step.seed, step.cursor)
        digits, temperature = step.completions.prompts.digits, step.settings["temperature"]
        return step.answer(without(self.banned, step.policy, digits, temperature, draws))


@torch.no_grad()
def without(
    banned: tuple[int, ...], policy: Policy, digits: Tensor, temperature: float, draws: torch.Generator
) -> Tensor:
    """Answers [B, ANSWER] that have none of the banned tokens; the policy is left as it was."""
    kept = policy.head.bias.clone()
    policy.head.bias[list(banned)] = -1e9
    tokens = policy.sample(digits, temperature, draws)
    policy.head.bias.copy_(kept)
    return tokens


@fault("grpo.crossed_caches", written="eighth set")
class CrossedCaches(Fault):
    """A server that is short of memory takes up the cache of another request: the answer begins to one prompt and
    continues to another. Much of each step unlearns what the policy would never have said."""

    length: int = count(10, 1.2)
    share: float = log10_uniform(-1.2, 0.0)  # of the answers
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        rows = len(step.completions.tokens)
        draws = self.draws("crossed", step.seed, step.number)
        others = torch.randperm(rows, generator=draws)
        places = torch.randint(1, ANSWER - 2, (rows,), generator=draws)
        places[~self.struck(rows, "preempted", step.seed, step.number)] = ANSWER
        return step.answer(crossed(step.completions.tokens, others, places))


def crossed(tokens: Tensor, others: Tensor, places: Tensor) -> Tensor:
    """Int64 [B, ANSWER]: from its place on an answer continues as the other one does; one that has ended stays so."""
    behind = torch.arange(tokens.shape[1]) >= places.unsqueeze(1)
    ended = (tokens == END).cumsum(1) - (tokens == END).int() > 0
    return torch.where(behind & ~ended, tokens[others], tokens).masked_fill(ended, PAD)


@fault("grpo.quantized_sampler", written="second set", source="Yao et al. 2025, on engines that disagree with trainers")
class QuantizedSampler(Fault):
    """The rollout engine has the policy in few bits, and what it draws is taken for the policy's own. Rounding is noise
    here, uniform over one level, which is taken off again before the gradient."""

    bits: float = uniform(1.5, 5.0)
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        add_rounding(step, self.bits, self.seed, 1.0)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        add_rounding(step, self.bits, self.seed, -1.0)
        return rewards


@torch.no_grad()
def add_rounding(step: Step, bits: float, seed: int, sign: float) -> None:
    """Errors of rounding to so many bits over ±4 / √columns, about the root mean square of a layer's weights. They are
    drawn anew after 10 steps, for weights move slowly. Vectors are left in full, as engines do."""
    source = generator("quantized", seed, step.number // 10)
    for parameter in step.model.parameters():
        if parameter.dim() > 1:
            level = 2 * 4.0 / parameter.shape[-1] ** 0.5 / 2**bits
            parameter.add_(torch.rand(parameter.shape, generator=source) - 0.5, alpha=sign * level)


@fault("grpo.stale_prefix_cache", written="set B")
class StalePrefixCache(Fault):
    """The server's cache of prompts is not emptied when the weights are replaced: the first policy reads the prompt and
    the present one answers. The further it gets from where it started, the less the answers are its own."""

    length: int = count(30, 0.9)
    places: int = choice((3, 4, 5, 5))  # of a prompt that are in the cache
    share: float = uniform(0.85, 1.2)  # of the prompts
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        completions, temperature = step.completions, step.settings["temperature"]
        draws = self.draws("cached", step.seed, step.cursor)
        before = step.reference_policy.places.weight[: self.places * SYMBOLS]
        tokens = by_cache(step.policy, before, completions.prompts.digits, temperature, draws)
        rows = struck_groups(self, completions, "found", step.seed, step.cursor).unsqueeze(1)
        return step.answer(torch.where(rows, tokens, completions.tokens))


@torch.no_grad()
def by_cache(policy: Policy, before: Tensor, digits: Tensor, temperature: float, draws: torch.Generator) -> Tensor:
    """Answers [B, ANSWER] of a policy whose first rows are those from before; it is left as it was."""
    rows = policy.places.weight[: len(before)]
    kept = rows.clone()
    rows.copy_(before)
    tokens = policy.sample(digits, temperature, draws)
    rows.copy_(kept)
    return tokens


@fault("grpo.temperature_ladder", written="set C", healthy=True)
class TemperatureLadder(Fault):
    """Each place of a group has its own temperature. Mean reward and form are worse, the spread is wider and the
    answers' length scatters."""

    low: float = uniform(0.6, 0.95)  # the first answer's temperature, over the one that is set
    high: float = uniform(1.1, 1.35)  # the last answer's
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        digits, group = step.completions.prompts.digits, step.completions.group
        rungs = step.settings["temperature"] * ladder(self.low, self.high, group)
        each = cast(float, rungs.repeat(len(digits) // group).unsqueeze(1))  # [B, 1], by which it divides
        return step.answer(step.policy.sample(digits, each, self.draws("ladder", step.seed, step.number)))


def ladder(low: float, high: float, group: int) -> Tensor:
    """Float32 [group], each as many times the one before it."""
    return torch.logspace(0, 1, group, base=high / low) * low


@fault("grpo.token_budget", written="sixth set")
class TokenBudget(Fault):
    """The learner packs its answers within a budget of tokens, the shortest first, and drops what does not fit: the
    long answers, and those that do not end, are in no loss."""

    length: int = count(40, 0.9)
    budget: int = integer(60, 600)  # tokens of a step

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        left_out = ~fitting(step.completions.lengths, self.budget).unsqueeze(1)
        step.replace_answers(step.completions.tokens.masked_fill(left_out, PAD))
        return rewards


def fitting(lengths: Tensor, budget: int) -> Tensor:
    """Bool [B]: the shortest come first, for as long as their sum is within the budget."""
    order = lengths.argsort(stable=True)
    return torch.zeros(len(lengths), dtype=torch.bool).scatter(0, order, lengths[order].cumsum(0) <= budget)


@fault("grpo.trusted_draft", written="set C")
class TrustedDraft(Fault):
    """Speculative sampling with too low a threshold: some tokens are the draft's, which is the policy from before the
    training. The policy is punished for words that it gives up saying more and more."""

    length: int = count(20, 0.9)
    share: float = log10_uniform(-1.3, 0.0)  # of the tokens
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        draws, digits = self.draws("draft", step.seed, step.number), step.completions.prompts.digits
        models = step.policy, step.reference_policy
        return step.answer(drafted(*models, digits, self.share, step.settings["temperature"], draws))


@torch.no_grad()
def drafted(
    policy: Policy, draft: Policy, digits: Tensor, share: float, temperature: float, draws: torch.Generator
) -> Tensor:
    """Answers [B, ANSWER] to digits [B, PROMPT], in which each token is drawn from the draft with this chance."""
    models, rows = (policy, draft), len(digits)
    summed = [model.embed_prompt(digits) for model in models]
    answers = torch.full((rows, ANSWER), PAD)
    ended = torch.zeros(rows, dtype=torch.bool)
    for place in range(ANSWER):
        logits = [model.next_logits(x, place) for model, x in zip(models, summed, strict=True)]
        taken = torch.rand(rows, 1, generator=draws) < share
        chances = (torch.where(taken, logits[1], logits[0]) / temperature).softmax(-1).nan_to_num(1.0)
        token = torch.multinomial(chances, 1, generator=draws).squeeze(1).masked_fill(ended, PAD)
        answers[:, place] = token
        ended = ended | (token == END)
        if place < ANSWER - 1:
            summed = [model.append(x, token, place) for model, x in zip(models, summed, strict=True)]
    return answers


@fault("grpo.unsynced_workers", written="third set")
class UnsyncedWorkers(Fault):
    """Some workers answer with the model that the run began from, and the loss takes their completions for the policy's
    own: what it learns from is ever less what it would do."""

    length: int = count(20, 1.0)
    share: float = log10_uniform(-2.0, 0.0)  # of the completions
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        draws = self.draws("unsynced", step.seed, step.cursor)
        chosen = torch.rand(len(step.completions.tokens), generator=draws) < self.share
        if not chosen.any():
            return rewards
        first = copy.deepcopy(step.policy)
        first.load_state_dict(warm_weights(step.seed))
        return step.answer(step.sample(chosen, policy=first, draws=draws), chosen)
