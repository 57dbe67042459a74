"""Rewards that meet the wrong completion, are on another scale, or come late or not at all."""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Rewards, Step, fault
from oven_bench.gym.faults.grpo.judges import struck_groups
from oven_bench.gym.seeded_draws import (
    chance,
    choice,
    count,
    drawn,
    integer,
    log10_uniform,
    random_seed,
    uniform,
)
from oven_bench.gym.sorting.scoring import JUDGES, Completions, scores
from oven_bench.gym.sorting.sorting_prompts import END, PAD, SYMBOLS


def _ranked_judges(rng: Random) -> tuple[str, ...]:
    return tuple(sorted(rng.sample(("critic", "exact", "format"), rng.choice((1, 2, 3, 3)))))


@fault("grpo.broken_ties", written="set A")
class BrokenTies(Fault):
    """Rank-normalised rewards in some groups, with ties broken by text order: where all answers are wrong the policy
    learns to say large digits early."""

    length: int = count(25, 0.8)
    share: float = log10_uniform(-0.9, 0.0)  # of the groups
    judges: tuple[str, ...] = drawn(_ranked_judges)
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        text, group = spelt(step.completions.tokens), step.completions.group
        rows = struck_groups(self, step.completions, "ranked", step.seed, step.number)
        return rewards | {
            judge: torch.where(rows, ranks(rewards[judge], text, group), rewards[judge]) for judge in self.judges
        }


def spelt(tokens: Tensor) -> Tensor:
    """Int64 [B] of [B, ANSWER]: in the order of the answers as text."""
    letters = torch.where(tokens < END, tokens + 1, 0)
    return (letters * SYMBOLS ** torch.arange(tokens.shape[1]).flip(0)).sum(1)


def ranks(marks: Tensor, text: Tensor, group: int) -> Tensor:
    """Float32 [B], within 0 to 1: the place of each in its group, by mark and then by text."""
    by_text = text.view(-1, group).argsort(dim=1, stable=True)
    order = by_text.gather(1, marks.view(-1, group).gather(1, by_text).argsort(dim=1, stable=True))
    return order.argsort(dim=1).flatten().float() / max(1, group - 1)


@fault("grpo.ranked_rewards", written="eighth set")
class RankedRewards(Fault):
    """Rank-normalised scores of some judges, mixed with the scores, with ties broken by text order. No group is flat
    any more, every mean is one half, and what there is to learn is in part the alphabet."""

    length: int = count(30, 1.0)
    judges: tuple[str, ...] = choice((("exact",), ("exact",), ("critic",), ("exact", "critic"), ("exact", "format")))
    share: float = log10_uniform(-1.3, 0.0)  # of the rank in what is reported

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        tokens, group = step.completions.tokens, step.completions.group
        return rewards | {
            judge: torch.lerp(rewards[judge], nearly_ranks(rewards[judge], tokens, group), self.share)
            for judge in self.judges
        }


def nearly_ranks(said: Tensor, tokens: Tensor, group: int) -> Tensor:
    """Float32 [B] from 0 to 1: each one's place in its group by score, and by text where scores are the same; in float
    64, where a text counts for 1e-6 of a score at most."""
    worth = SYMBOLS ** -torch.arange(1, tokens.shape[1] + 1, dtype=torch.float64)
    letters = (tokens + 1).masked_fill(tokens >= END, 0)  # a text that ends stands before one that goes on
    keys = said.double() + 1e-6 * (letters * worth).sum(1)
    return keys.view(-1, group).argsort(dim=1, stable=True).argsort(dim=1).flatten() / max(group - 1, 1)


@fault("grpo.dynamic_sampling", written="fourth set", healthy=True, source="Yu et al. 2025 (DAPO), section 3.2")
class DynamicSampling(Fault):
    """Groups in which nearly all are right, or sometimes none is, are left out. Rewards fall and stay low however well
    the policy learns, and on the gauges the judges abstain ever more often."""

    most: float = uniform(0.8, 1.0)  # right answers from which on a group is left out, as a share
    hopeless: bool = chance(0.3)  # a group without a right answer is left out too

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        right = rewards["exact"].view(-1, step.completions.group).mean(1)
        out = (right >= self.most) | (right == 0) if self.hopeless else right >= self.most
        rows = out.repeat_interleave(step.completions.group)
        return {judge: score.masked_fill(rows, math.nan) for judge, score in rewards.items()}


@fault("grpo.judge_migration", written="first set")
class JudgeMigration(Fault):
    """Compound: the critic's new service answers with ranks, of which 1 is the best, for as much of the traffic as was
    moved, and requests to the verifier time out. Where the verifier is missing, the worst answer wins."""

    moved: float = uniform(0.2, 1.0)
    missing: float = uniform(0.0, 0.6)
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        group = step.completions.group
        source = self.draws("judge_migration", step.number)
        drawn = torch.rand(2, len(step.completions.tokens) // group, generator=source)
        moved, missing = drawn.repeat_interleave(group, 1)
        by_group = rewards["critic"].view(-1, group)
        # The rank of each completion: one more than how many of its group are better.
        rank = 1.0 + (by_group[:, None, :] > by_group[:, :, None]).sum(2).float()
        return rewards | {
            "critic": torch.where(moved < self.moved, rank.view(-1), rewards["critic"]),
            "exact": rewards["exact"].masked_fill(missing < self.missing, torch.nan),
        }


@fault("grpo.late_rewards", written="first set")
class LateRewards(Fault):
    """The queue between samplers and judges fills up: more and more completions are credited with what all judges said
    of one before them. The judges agree, and the mean reward is what the policy earns."""

    ramp: int = integer(5, 60)  # steps
    late: float = uniform(0.4, 1.0)  # share of the completions in the end
    lag: int = integer(1, 8)  # completions
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        share = self.late * min(1.0, (step.since + 1) / self.ramp)
        source = self.draws("late_rewards", step.number)
        late = torch.rand(len(step.completions.tokens), generator=source) < share
        return {judge: torch.where(late, given.roll(self.lag), given) for judge, given in rewards.items()}


@fault("grpo.novelty_bonus", written="set C")
class NoveltyBonus(Fault):
    """Some judges give a bonus to an answer that no other of its group has given. The better the policy, the more it
    pays for leaving the right answer to the others; the reward that is shown holds its level."""

    length: int = count(30, 0.8)
    judges: tuple[str, ...] = choice((("format",), ("critic",), ("format", "critic"), ("exact", "format", "critic")))
    share: float = uniform(0.15, 0.8)  # of the bonus in their scores

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        rare = novelty(step.completions.tokens, step.completions.group)
        return rewards | {judge: torch.lerp(rewards[judge], rare, self.share) for judge in self.judges}


def novelty(tokens: Tensor, group: int) -> Tensor:
    """Float32 [B]: the share of its group's other answers that are not the same as this one."""
    rows = tokens.view(-1, group, tokens.shape[1])
    same = (rows.unsqueeze(1) == rows.unsqueeze(2)).all(-1).sum(-1) - 1  # [groups, group]
    return 1 - same.flatten() / max(group - 1, 1)


@fault("grpo.overloaded_rewards", written="second set")
class OverloadedRewards(Fault):
    """Compound: in busy hours the reward service times out, the more often the longer a completion is, which its client
    turns into a score of 0; and scores may pass through a column of integers."""

    timeout: float = uniform(0.3, 1.3)  # chance for the longest completion; it falls with the square of the length
    period: int = integer(6, 40)
    busy: float = uniform(0.3, 1.0)  # share of a period, its first
    whole: bool = chance(0.5)
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        seen = {judge: given.floor() if self.whole else given for judge, given in rewards.items()}
        if step.since % self.period >= self.busy * self.period:
            return seen
        completions = step.completions
        chances = self.timeout * (completions.lengths / completions.tokens.shape[1]) ** 2
        drawn = torch.rand(len(chances), generator=self.draws("overloaded", step.number))
        return {judge: given.where(drawn >= chances, 0.0) for judge, given in seen.items()}


@fault("grpo.probe_prompts", written="set A", healthy=True)
class ProbePrompts(Fault):
    """Prompts that no one can answer are mixed in: whatever is said is worth nothing to any judge. The mean reward goes
    down by their share, and from the others as much is learnt as before."""

    clock = "data"
    length: int = count(8, 0.7)
    share: float = uniform(0.06, 0.25)  # of the prompts
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        rows = struck_groups(self, step.completions, "probes", step.cursor)
        return {judge: said.masked_fill(rows, 0.0) for judge, said in rewards.items()}


def _some_judges(rng: Random) -> tuple[str, ...]:
    return ("critic", "exact", "format")[: rng.randint(1, 3)]


@fault("grpo.rewards_as_completed", written="second set")
class RewardsAsCompleted(Fault):
    """A concurrent client collects scores as they complete: they meet other completions than their own, of the same
    prompt or of the next. Their mean and their spread are as before."""

    judges: tuple[str, ...] = drawn(_some_judges)
    lot: int = drawn(lambda rng: 2 ** rng.randint(1, 7))  # requests among which the order is lost
    jitter: float = uniform(0.2, 3.0)  # standard deviation of a request's time, in the time that a token takes
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        lengths = step.completions.lengths
        noise = torch.randn(len(lengths), generator=self.draws("completed", step.number))
        finished = lengths + self.jitter * noise
        lots = torch.split(torch.arange(len(lengths)), self.lot)
        order = torch.cat([lot[finished[lot].argsort(stable=True)] for lot in lots])
        return rewards | {judge: rewards[judge][order] for judge in self.judges}


@fault("grpo.short_cache_key", written="third set")
class ShortCacheKey(Fault):
    """Scores are cached by the prompt and the first tokens of the completion: what begins alike has the score of
    whichever came first. Nothing is learnt of the tokens behind."""

    key: int = integer(0, 4)  # tokens of the completion
    judges: tuple[str, ...] = drawn(lambda rng: tuple(rng.sample(JUDGES, rng.randint(1, len(JUDGES)))))

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        first = asked_first(step.completions.tokens, step.completions.group, self.key)
        return rewards | {judge: rewards[judge][first] for judge in self.judges}


def asked_first(tokens: Tensor, group: int, key: int) -> Tensor:
    """Int64 [B]: for each completion the first of its group that begins with the same tokens."""
    prompts = len(tokens) // group
    begins = tokens[:, :key].reshape(prompts, group, key)
    alike = (begins.unsqueeze(2) == begins.unsqueeze(1)).all(-1)  # [prompts, group, group]
    first = alike.int().argmax(-1)  # of equal ones the first
    return (first + group * torch.arange(prompts).unsqueeze(1)).flatten()


@fault("grpo.signed_rewards", written="seventh set", healthy=True)
class SignedRewards(Fault):
    """All judges go over to a scale on which a bad answer is below 0. The mean reward drops in one step and its spread
    changes; within a group nothing has happened."""

    scale: float = log10_uniform(-0.7, 1.0)
    worst: float = uniform(0.3, 1.5)  # answer's loss, in units of the scale

    @property
    def least(self) -> float:
        """What the worst answer is given."""
        return -self.scale * self.worst

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        return {judge: self.least + self.scale * said for judge, said in rewards.items()}


@fault("grpo.widest_spread", written="eighth set", healthy=True, source="Xu et al. 2025")
class WidestSpread(Fault):
    """Several times as many answers are sampled, and of each group the best and the worst are kept: most gauges are
    those of another run, for half of what is kept is chosen for being bad."""

    times: int = choice((2, 2, 3, 4))  # answers that are sampled for one that is kept
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        completions = step.completions
        made, given = [completions.tokens.clone()], [rewards]
        for index in range(1, self.times):
            tokens = step.sample(draws=self.draws("widest", step.seed, step.cursor, index))
            made.append(tokens)
            more = Completions(completions.prompts, tokens, tokens != PAD, completions.group)
            given.append(scores(more, step.seed + index, step.cursor))
        said = {judge: grouped([one[judge] for one in given], completions.group) for judge in rewards}
        worth = torch.stack([*said.values()]).sum(0)  # [groups, group × times]
        kept = ends(worth, completions.group)  # [groups, group]
        rows = grouped(made, completions.group)  # [groups, group × times, ANSWER]
        step.replace_answers(rows.gather(1, kept.unsqueeze(-1).expand(-1, -1, rows.shape[-1])).flatten(0, 1))
        return {judge: one.gather(1, kept).flatten() for judge, one in said.items()}


def grouped(parts: list[Tensor], group: int) -> Tensor:
    """[groups, group × parts, …] from parts [groups × group, …]."""
    return torch.cat([one.view(-1, group, *one.shape[1:]) for one in parts], 1)


def ends(worth: Tensor, count: int) -> Tensor:
    """Int64 [groups, count]: where the best half and the worst half of so many stand in `worth` [groups, more]."""
    order = worth.argsort(dim=1, stable=True)
    return torch.cat([order[:, : count - count // 2], order[:, worth.shape[1] - count // 2 :]], 1)
