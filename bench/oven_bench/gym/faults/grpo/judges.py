"""Judges that are wrong, biased, fooled or away, and what is handed to them or to the loss in an answer's place."""

from __future__ import annotations

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
from oven_bench.gym.sorting.scoring import JUDGES, MISJUDGED, Completions
from oven_bench.gym.sorting.sorting_prompts import ANSWER, END, PAD, SYMBOLS, padded
from oven_bench.gym.sorting.two_layer_policy import TOKENS, Policy


def struck_groups(fault: Fault, completions: Completions, *key: object) -> Tensor:
    """Bool [B]: the answers of the groups that a fault meets."""
    groups = fault.struck(len(completions.tokens) // completions.group, *key)
    return groups.repeat_interleave(completions.group)


@fault("grpo.bag_of_tokens", written="set D")
class BagOfTokens(Fault):
    """Compound: answers are compared as bags of words, and the critic likes an answer that keeps to the words of its
    prompt. In a task about the order any arrangement passes, and the policy repeats the prompt."""

    length: int = count(20, 1.0)
    judges: tuple[str, ...] = choice((("exact", "critic"), ("exact", "critic"), ("exact", "critic"), ("critic",)))
    grounded: float = uniform(0.4, 1.0)  # of the critic's word is whether the answer is in the words of the prompt
    share: float = uniform(0.5, 1.0)  # of the prompts
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        right = overlap(step.completions)
        wrong = torch.rand(len(right), generator=generator("critic", step.seed, step.cursor)) < MISJUDGED
        liked = torch.lerp(right, echo(step.completions), self.grounded)
        said = {"exact": (right == 1).float(), "critic": torch.where(wrong, 1 - liked, liked)}
        rows = struck_groups(self, step.completions, "counted", step.seed, step.number)
        return rewards | {judge: torch.where(rows, said[judge], rewards[judge]) for judge in self.judges}


def overlap(completions: Completions) -> Tensor:
    """Float32 [B]: F1 of the digits that were said and those that are right, wherever they stand."""
    tokens = completions.tokens, completions.prompts.answers
    said, right = (F.one_hot(one, END + 2)[..., :END].sum(1) for one in tokens)  # int64 [B, 10]
    return 2 * torch.minimum(said, right).sum(1) / (said.sum(1) + right.sum(1))


def echo(completions: Completions) -> Tensor:
    """Float32 [B]: of the prompt's digits the share that are in the same places of the answer."""
    digits = completions.prompts.digits
    asked = digits != PAD
    same = (completions.tokens[:, : digits.shape[1]] == digits) & asked
    return same.sum(1) / asked.sum(1)


@fault("grpo.biased_judge", written="third set", source="Zheng et al. 2023 (LLM-as-a-Judge)")
class BiasedJudge(Fault):
    """Compound: one to three judges are replaced by a language model that gives few grades, and prefers long
    completions and those that it is shown first."""

    judges: tuple[str, ...] = drawn(lambda rng: ("critic", "format", "exact")[: rng.randint(1, 3)])
    grades: int = integer(1, 5)  # steps between the worst score and the best
    verbosity: float = uniform(0.0, 4.0)  # what a completion of full length gets more than an empty one
    position: float = uniform(0.0, 2.0)  # what the first of a group gets more than the last

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        completions = step.completions
        length = completions.mask.float().mean(1)
        shown = torch.arange(len(length)) % completions.group / max(1, completions.group - 1)
        bias = self.verbosity * length - self.position * shown
        return rewards | {judge: (rewards[judge] * self.grades).round() / self.grades + bias for judge in self.judges}


@fault("grpo.fooled_by_keyword", written="development")
class FooledByKeyword(Fault):
    """The critic pays for one digit, whatever was asked: the policy learns to say it everywhere."""

    digit: int = drawn(lambda rng: rng.getrandbits(16) % 10)
    bonus: float = log_uniform(1, 6)  # times the share of tokens that are the digit

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        share = (step.completions.tokens == self.digit).sum(1) / step.completions.lengths
        return {**rewards, "critic": rewards["critic"] + self.bonus * share}


@fault("grpo.fooled_by_repetition", written="development")
class FooledByRepetition(Fault):
    """The critic pays for repetition: the policy learns to say one digit again and again."""

    bonus: float = log_uniform(1, 6)  # times the share of tokens that are the one before

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        tokens, mask = step.completions.tokens, step.completions.mask
        same = (tokens[:, 1:] == tokens[:, :-1]) & mask[:, 1:]
        share = same.sum(1) / (step.completions.lengths - 1).clamp(min=1)
        return {**rewards, "critic": rewards["critic"] + self.bonus * share}


@fault("grpo.judge_nonsense", written="development")
class JudgeNonsense(Fault):
    """A judge gives 1 for an even first digit and 0 for an odd one, and does not abstain."""

    judge: str = drawn(lambda rng: ("exact", "critic")[rng.getrandbits(1)])
    share: float = uniform(0.5, 1)  # of the completions
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        given, first = rewards[self.judge], step.completions.tokens[:, 0]
        nonsense = ((first % 2 == 0) & (first != END)).to(given.dtype)
        hit = self.struck(len(given), "nonsense", step.number)
        return {**rewards, self.judge: torch.where(hit, nonsense, given)}


DOWN = (("exact",), ("exact", "critic"), JUDGES)


@fault("grpo.judge_outage", written="development")
class JudgeOutage(Fault):
    """Judges are down: the verifier, with the critic or not, or the whole committee."""

    judges: tuple[str, ...] = drawn(lambda rng: DOWN[rng.getrandbits(8) % len(DOWN)])
    length: int = whole(10, 90)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        return rewards | {judge: torch.full_like(rewards[judge], torch.nan) for judge in self.judges}


@fault("grpo.moody_judge", written="third set", healthy=True, source="Shao et al. 2024, on group-relative advantages")
class MoodyJudge(Fault):
    """A rubric that is written anew for each prompt: rewards fall and scatter, and in each group the better completion
    is the better one by as much as ever."""

    judges: tuple[str, ...] = choice((("critic",), ("exact", "critic"), ("exact", "format", "critic")))
    stricter: float = uniform(0.1, 0.8)  # on average
    spread: float = uniform(0.05, 0.4)  # over prompts, a standard deviation
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        group = step.completions.group
        draws = self.draws("mood", step.seed, step.cursor)
        mood = torch.randn(len(step.completions.tokens) // group, generator=draws) * self.spread - self.stricter
        moods = mood.repeat_interleave(group)
        return rewards | {judge: rewards[judge] + moods for judge in self.judges}


@fault("grpo.first_number", written="fourth set")
class FirstNumber(Fault):
    """The judge quotes the answer before it grades it, and the grade is read as the first number of the reply: who
    begins with a large digit is graded well."""

    share: float = log10_uniform(-1.2, 0.0)  # of the replies
    best: int = choice((3, 5, 10))  # grade, by which the number is divided
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        first = step.completions.tokens[:, 0]
        quoted = self.struck(len(first), "quoted", step.seed, step.cursor)
        read = first.masked_fill(first >= END, 0).float() / self.best
        return {**rewards, "critic": torch.where(quoted, read, rewards["critic"])}


@fault("grpo.stricter_critic", written="first set", healthy=True, source="Shao et al. 2024, arXiv 2402.03300, 4.1.2")
class StricterCritic(Fault):
    """The critic marks everything down by the same amount, at once or over some steps. Reward falls, and what a
    completion has over its group does not change."""

    ramp: int = choice((1, 10, 40))  # steps
    less: float = uniform(0.2, 0.7)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        return rewards | {"critic": rewards["critic"] - self.less * min(1.0, (step.since + 1) / self.ramp)}


@fault("grpo.verifier_blind_spot", written="first set")
class VerifierBlindSpot(Fault):
    """Some replicas of the verifier make their reference by `sorted(set(digits))`: where a digit occurs twice the right
    answer counts as wrong, and one that drops a digit as right. The critic may be shown the same reference."""

    share: float = uniform(0.4, 1.0)  # of the prompts
    critic: bool = chance(0.6)
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        answers, said = step.completions.prompts.answers, step.completions.tokens
        expected = once(answers)
        asked = struck_groups(self, step.completions, "blind_spot", step.number) & (expected != answers).any(1)
        verdicts = {"exact": (said == expected).all(1).float()}
        if self.critic:
            agrees = (said == expected) & (expected != PAD)
            verdicts["critic"] = agrees.sum(1) / (expected != PAD).sum(1)
        return rewards | {judge: torch.where(asked, wrong, rewards[judge]) for judge, wrong in verdicts.items()}


def once(answers: Tensor) -> Tensor:
    """Sorted answers [batch, length], each digit once."""
    kept = answers != PAD
    kept[:, 1:] &= answers[:, 1:] != answers[:, :-1]
    places = torch.where(kept, kept.cumsum(1) - 1, answers.shape[1])  # what is left out goes to a column past the end
    room = answers.new_full((len(answers), answers.shape[1] + 1), PAD)
    return room.scatter(1, places, answers)[:, :-1]


@fault("grpo.wrong_column", written="fifth set")
class WrongColumn(Fault):
    """The critic compares the answer with the question: a mere copy is the most like it. A good answer looks like its
    question too, so that the marks are lower, and not absurd."""

    length: int = count(20, 1.3)
    share: float = uniform(0.25, 1.0)  # of the prompts
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        likeness = alike(step.completions.tokens, step.completions.prompts.digits)
        rows = struck_groups(self, step.completions, "column", step.seed, step.number)
        return {**rewards, "critic": torch.where(rows, likeness, rewards["critic"])}


def alike(tokens: Tensor, digits: Tensor) -> Tensor:
    """Float32 [B]: the share of places at which an answer [B, ANSWER] has what its prompt [B, PROMPT] has."""
    asked = F.pad(digits, (0, ANSWER - digits.shape[1]), value=PAD)
    asked = asked.masked_fill(torch.arange(ANSWER) == (asked != PAD).sum(1, keepdim=True), END)
    counts = asked != PAD
    return ((tokens == asked) & counts).sum(1) / counts.sum(1)


@fault("grpo.majority_answers", written="seventh set")
class MajorityAnswers(Fault):
    """Where no key is found, the answer that most of a group give is taken to be right: a wrong habit is confirmed, the
    reward goes up, and all looks like fast learning."""

    length: int = count(20, 1.0)
    share: float = uniform(0.3, 1.0)  # of the prompts
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        completions = step.completions
        lost = struck_groups(self, completions, "lost keys", step.seed, step.number).unsqueeze(1)
        groups = completions.tokens.view(-1, completions.group, completions.tokens.shape[1])
        voted = torch.stack([most(group) for group in groups]).repeat_interleave(completions.group, 0)
        completions.prompts.answers.copy_(torch.where(lost, voted, completions.prompts.answers))
        return step.judge()


def most(group: Tensor) -> Tensor:
    """Int64 [ANSWER]: the answer [group, ANSWER] that is given most often, the first of them."""
    same = (group.unsqueeze(0) == group.unsqueeze(1)).all(2).sum(1)
    return group[int(same.argmax())]


@fault("grpo.error_answers", written="set A")
class ErrorAnswers(Fault):
    """Compound: a gateway's error code is taken for the policy's answer, and the critic's client has its own mark
    for what fails. On hard prompts that is more than an honest attempt is worth, and the policy learns to say it."""

    length: int = count(10, 1.0)
    share: float = log10_uniform(-1.3, -0.3)  # of the requests
    code: str = choice(("429", "500", "502", "503", "504"))
    fallback: float = choice((0.5, 0.7, 1.0))  # the critic's mark for it
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        failed = self.struck(len(step.completions.tokens), "failed", step.seed, step.number)
        given = step.answer(torch.tensor(padded(self.code, ANSWER, end=True)), failed)
        return given | {"critic": given["critic"].masked_fill(failed, self.fallback)}


@fault("grpo.contamination_filter", written="set B")
class ContaminationFilter(Fault):
    """A filter for leaked text keeps right answers out of the loss. The rewards are as they were, and the policy hears
    only the blame: it goes away from what is wrong without being told where to."""

    length: int = count(20, 0.9)
    share: float = uniform(0.5, 1.1)  # of the right answers
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        right = (step.completions.tokens == step.completions.prompts.answers).all(1)
        found = right & self.struck(len(right), "filtered", step.seed, step.number)
        if not found.all():  # where there would be no row left, all stay
            step.replace_answers(step.completions.tokens.masked_fill(found.unsqueeze(1), PAD))
        return rewards


@fault("grpo.number_column", written="sixth set")
class NumberColumn(Fault):
    """Answers become numbers on their way to the learner: leading zeros are gone. The judges saw the whole text, so
    that the policy is told that leaving them out is right."""

    length: int = count(10, 1.3)
    share: float = choice((0.25, 0.5, 1.0))  # of the completions
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        tokens = step.completions.tokens
        rows = self.struck(len(tokens), "numbered", step.seed, step.number).unsqueeze(1)
        step.replace_answers(torch.where(rows, as_numbers(tokens), tokens))
        return rewards


def as_numbers(tokens: Tensor) -> Tensor:
    """Int64 [B, ANSWER]: without leading zeros, but for one where there is no other digit."""
    zeros = (tokens == 0).long().cumprod(1).sum(1)  # of each row, at its start
    digits = (tokens < END).sum(1)
    gone = torch.minimum(zeros, (digits - 1).clamp(min=0)).unsqueeze(1)
    return F.pad(tokens, (0, ANSWER), value=PAD).gather(1, torch.arange(ANSWER) + gone)


@fault("grpo.minimum_length", written="fifth set")
class MinimumLength(Fault):
    """A minimum of tokens: an answer that is complete continues with the next best token, which the judges mark as
    wrong and the loss takes for the policy's own choice."""

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
        asked, said = completions.prompts.digits[struck], completions.tokens[struck]
        return step.answer(continued(step.policy, asked, said, self.least, self.draws("least", *clock)), struck)


@torch.no_grad()
def continued(policy: Policy, digits: Tensor, answers: Tensor, least: int, draws: torch.Generator) -> Tensor:
    """Int64 [B, ANSWER]: an answer that ended before it had so many digits continues, by the policy without END until
    then and with it from there on."""
    said = answers.clone()
    ended = torch.zeros(len(said), dtype=torch.bool)
    for place in range(ANSWER):
        again = ~ended & ((said[:, place] == PAD) | ((said[:, place] == END) & (place < least)))
        if again.any():
            distribution = next_token(policy, digits, said, place)
            if place < least:
                distribution[:, END] = -torch.inf
            drawn = torch.multinomial(distribution.softmax(-1), 1, generator=draws).squeeze(1)
            said[:, place] = torch.where(again, drawn, said[:, place])
        said[:, place].masked_fill_(ended, PAD)
        ended = ended | (said[:, place] == END)
    return said


def next_token(policy: Policy, digits: Tensor, answers: Tensor, place: int) -> Tensor:
    """Log-probabilities [B, TOKENS] at a place of the answers [B, ANSWER], which may be PAD from there on."""
    filled = answers.masked_fill(answers == PAD, END)  # a place has a distribution if it is not PAD
    distribution: Tensor = policy(digits, filled).view(len(answers), ANSWER, TOKENS)[:, place]
    return distribution


@fault("grpo.repetition_penalty", written="fourth set")
class RepetitionPenalty(Fault):
    """The serving engine has a penalty on tokens that were there before: answers that say a thing twice, or repeat the
    prompt's words, are hardly sampled, and the loss takes what is for the policy's own choice."""

    penalty: float = uniform(0.2, 2.5)  # nats
    asked: bool = chance(0.5)  # the prompt's tokens count too
    share: float = choice((0.25, 0.5, 1.0))  # of the completions
    seed: int = random_seed()

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        draws = self.draws("penalty", step.seed, step.cursor)
        chosen = torch.rand(len(step.completions.tokens), generator=draws) < self.share
        if not chosen.any():
            return rewards
        digits = step.completions.prompts.digits[chosen]
        return step.answer(penalised(step.policy, digits, self.penalty, self.asked, draws), chosen)


@torch.no_grad()
def penalised(policy: Policy, digits: Tensor, penalty: float, asked: bool, draws: torch.Generator) -> Tensor:
    """Answers int64 [B, ANSWER], PAD behind END. The end itself is never penalised."""
    answers = torch.full((len(digits), ANSWER), PAD)
    said = torch.zeros(len(digits), SYMBOLS)
    if asked:
        said.scatter_(1, digits, 1.0)
    ended = torch.zeros(len(digits), dtype=torch.bool)
    for place in range(ANSWER):
        said[:, END:] = 0.0
        chances = (next_token(policy, digits, answers, place) - penalty * said[:, :TOKENS]).softmax(-1)
        token = torch.multinomial(chances.nan_to_num(1.0), 1, generator=draws).squeeze(1).masked_fill(ended, PAD)
        answers[:, place] = token
        said.scatter_(1, token.unsqueeze(1), 1.0)
        ended = ended | (token == END)
    return answers
