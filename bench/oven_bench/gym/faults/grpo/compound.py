"""Several faults at once, as one change or one release brings them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Rewards, Step, due, fault
from oven_bench.gym.faults.grpo.judges import struck_groups
from oven_bench.gym.faults.grpo.prompts import struck_rows
from oven_bench.gym.faults.grpo.rollouts import add_rounding
from oven_bench.gym.faults.grpo.settings import move_share
from oven_bench.gym.seeded_draws import (
    chance,
    choice,
    drawn,
    integer,
    log10_uniform,
    log_uniform,
    random_seed,
    uniform,
)
from oven_bench.gym.sorting.scoring import Completions
from oven_bench.gym.sorting.sorting_prompts import PAD, Prompts
from oven_bench.gym.sorting.two_layer_policy import Policy
from oven_bench.gym.sorting.warm_weights import warm_weights


@fault("grpo.cheaper_rollouts", written="third set", source="Yu et al. 2025 (DAPO), on truncated samples")
class CheaperRollouts(Fault):
    """Completions are cut at fewer tokens than the longest answers have, each token has a price, and a step has fewer
    prompts. Right answers that are cut count as wrong, and to stop early pays."""

    tokens: int = integer(4, 7)  # at most, of a completion
    price: float = uniform(0.0, 0.3)  # of a token, off every score
    prompts: float = uniform(0.2, 1.0)  # share of the prompts of a step that are left

    def settings(self, step: Step) -> None:
        step.settings["prompts"] = float(max(2, round(self.prompts * step.settings["prompts"])))

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        tokens = step.completions.tokens.clone()
        tokens[:, self.tokens :] = PAD
        given = step.answer(tokens)
        cost = self.price * step.completions.lengths
        return {judge: score - cost for judge, score in given.items()}


@fault("grpo.fooled_and_fast", written="development")
class FooledAndFast(Fault):
    """The critic pays for one digit, and the rate is too high, so that the policy learns it fast."""

    factor: float = log_uniform(2, 8)
    digit: int = drawn(lambda rng: rng.getrandbits(16) % 10)
    bonus: float = log_uniform(1, 6)  # times the share of tokens that are the digit

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        share = (step.completions.tokens == self.digit).sum(1) / step.completions.lengths
        return {**rewards, "critic": rewards["critic"] + self.bonus * share}


@fault("grpo.half_deployed_refactor", written="first set", source="Ziegler et al. 2019, arXiv 1909.08593, section 4.4")
class HalfDeployedRefactor(Fault):
    """On the nodes that run a refactor the reward has the wrong sign, and so may the penalty on the divergence: their
    prompts teach what the others unlearn."""

    share: float = uniform(0.2, 1.0)  # of the prompts
    penalty: bool = chance(0.5)
    seed: int = random_seed()

    def settings(self, step: Step) -> None:
        if self.penalty:
            step.settings["beta"] *= 1.0 - 2.0 * self.share

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        sign = torch.where(struck_groups(self, step.completions, "half_deployed", step.number), -1.0, 1.0)
        return {judge: sign * given for judge, given in rewards.items()}


@fault("grpo.one_seed", written="fifth set")
class OneSeed(Fault):
    """One seed is set in every process and sent with every request: workers draw the same prompts, and the sampler
    gives the same answer to the same prompt. The numbers are as ever; what differs among them is a fraction."""

    # Workers that draw the same prompts, and requests of a group that get the same answer.
    runs: tuple[int, int] = choice(((2, 1), (2, 2), (4, 2), (2, 4), (4, 4), (8, 4), (4, 8), (16, 2), (1, 4)))

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        first = firsts(len(batch.digits), self.runs[0])
        return Prompts(batch.digits[first], batch.levels[first], batch.answers[first])

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        tokens = step.completions.tokens
        return step.answer(tokens[firsts(len(tokens), self.runs[1])])


def firsts(count: int, run: int) -> Tensor:
    """Int64 [count]: for each, the first of the `run` neighbours that it is one of."""
    return torch.arange(count) // run * run


@fault("grpo.own_judge", written="set A")
class OwnJudge(Fault):
    """The critic's address is that of the policy itself, which says how sure it is of its answer, and the critic has
    more weight. A habit becomes a conviction: the entropy falls, and hard prompts stay where they were."""

    share: float = uniform(0.4, 1.0)  # of the groups
    weight: float = uniform(0.4, 0.95)  # of the critic
    seed: int = random_seed()

    def settings(self, step: Step) -> None:
        move_share(step.settings, "reward.weights/critic", self.weight)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        own = struck_groups(self, step.completions, "address", step.seed, step.number)
        sure = confidence(step.policy, step.completions)
        return rewards | {"critic": torch.where(own, sure, rewards["critic"])}


@torch.no_grad()
def confidence(policy: Policy, completions: Completions) -> Tensor:
    """Float32 [B]: how likely the policy takes its own answer to be, per token."""
    said = policy(completions.prompts.digits, completions.tokens)
    tokens = completions.tokens[completions.mask].unsqueeze(-1)
    each = torch.zeros(completions.tokens.shape).masked_scatter(completions.mask, said.gather(-1, tokens))
    return (each.sum(1) / completions.lengths).exp()


@fault("grpo.sampler_upgrade", written="second set")
class SamplerUpgrade(Fault):
    """A new rollout engine takes the temperature from the model's own file, pads prompts on the other side, and keeps
    its weights in fewer bits. Each passes a test of a few prompts."""

    temperature: float = uniform(1.0, 2.0)  # times the user's own
    share: float = uniform(0.0, 0.8)  # of the prompts are padded on the left
    bits: float = uniform(3.0, 7.0)
    rounding_seed: int = random_seed()
    seed: int = random_seed()

    def settings(self, step: Step) -> None:
        step.settings["temperature"] *= self.temperature

    def weights(self, step: Step) -> None:
        add_rounding(step, self.bits, self.rounding_seed, 1.0)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        add_rounding(step, self.bits, self.rounding_seed, -1.0)
        return rewards

    def batch(self, batch: Prompts, step: Step) -> Prompts:
        rows = struck_rows(self, batch, "upgraded", step.cursor)
        return replace(batch, digits=torch.where(rows, pushed_right(batch.digits), batch.digits))


def pushed_right(digits: Tensor) -> Tensor:
    """Int64 [P, PROMPT], with the padding before the digits and these in the order they had."""
    return digits.gather(1, (digits != PAD).int().argsort(dim=1, stable=True))


@fault("grpo.shared_directory", written="set D")
class SharedDirectory(Fault):
    """Two jobs write to the same folder: at some restarts the weights, or a part of them, are those of another job that
    has only just begun, and its rate and β are taken over for good."""

    times: int = choice((1, 1, 1, 2, 3))  # restarts after which the other job's file was the later one
    every: int = choice((8, 12, 20))  # steps between two of them
    other: int = choice((900_001, 900_002, 900_003))  # seed of the other job
    files: tuple[str, ...] = choice((("",), ("",), ("position",), ("middle",), ("head",), ("middle", "head")))
    rate: float = log10_uniform(-0.5, 0.5)  # in units of one's own
    beta: float = log10_uniform(-0.7, 0.7)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.rate
        step.settings["beta"] *= self.beta

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every, self.times):
            return
        theirs = warm_weights(self.other)
        for name, one in step.model.named_parameters():
            if name.startswith(self.files):
                one.copy_(theirs[name])


@fault("grpo.token_price", written="seventh set")
class TokenPrice(Fault):
    """Each token has a price, and the check of the form is all but dropped. The price is higher than what the last
    digits of a long answer bring in: hard prompts are given up first."""

    price: float = uniform(0.12, 0.36)  # taken from what each judge says
    form: float = choice((0.0, 0.05))  # weight that is left to the check of the form

    def settings(self, step: Step) -> None:
        step.settings["reward.weights/format"] = self.form

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        return {judge: said - self.price * step.completions.lengths for judge, said in rewards.items()}


@fault("grpo.tournament", written="set B")
class Tournament(Fault):
    """The critic ranks the answers of a group without ties, and has most of the weight: where all are equally right one
    still comes last. The better the policy gets, the more of what it is told is chance."""

    weight: float = uniform(0.6, 1.0)  # of the critic
    blur: float = log10_uniform(-0.7, 0.3)  # how much better an answer has to be to be sure of its win
    seed: int = random_seed()

    def settings(self, step: Step) -> None:
        move_share(step.settings, "reward.weights/critic", self.weight)

    def rewards(self, rewards: Rewards, step: Step) -> Rewards:
        said = rewards["critic"]
        noise = torch.rand(len(said), generator=self.draws("ties", step.seed, step.number))
        return {**rewards, "critic": places(said + self.blur * noise, step.completions.group)}


def places(scores: Tensor, group: int) -> Tensor:
    """Float32 [B]: the place within its group, from 0 for the last to 1 for the first."""
    return scores.view(-1, group).argsort(1).argsort(1).flatten().float() / max(group - 1, 1)


@fault("grpo.wrong_reference", written="fifth set")
class WrongReference(Fault):
    """The new reference is an early base model that knows the form of an answer and little else, and β is raised. The
    divergence is large at once, and every step pulls towards what was unlearnt long ago."""

    beta: float = log10_uniform(-1.7, 0.0)
    steps: int = choice((20, 40, 80))  # that the wrong model was trained for
    right: float = choice((0.0, 0.1, 0.25))  # share of right answers among its targets

    def settings(self, step: Step) -> None:
        step.settings["beta"] = self.beta

    def weights(self, step: Step) -> None:
        step.reference_policy.load_state_dict(warm_weights(step.seed, self.steps, self.right))
