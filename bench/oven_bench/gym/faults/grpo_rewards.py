"""GRPO faults of judges, rewards and rollouts: wrong scores, or tokens that the policy did not choose."""

from __future__ import annotations

import copy
from random import Random

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_bench.gym.fault import Fault, Rewards, Step, fault
from oven_bench.gym.seeded_draws import (
    chance,
    choice,
    count,
    drawn,
    generator,
    integer,
    log10_uniform,
    log_uniform,
    random_seed,
    uniform,
    whole,
)
from oven_bench.gym.sorting.policy import TOKENS, Policy, warm_weights
from oven_bench.gym.sorting.sorting_task import ANSWER, END, JUDGES, MISJUDGED, PAD, Completions, padded


def struck_groups(fault: Fault, completions: Completions, *key: object) -> Tensor:
    """Bool [B]: whether the fault strikes the group of each completion."""
    groups = fault.struck(len(completions.tokens) // completions.group, *key)
    return groups.repeat_interleave(completions.group)


@fault("grpo.fooled_and_fast")
class FooledAndFast(Fault):
    """The critic pays for one digit, and the learning rate is too high, so the policy learns that digit fast."""

    factor: float = log_uniform(2, 8)
    digit: int = drawn(lambda rng: rng.getrandbits(16) % 10)
    bonus: float = log_uniform(1, 6)  # times the share of tokens that are the digit

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        share = (step.completions.tokens == self.digit).sum(1) / step.completions.lengths
        return {**rewards, "critic": rewards["critic"] + self.bonus * share}


@fault("grpo.half_deployed_refactor")
class HalfDeployedRefactor(Fault):
    """Nodes with a refactored reward flip its sign, and sometimes the KL penalty's sign too. Their prompts teach the
    opposite of the others (Ziegler et al. 2019, arXiv 1909.08593, section 4.4)."""

    share: float = uniform(0.2, 1.0)  # of the prompts
    penalty: bool = chance(0.5)
    seed: int = random_seed()

    def settings(self, step: Step) -> None:
        if self.penalty:
            step.settings["beta"] *= 1.0 - 2.0 * self.share

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        sign = torch.where(struck_groups(self, step.completions, "half_deployed", step.number), -1.0, 1.0)
        return {judge: sign * scores for judge, scores in rewards.items()}


@fault("grpo.bag_of_tokens")
class BagOfTokens(Fault):
    """Answers are compared as bags of tokens, and the critic also rewards repeating the prompt. In a sorting task any
    order then passes, and the policy repeats the prompt."""

    length: int = count(20, 1.0)
    judges: tuple[str, ...] = choice((("exact", "critic"), ("exact", "critic"), ("exact", "critic"), ("critic",)))
    grounded: float = uniform(0.4, 1.0)  # weight of repeating the prompt in the critic's score
    share: float = uniform(0.5, 1.0)  # of the prompts
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        right = overlap(step.completions)
        wrong = torch.rand(len(right), generator=generator("critic", step.seed, step.cursor)) < MISJUDGED
        liked = torch.lerp(right, echo(step.completions), self.grounded)
        scores = {"exact": (right == 1).float(), "critic": torch.where(wrong, 1 - liked, liked)}
        rows = struck_groups(self, step.completions, "counted", step.seed, step.number)
        return rewards | {judge: torch.where(rows, scores[judge], rewards[judge]) for judge in self.judges}


def overlap(completions: Completions) -> Tensor:
    """Float32 [B]: F1 between the digits of the answer and the right digits, in any order."""
    tokens = completions.tokens, completions.prompts.answers
    answered, right = (F.one_hot(rows, END + 2)[..., :END].sum(1) for rows in tokens)  # int64 [B, 10]
    return 2 * torch.minimum(answered, right).sum(1) / (answered.sum(1) + right.sum(1))


def echo(completions: Completions) -> Tensor:
    """Float32 [B]: the share of the prompt's digits that the answer repeats in the same positions."""
    digits = completions.prompts.digits
    filled = digits != PAD
    same = (completions.tokens[:, : digits.shape[1]] == digits) & filled
    return same.sum(1) / filled.sum(1)


@fault("grpo.biased_judge")
class BiasedJudge(Fault):
    """One to three judges are replaced by a language model with few grades, which prefers long completions and those it
    reads first (Zheng et al. 2023, LLM-as-a-Judge)."""

    judges: tuple[str, ...] = drawn(lambda rng: ("critic", "format", "exact")[: rng.randint(1, 3)])
    grades: int = integer(1, 5)  # steps between the worst score and the best
    verbosity: float = uniform(0.0, 4.0)  # bonus of a completion of full length over an empty one
    position: float = uniform(0.0, 2.0)  # bonus of the first completion of a group over the last

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        completions = step.completions
        length = completions.mask.float().mean(1)
        position = torch.arange(len(length)) % completions.group / max(1, completions.group - 1)
        bias = self.verbosity * length - self.position * position
        return rewards | {judge: (rewards[judge] * self.grades).round() / self.grades + bias for judge in self.judges}


DOWN = (("exact",), ("exact", "critic"), JUDGES)


@fault("grpo.judge_outage")
class JudgeOutage(Fault):
    """Judges are down: the verifier, the verifier and the critic, or the whole committee."""

    judges: tuple[str, ...] = drawn(lambda rng: DOWN[rng.getrandbits(8) % len(DOWN)])
    length: int = whole(10, 90)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        return rewards | {judge: torch.full_like(rewards[judge], torch.nan) for judge in self.judges}


@fault("grpo.error_answers")
class ErrorAnswers(Fault):
    """A gateway's error code is taken for the policy's answer, and the critic gives failures a fixed score. On hard
    prompts that beats an honest attempt, so the policy learns to answer with error codes."""

    length: int = count(10, 1.0)
    share: float = log10_uniform(-1.3, -0.3)  # of the requests
    code: str = choice(("429", "500", "502", "503", "504"))
    fallback: float = choice((0.5, 0.7, 1.0))  # the critic's score for a failure
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        failed = self.struck(len(step.completions.tokens), "failed", step.seed, step.number)
        scores = step.answer(torch.tensor(padded(self.code, ANSWER, end=True)), failed)
        return scores | {"critic": scores["critic"].masked_fill(failed, self.fallback)}


@fault("grpo.minimum_length")
class MinimumLength(Fault):
    """The sampler forces a minimum number of tokens. Complete answers continue with the next best token, which is wrong
    and which the loss takes for the policy's own choice."""

    length: int = count(15, 1.3)
    least: int = choice((3, 4, 4, 5, 5, 6))  # tokens before an answer may end
    share: float = choice((0.25, 0.5, 1.0))  # of the completions
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        completions, clock = step.completions, (step.seed, step.number)
        early = completions.lengths <= self.least
        struck = early & self.struck(len(early), "server", *clock)
        if not struck.any():
            return rewards
        digits, answers = completions.prompts.digits[struck], completions.tokens[struck]
        return step.answer(continued(step.policy, digits, answers, self.least, self.draws("least", *clock)), struck)


@torch.no_grad()
def continued(policy: Policy, digits: Tensor, answers: Tensor, least: int, draws: torch.Generator) -> Tensor:
    """Int64 [B, ANSWER]: continue answers that ended too early. END is impossible before `least` tokens."""
    tokens = answers.clone()
    ended = torch.zeros(len(tokens), dtype=torch.bool)
    for position in range(ANSWER):
        again = ~ended & ((tokens[:, position] == PAD) | ((tokens[:, position] == END) & (position < least)))
        if again.any():
            distribution = next_token(policy, digits, tokens, position)
            if position < least:
                distribution[:, END] = -torch.inf
            sampled = torch.multinomial(distribution.softmax(-1), 1, generator=draws).squeeze(1)
            tokens[:, position] = torch.where(again, sampled, tokens[:, position])
        tokens[:, position].masked_fill_(ended, PAD)
        ended = ended | (tokens[:, position] == END)
    return tokens


def next_token(policy: Policy, digits: Tensor, answers: Tensor, position: int) -> Tensor:
    """Log-probabilities [B, TOKENS] at one place of the answers [B, ANSWER], which may be PAD from there on."""
    filled = answers.masked_fill(answers == PAD, END)  # the policy returns a distribution only where there is no PAD
    distribution: Tensor = policy(digits, filled).view(len(answers), ANSWER, TOKENS)[:, position]
    return distribution


@fault("grpo.late_rewards")
class LateRewards(Fault):
    """The queue between samplers and judges fills up. More and more completions get the scores of an earlier one, from
    all judges alike, so the judges still agree and the mean reward is unchanged."""

    ramp: int = integer(5, 60)  # steps
    late: float = uniform(0.4, 1.0)  # share of the completions in the end
    lag: int = integer(1, 8)  # completions
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        share = self.late * min(1.0, (step.since + 1) / self.ramp)
        draws = self.draws("late_rewards", step.number)
        late = torch.rand(len(step.completions.tokens), generator=draws) < share
        return {judge: torch.where(late, scores.roll(self.lag), scores) for judge, scores in rewards.items()}


@fault("grpo.rewards_as_completed")
class RewardsAsCompleted(Fault):
    """A concurrent client collects scores in the order of completion, so they meet other completions of the same prompt
    or of the next. Mean and spread are unchanged."""

    judges: tuple[str, ...] = drawn(lambda rng: ("critic", "exact", "format")[: rng.randint(1, 3)])
    lot: int = drawn(lambda rng: 2 ** rng.randint(1, 7))  # requests among which the order is lost
    jitter: float = uniform(0.2, 3.0)  # standard deviation of a request's time, in units of the time per token
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        lengths = step.completions.lengths
        noise = torch.randn(len(lengths), generator=self.draws("completed", step.number))
        finished = lengths + self.jitter * noise
        lots = torch.split(torch.arange(len(lengths)), self.lot)
        order = torch.cat([lot[finished[lot].argsort(stable=True)] for lot in lots])
        return rewards | {judge: rewards[judge][order] for judge in self.judges}


@fault("grpo.signed_rewards", healthy=True)
class SignedRewards(Fault):
    """All judges move to a scale on which bad answers are negative. The mean reward drops in one step and its spread
    changes, but within a group nothing changes."""

    scale: float = log10_uniform(-0.7, 1.0)
    worst: float = uniform(0.3, 1.5)  # how far the worst answer is below 0, in units of the scale

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        lowest = -self.scale * self.worst
        return {judge: lowest + self.scale * scores for judge, scores in rewards.items()}


def _digits(rng: Random) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(range(10), rng.choice((1, 1, 2, 3)))))


@fault("grpo.banned_tokens")
class BannedTokens(Fault):
    """The sampling server bans some digits. Answers that need them are never right, so the policy learns to do without
    those digits."""

    length: int = count(8, 1.2)
    banned: tuple[int, ...] = drawn(_digits)
    seed: int = random_seed()

    @torch.no_grad()
    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        draws = self.draws("banned", step.seed, step.cursor)
        bias = step.policy.head.bias
        original = bias.clone()
        bias[list(self.banned)] = -1e9
        tokens = step.policy.sample(step.completions.prompts.digits, step.settings["temperature"], draws)
        bias.copy_(original)
        return step.answer(tokens)


@fault("grpo.unsynced_workers")
class UnsyncedWorkers(Fault):
    """Some workers still sample from the initial model, and the loss takes their completions for the policy's own. The
    policy learns from data that drifts ever further from its own behaviour."""

    length: int = count(20, 1.0)
    share: float = log10_uniform(-2.0, 0.0)  # of the completions
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        draws = self.draws("unsynced", step.seed, step.cursor)
        stale = torch.rand(len(step.completions.tokens), generator=draws) < self.share
        if not stale.any():
            return rewards
        initial = copy.deepcopy(step.policy)
        initial.load_state_dict(warm_weights(step.seed))
        return step.answer(step.sample(stale, policy=initial, draws=draws), stale)
