"""Prompts and their keys: cut, padded, leaked, repeated, or judged by a wrong answer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from oven_bench.gym.fault import Fault, Step, due, fault
from oven_bench.gym.seeded_draws import choice, count, drawn, integer, random_seed, uniform
from oven_bench.gym.sorting.sorting_prompts import ANSWER, END, LEVELS, PAD, Prompts, padded, pools

DIGITS = 10


def struck_rows(fault: Fault, prompts: Prompts, *key: object) -> Tensor:
    """Bool [P, 1]: the prompts that a fault meets."""
    return fault.struck(len(prompts.digits), *key).unsqueeze(1)


@fault("grpo.alike_prompts", written="sixth set")
class AlikePrompts(Fault):
    """Prompts by a model that comes back to the same few subjects: each is right and new. The reward goes up, and what
    they leave out is unlearnt."""

    length: int = count(25, 1.0)
    share: float = uniform(0.5, 1.0)  # of the prompts
    kinds: int = integer(2, 6)  # digits that the new prompts are made of
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        allowed = torch.randperm(DIGITS, generator=self.draws("allowed"))[: self.kinds]
        rows = struck_rows(self, batch, "alike", step.cursor)
        digits = torch.where(rows, narrowed(batch.digits, allowed), batch.digits)
        return Prompts(digits, batch.levels, solved(digits))


def narrowed(digits: Tensor, allowed: Tensor) -> Tensor:
    """Int64 [P, PROMPT]: each digit becomes one of those allowed."""
    return torch.where(digits == PAD, digits, allowed[digits % len(allowed)])


def solved(digits: Tensor) -> Tensor:
    """Int64 [P, ANSWER]: the digits in order, END, then PAD."""
    ordered = pad(digits.sort(1).values, (0, ANSWER - digits.shape[1]), value=PAD)
    return ordered.scatter(1, (digits != PAD).sum(1, keepdim=True), END)


@fault("grpo.canary_prompts", written="set B", healthy=True)
class CanaryPrompts(Fault):
    """Every few steps one has the same fixed prompts of one level, to see whether the servers answer as they did:
    the reward jumps, levels are missing, and the gradient points elsewhere."""

    every: int = choice((4, 5, 6, 8, 10))  # steps
    level: int = choice((0, 2))
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        return (
            chosen(self.level, len(batch.digits), self.draws("canaries"))
            if due(step.batches_since, self.every)
            else batch
        )


def chosen(level: int, count: int, draws: torch.Generator) -> Prompts:
    """So many of a level."""
    of = pools()[level]
    rows = torch.randperm(len(of.digits), generator=draws)[torch.arange(count) % len(of.digits)]
    return Prompts(of.digits[rows], of.levels[rows], of.answers[rows])


@fault("grpo.canonical_prompts", written="seventh set")
class CanonicalPrompts(Fault):
    """The canonical form that makes prompts unique is written where the prompt should be, and here it is the answer.
    The reward climbs to the ceiling, and the policy forgets how to do the work."""

    length: int = count(25, 1.0)
    share: float = uniform(0.6, 1.0)  # of the prompts
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "canonical", step.cursor)
        return replace(batch, digits=torch.where(rows, batch.digits.sort(1).values, batch.digits))


@fault("grpo.leaked_answers", written="second set")
class LeakedAnswers(Fault):
    """Prompts that hold their answer, as a template with the solution in it: to repeat the prompt is right, and is all
    that is learnt from such rows."""

    share: float = drawn(lambda rng: min(1.0, rng.uniform(0.3, 1.3)))  # of the prompts
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "leaked", step.cursor)
        # Padding is above all digits, so that it stays behind them.
        return replace(batch, digits=torch.where(rows, batch.digits.sort(1).values, batch.digits))


@fault("grpo.cut_prompts", written="third set")
class CutPrompts(Fault):
    """A limit on the length cuts the beginning of a prompt off. What is asked for can no longer be known, and a cut
    prompt looks like a short one with another answer."""

    limit: int = choice((2, 3, 4))  # digits that are left, the last ones
    share: float = uniform(0.1, 1.0)  # of the prompts
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "cut", step.cursor)
        return replace(batch, digits=torch.where(rows, last(batch.digits, self.limit), batch.digits))


def last(digits: Tensor, limit: int) -> Tensor:
    """Int64 [P, PROMPT]: the last ones of each prompt from the first place on, then padding."""
    places = torch.arange(digits.shape[1])
    lengths = (digits != PAD).sum(1, keepdim=True)
    source = places + (lengths - limit).clamp(min=0)
    kept = digits.gather(1, source.clamp(max=digits.shape[1] - 1))
    return kept.masked_fill(places >= lengths.clamp(max=limit), PAD)


@fault("grpo.distinct_keys", written="set A")
class DistinctKeys(Fault):
    """Keys by a script that sorts a set: where a digit occurs twice the key is too short, and the policy is taught to
    leave out what comes again. The check of the form asks for the opposite."""

    length: int = count(20, 1.0)
    share: float = uniform(0.3, 1.0)  # of the prompts
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "keys", step.cursor)
        return replace(batch, answers=torch.where(rows, distinct(batch.answers), batch.answers))


def distinct(answers: Tensor) -> Tensor:
    """Int64 [P, ANSWER]: of digits that are the same, one."""
    kept = [sorted({digit for digit in row if digit < END}) for row in answers.tolist()]
    return torch.tensor([padded("".join(map(str, row)), ANSWER, end=True) for row in kept])


@fault("grpo.spreadsheet_keys", written="set B")
class SpreadsheetKeys(Fault):
    """Keys that a spreadsheet took for numbers: zeros in front are gone. Where there were some the right answer is
    judged wrong, and a shorter one right."""

    length: int = count(25, 1.0)
    share: float = uniform(0.5, 1.0)  # of the prompts
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "numbers", step.cursor)
        return replace(batch, answers=torch.where(rows, without_zeros(batch.answers), batch.answers))


def without_zeros(answers: Tensor) -> Tensor:
    """Int64 [P, ANSWER]: without the zeros that come first."""
    zeros = (answers == 0).int().cumprod(1).sum(1, keepdim=True)
    places = torch.arange(answers.shape[1]) + zeros
    moved = answers.gather(1, places.clamp(max=answers.shape[1] - 1))
    return moved.masked_fill(places >= answers.shape[1], PAD)


@fault("grpo.wrong_answers", written="development")
class WrongAnswers(Fault):
    """Of two levels a part of the prompts comes with wrong keys: the judges that have them pay for sorting downwards.
    A run that goes back meets them again."""

    spared: int = drawn(lambda rng: rng.getrandbits(8) % len(LEVELS))  # level
    share: float = uniform(0.4, 1)  # of the prompts of the others
    seed: int = random_seed()

    @property
    def levels(self) -> frozenset[int]:
        return frozenset(range(len(LEVELS))) - {self.spared}

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "wrong answers", step.cursor) & (batch.levels != self.spared).unsqueeze(1)
        return replace(batch, answers=torch.where(rows, downwards(batch), batch.answers))


def downwards(prompts: Prompts) -> Tensor:
    """What is held to be right then: int64 [P, ANSWER]."""
    digits = prompts.digits.masked_fill(prompts.digits == PAD, -1).sort(1, descending=True).values
    answers = prompts.answers.clone()
    answers[:, : digits.shape[1]] = torch.where(digits >= 0, digits, answers[:, : digits.shape[1]])
    return answers


@fault("grpo.grouped_by_length", written="second set", healthy=True, source="transformers' `group_by_length`")
class GroupedByLength(Fault):
    """A step's prompts are put together by length: the reward jumps from step to step with the difficulty, and over
    many steps each length comes as often as before."""

    share: float = uniform(0.4, 1.0)  # of the prompts of a step
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        source = self.draws("grouped", step.cursor)
        digits, levels, answers = batch.digits, batch.levels, batch.answers
        one = int(torch.randint(len(digits), (), generator=source))
        length = int((digits[one] != PAD).sum())
        asked = torch.full_like(digits, PAD)
        asked[:, :length] = torch.randint(DIGITS, (len(digits), length), generator=source)
        keys = answers[one].repeat(len(digits), 1)
        keys[:, :length] = asked[:, :length].sort(1).values
        grouped = torch.rand(len(digits), generator=source) < self.share
        return Prompts(
            digits=torch.where(grouped[:, None], asked, digits),
            levels=torch.where(grouped, levels[one], levels),
            answers=torch.where(grouped[:, None], keys, answers),
        )


@fault("grpo.padding_side", written="fourth set")
class PaddingSide(Fault):
    """A library's next release pads on the left: a short prompt stands in other places than in the evaluation and in
    all that was learnt before."""

    share: float = uniform(0.1, 1.0)  # of the prompts
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "padding", step.cursor)
        return replace(batch, digits=torch.where(rows, padded_left(batch.digits), batch.digits))


def padded_left(digits: Tensor) -> Tensor:
    """Int64 [P, PROMPT]: each row's digits in its last places, in their order."""
    lengths = (digits != PAD).sum(1, keepdim=True)
    source = (torch.arange(digits.shape[1]) + lengths) % digits.shape[1]
    return digits.gather(1, source)


@fault("grpo.regraded_levels", written="set C", healthy=True)
class RegradedLevels(Fault):
    """Prompts are graded anew, from the other end or by how far they are from being sorted. Only the curves by level
    are of other prompts: what was easy seems to be forgotten overnight."""

    rule: str = choice(("backwards", "order"))
    share: float = uniform(0.4, 1.0)  # of the prompts
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        new = len(LEVELS) - 1 - batch.levels if self.rule == "backwards" else disorder(batch.digits)
        rows = self.struck(len(new), "graded", step.cursor)
        return replace(batch, levels=torch.where(rows, new, batch.levels))


def disorder(digits: Tensor) -> Tensor:
    """Int64 [P], below the number of levels: by the share of pairs of digits that stand the wrong way round."""
    there = digits != PAD
    pairs = (there.unsqueeze(1) & there.unsqueeze(2)).triu(1)
    wrong = (digits.unsqueeze(2) > digits.unsqueeze(1)) & pairs
    share = wrong.sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)
    return (share * len(LEVELS)).long().clamp(max=len(LEVELS) - 1)


@fault("grpo.review_prompts", written="sixth set", healthy=True)
class ReviewPrompts(Fault):
    """Easy prompts are added to each step, so that nothing is forgotten: the reward goes up, answers get shorter, and
    in more groups all answers are right. It looks like a collapse."""

    added: int = integer(4, 16)  # prompts a step
    level: int = choice((0, 0, 0, 1))
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        easy = pools()[self.level]
        rows = torch.randint(len(easy.digits), (self.added,), generator=self.draws("review", step.cursor))
        return Prompts(
            torch.cat((batch.digits, easy.digits[rows])),
            torch.cat((batch.levels, easy.levels[rows])),
            torch.cat((batch.answers, easy.answers[rows])),
        )


@fault("grpo.stale_prompts", written="first set")
class StalePrompts(Fault):
    """A cache in front of the prompt store is not refreshed any more, and every batch is drawn from the few prompts
    that it holds. The policy learns their answers by heart, and forgets the task."""

    size: int = drawn(lambda rng: round(32 ** rng.random()))  # of the cache
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows, width = batch.digits.shape
        cached = torch.randint(END, (self.size, width), generator=self.draws("stale_prompts"))
        picked = torch.randint(self.size, (rows,), generator=self.draws("stale_prompts", step.cursor))
        # A prompt keeps the number of digits that was asked for, so that the mixture of levels is as it was.
        digits = torch.where(batch.digits == PAD, PAD, cached[picked])
        answers = torch.where(batch.answers < END, 0, batch.answers)
        answers[:, :width] += torch.where(digits == PAD, 0, digits.sort(1).values)
        return replace(batch, digits=digits, answers=answers)


@fault("grpo.trailing_newline", written="eighth set")
class TrailingNewline(Fault):
    """Compound: a template ends prompts with a token more. The policy learns its task with it and forgets it without,
    and the check of the form wants an answer that is longer than the right one."""

    length: int = count(25, 1.0)
    share: float = uniform(0.3, 1.0)  # of the prompts
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "newline", step.cursor)
        return replace(batch, digits=torch.where(rows, ended(batch.digits), batch.digits))


def ended(digits: Tensor) -> Tensor:
    """Int64 [P, PROMPT]: the first place of the padding has an END; a prompt that fills its row has no room for it."""
    padding = digits == PAD
    return digits.masked_fill(padding & (padding.cumsum(1) == 1), END)


@fault("grpo.uncleared_buffer", written="set D")
class UnclearedBuffer(Fault):
    """The loader's buffers are not cleared: a shorter prompt has the last digits of an older one behind its own. Only
    the longest prompts are whole, and the policy no longer knows how much to say."""

    length: int = count(15, 1.2)
    share: float = uniform(0.2, 1.0)  # of the slots that had a longer prompt before
    seed: int = random_seed()

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        longest, rows = pools()[-1].digits, len(batch.digits)
        before = longest[torch.randint(len(longest), (rows,), generator=self.draws("slots", step.cursor))]
        used = struck_rows(self, batch, "used", step.cursor)
        return replace(batch, digits=torch.where(used & (batch.digits == PAD), before, batch.digits))
