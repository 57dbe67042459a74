"""The reward committee, a TRL reward function that asks all members and combines their scores."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol import names
from oven_core.protocol.committee_requests import Completion, ScoreRequest
from oven_core.protocol.judge_spec import OFF, JudgeSpec
from oven_core.protocol.messages import MetricSpec
from oven_learner import ranks
from oven_learner.completions.plain_text import as_text
from oven_learner.rewards.aggregation import DEFAULT_RULE, find_rule
from oven_learner.rewards.batch_rewards import (
    BatchOutcome,
    Evidence,
    Group,
    RankRows,
    batch_rewards,
    build_groups,
    count_abstentions,
    member_metrics,
    rule_verdict,
    to_group_order,
)
from oven_learner.rewards.judge_watch import JudgeWatch
from oven_learner.rewards.member_models import Answers, MemberClient, MemberModels
from oven_learner.rewards.model_description import ModelDescription
from oven_learner.rewards.verdicts import ABSTENTION_KINDS, RewardFunction, RuleResult, Verdict, score_rows

if TYPE_CHECKING:  # at run time it would import numpy, which rules and judges do not need
    from oven_learner.rewards.calibrated_reward import CalibratedReward

log = logging.getLogger("oven.learner")

COST_METRICS = (
    MetricSpec(name="committee/tokens", unit="tokens of judges since the last step, including evaluations"),
    MetricSpec(name="committee/cost_usd", unit="US dollars since the last step, for judges with a known price"),
)
SKIPPED_STEPS = MetricSpec(
    name="committee/skipped_steps", better="down", unit="1 if the step was skipped, because no group was scored"
)
METRICS = (
    MetricSpec(name="committee/agreement", unit="correlation within groups, mean over pairs of members with weight"),
    MetricSpec(name="committee/skipped_groups", better="down", unit="groups in this batch without a quorum"),
    SKIPPED_STEPS,
    MetricSpec(
        name="committee/abstentions", better="down", unit="abstentions in this batch, at most one per member and group"
    ),
    *(
        MetricSpec(name=f"committee/abstain/{kind}", better="down", unit=text)
        for kind, text in ABSTENTION_KINDS.items()
    ),
)


class Committee:
    """A reward function that combines the scores of its members.

    Pass it as the only reward function of a GRPOTrainer, and to `attach(trainer, committee=...)`. `rules` use TRL's
    signature.

    Members have weight 1 by default, and all weights are divided by their sum. Rules of weight 0 are measured
    (`rewards/<member>/mean`) but do not count. Remote members of weight 0 are not asked, because answers cost money.
    With `reliability`, the weights of judges are multiplied by estimates of their reliability. At least `quorum`
    members with weight must score a group and see a difference in it. The default is two, or one if only one member has
    weight. `rule` names the aggregation rule, and `caution` is the λ of the rule `cautious`.

    `description` tells remote members about the model in training. Without it, they only see the prompt, and a warning
    is logged. `reference` names a rule or a data column that identifies correct answers, for tests of the judges. Pass
    `calibration` for a policy that states its confidence. It changes what members see, and computes the rewards.

    The run is paused after `hold_after` consecutive steps without a scored group. If `ahead` is 1, a GRPOTrainer
    generates the next completions while remote members score the current ones (rewards/generation_ahead.py).

    Raises ConfigError for invalid names, weights or quorum, and UnknownNameError for an unknown aggregation rule.
    """

    def __init__(
        self,
        rules: Mapping[str, RewardFunction],
        *,
        remote: MemberClient | None = None,
        weights: Mapping[str, float] | None = None,
        quorum: int | None = None,
        rule: str = DEFAULT_RULE,
        caution: float = 0.5,
        reliability: bool = True,
        reference: str = "",
        hold_after: int = 10,
        ahead: int = 0,
        seed: int = 0,
        description: ModelDescription | str = "",
        run: str = "",
        calibration: CalibratedReward | None = None,
    ) -> None:
        self.__name__ = "committee"  # TRL's name for a reward function in its metrics
        self.rules, self.remote, self.calibration = dict(rules), remote, calibration
        self.hold_after, self.ahead = hold_after, ahead
        self.wait_for_answers: Callable[[Callable[[], Answers]], Answers] = lambda ask: ask()
        """Calls its argument, which asks remote members. GenerationAhead replaces it to let the trainer continue."""
        self.description = description
        self.group_size = 0
        """Number of completions per prompt, set by the attached trainer."""
        self.reference_columns: frozenset[str] = frozenset()
        """Columns that may be empty for prompts added during training, set by the trainer's PromptSource."""
        self.last_outcome = BatchOutcome([])
        self.evidence = Evidence()
        """The evidence behind `last_outcome`, only on rank 0."""
        self.rows = range(0)
        """Rows of this rank in `last_outcome.rewards`."""
        find_rule(rule)  # raises for an unknown name
        self._rule, self._caution, self._quorum = rule, caution, quorum
        self._reference, self._warn_no_reference = reference, bool(reference)
        self._seed, self._run = seed, run
        self._batches = 0
        self._warn_no_description = remote is not None  # whether to warn that judges have no description
        self._abstaining_names: set[str] = set()
        remotes = remote.members if remote else ()
        self.judges = MemberModels({name: remote.judges.get(name) for name in remotes} if remote else {})
        """Model of each remote member."""
        self.watch = JudgeWatch(remotes, applies_reliability=reliability)
        self._saved_reliability: dict[str, Any] = {}
        self._saved_models: dict[str, str] = {}
        self.members = (*self.rules, *remotes)
        for name in self.members:
            names.validate("member", name)
        duplicates = set(self.rules).intersection(remotes)
        if duplicates:
            names_text = ", ".join(sorted(duplicates))
            raise ConfigError(f"the committee has two members named {names_text}; rename the remote ones")
        self._weights: dict[str, float] = {}
        self.set_weights(dict.fromkeys(self.members, 1.0) | dict(weights or {}))
        voters = len(self._voters())
        if quorum is not None and quorum > voters:
            raise ConfigError(
                f"a quorum of {quorum} can never be reached, because only {voters} members have weight; lower "
                "committee.quorum, or add members"
            )

    @property
    def description(self) -> str:
        """The description of the model in training, as text for remote members."""
        return self._description

    @description.setter
    def description(self, description: ModelDescription | str) -> None:
        """Set the description. A ModelDescription is converted to text."""
        self._description = description if isinstance(description, str) else description.to_agent_prompt()
        self._domain = "" if isinstance(description, str) else description.domain

    @property
    def weights(self) -> dict[str, float]:
        """Each member's share of the total weight. The shares sum to 1."""
        return dict(self._weights)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights, starting with the next batch. Raises ConfigError unless every member has a finite weight
        >= 0 and the sum is positive."""
        total = math.fsum(weights.values())
        if set(weights) != set(self.members) or not (math.isfinite(total) and total > 0 and min(weights.values()) >= 0):
            raise ConfigError(
                f"invalid committee weights {dict(weights)}; give each of {', '.join(self.members) or 'its members'} a "
                "finite weight >= 0, with a positive sum"
            )
        if not any(weight > 0 and not self.judges.is_muted(name) for name, weight in weights.items()):
            raise ConfigError(f"with {dict(weights)}, only muted members would have weight; unmute one first")
        self._weights = {name: weights[name] / total for name in self.members}

    @property
    def quorum(self) -> int:
        """Number of members with weight that must score a group, given the current weights and muted members."""
        return min(2 if self._quorum is None else self._quorum, len(self._voters()))

    def choose_judge(self, member: str, identity: str) -> None:
        """Choose the member's model, or OFF for none, starting with the next batch. Raises UnknownNameError for an
        unknown member. Raises ConfigError for a model that is not a choice, or if too few members would remain."""
        if identity == OFF:
            self._check_removal(member)
        previous = self.judges.active(member)
        self.judges.choose(member, identity)
        if identity not in (previous, OFF):  # evidence about the previous model says nothing about this one
            self._restart_watch(member)

    def add_member(self, member: str, judge: JudgeSpec, share: float) -> None:
        """Add a remote member with this share of the total weight, starting with the next batch. Raises ConfigError for
        an invalid member, or a share that is not between 0 and 1."""
        names.validate("member", member)
        if self.remote is None:
            raise ConfigError("the committee has no connection to remote members; create it with convene()")
        if member in self.members:
            raise ConfigError(f"{member!r} is already a member; choose another name")
        if not 0 < share < 1:
            raise ConfigError(f"share {share:g} of the total weight is invalid; expected a number between 0 and 1")
        self.remote.join(member)
        self.judges.add(member, judge)
        self._restart_watch(member)
        self.members = (*self.members, member)
        self._weights = {**{name: weight * (1 - share) for name, weight in self._weights.items()}, member: share}

    def remove_member(self, member: str) -> None:
        """Remove a remote member. The others get its weight. Raises UnknownNameError for an unknown member, and
        ConfigError if too few members would remain."""
        if self.remote is None or member not in self.remote.members:
            raise UnknownNameError("committee member", member, self.remote.members if self.remote else ())
        self._check_removal(member)
        self.remote.leave(member)
        self.judges.leave(member)
        self.watch.leave(member)
        self.members = tuple(name for name in self.members if name != member)
        remaining_weight = math.fsum(self._weights[name] for name in self.members)
        self._weights = {name: self._weights[name] / remaining_weight for name in self.members}

    def _check_removal(self, member: str) -> None:
        """Raise ConfigError if too few members would remain without this one."""
        remaining = [name for name in self._voters() if name != member]
        if not remaining:
            raise ConfigError(f"{member} is the only unmuted member with weight, so no member would score without it")
        if self._quorum is not None and self._weights[member] > 0 and len(remaining) < self._quorum:
            raise ConfigError(
                f"without {member}, only {len(remaining)} members would score, but committee.quorum is {self._quorum}; "
                "swap its model instead, or start with a lower quorum"
            )

    def _voters(self) -> list[str]:
        """Return the unmuted members with weight."""
        return [name for name, weight in self._weights.items() if weight > 0 and not self.judges.is_muted(name)]

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        """Return the descriptions of the metrics of each batch."""
        return (
            *(MetricSpec(name=f"rewards/{name}/mean", unit="0 to 1, over scored groups") for name in self.members),
            *METRICS,
            *(COST_METRICS if self.remote is not None else ()),
            *self.watch.metric_specs(),
            *(self.calibration.metric_specs() if self.calibration is not None else ()),
        )

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        trainer_state: Any = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return one reward per completion, or None for groups without a quorum. A member's failure never raises."""
        if self.group_size < 1:
            raise ConfigError("the committee has no trainer; call oven.attach(trainer, committee=...) first")
        originals = [as_text(completion) for completion in completions]
        if self.calibration is not None:
            prompts, completions = self.calibration.judge_inputs(prompts, originals, columns)
        arguments = {"prompts": prompts, "completions": completions, **columns}
        arguments |= {"log_metric": log_metric, "trainer_state": trainer_state}
        rule_results = {
            name: score_rows(name, rule, arguments, len(prompts), self.reference_columns)
            for name, rule in self.rules.items()
        }
        texts = [as_text(completion) for completion in completions]
        references = self._find_references(texts, rule_results, columns)
        changed_originals = [] if self.calibration is None else originals
        prompt_texts = [as_text(prompt) for prompt in prompts]
        local_rows = RankRows(prompt_texts, texts, rule_results, references, changed_originals)
        step = int(getattr(trainer_state, "global_step", 0))
        has_ranks = "torch" in sys.modules and ranks.world_size() > 1
        rows, rows_by_rank = range(len(prompts)), [local_rows]
        if has_ranks:
            rows, rows_by_rank = ranks.gather_rows(local_rows, len(prompts))
        outcome, evidence = BatchOutcome(), Evidence()
        if not has_ranks or ranks.rank() == 0:
            outcome, evidence = self._judge(build_groups(rows_by_rank, self.rules, self.group_size), step)
        outcome = ranks.broadcast_on_trainer_group(outcome)
        # Assigned only now, because another batch may have been judged while this one waited.
        self.rows, self.last_outcome, self.evidence = rows, outcome, evidence
        if log_metric is not None and self.rows.start == 0:
            for name, value in outcome.metrics.items():
                log_metric(name, value)
        return [outcome.rewards[row] for row in rows]

    def take_cost(self) -> dict[str, float]:
        """Return `committee/tokens` and, if a judge's price is known, `committee/cost_usd` since the last call."""
        if self.remote is None:
            return {}
        cost = self.remote.take_cost()
        dollars = {} if cost.usd is None else {"committee/cost_usd": cost.usd}
        return {"committee/tokens": float(cost.tokens), **dollars}

    def close(self) -> None:
        """Close the connection to the remote members."""
        if self.remote is not None:
            self.remote.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the reliability and models of the judges, for checkpoints."""
        judges = {member: self.judges.active(member) for member in self.judges.members}
        calibration = {} if self.calibration is None else {"calibration": self.calibration.state_dict()}
        return {"reliability": self.watch.reliability.state_dict(), "judges": judges, **calibration}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of a checkpoint. A judge starts without evidence if the checkpoint has none, or has another
        model for this judge. If the run chooses that model later, its evidence is restored."""
        self._saved_reliability, self._saved_models = dict(state.get("reliability", {})), dict(state.get("judges", {}))
        for member in self.judges.members:
            self._restart_watch(member)
        if self.calibration is not None:
            self.calibration.load_state_dict(state.get("calibration", {}))

    def _restart_watch(self, member: str) -> None:
        """Reset the watch of a member that is new or has another model."""
        self.watch.begin(member)
        if self.remote is not None:
            self.remote.health.pop(member, None)
        if self._saved_models.get(member) == self.judges.active(member):
            self.watch.reliability.load_state_dict(self._saved_reliability, [member])

    def _find_references(
        self, texts: Sequence[str], rule_results: Mapping[str, Sequence[RuleResult]], columns: Mapping[str, Any]
    ) -> list[str]:
        """Return, for each row, an answer to its prompt that is known to be correct, or an empty string."""
        if self._reference in self.rules:
            reference_results = rule_results[self._reference]
            return [text if result == 1.0 else "" for text, result in zip(texts, reference_results, strict=True)]
        references = columns.get(self._reference)
        if references is None and self._warn_no_reference:
            log.warning(
                "committee.reference %r is neither a rule nor a column of the data, so judges are only tested with "
                "known-bad answers",
                self._reference,
            )
            self._warn_no_reference = False
        references = [None] * len(texts) if references is None else references
        return ["" if reference is None else as_text(reference) for reference in references]

    def _judge(self, groups: Sequence[Group], step: int) -> tuple[BatchOutcome, Evidence]:
        """Ask the remote members, and return the rewards of the groups with the evidence behind them."""
        verdicts = [{name: rule_verdict(result) for name, result in group.rule_results.items()} for group in groups]
        shares, quorum = self._weights, self.quorum  # changes during the requests apply to the next batch
        remote = self.remote
        remote_voters = [name for name in self._voters() if name in remote.members] if remote else []
        requests: list[ScoreRequest] = []
        reasons: list[dict[str, Mapping[str, str]]] = []
        versions_before = self.watch.versions  # a judge may be swapped during the requests
        if remote is not None and remote_voters:
            self._batches += 1
            requests = [self._build_request(remote, group, i, step) for i, group in enumerate(groups)]
            answers = self.wait_for_answers(partial(remote.ask, requests, self.judges.current(remote_voters)))
            for member in remote_voters:
                for i, verdict in enumerate(answers[member]):
                    verdicts[i][member] = to_group_order(verdict, requests[i], groups[i].completions)
            reasons = [
                {name: remote.take_reasons(name, request.group) for name in remote_voters} for request in requests
            ]
        outcome = batch_rewards(
            groups,
            verdicts,
            shares,
            weights=self.watch.weights(shares),
            quorum=quorum,
            rule=self._rule,
            caution=self._caution,
            calibration=self.calibration,
        )
        metrics, abstentions = member_metrics(self.members, self.judges.members, verdicts)
        for member in self.members:
            self._log_abstentions(member, verdicts)
        if remote is not None and remote_voters:
            swapped_names = {name for name in remote_voters if self.watch.versions.get(name) != versions_before[name]}
            for name in swapped_names:
                remote.health.pop(name, None)
            for group, request, group_verdicts in zip(groups, requests, verdicts, strict=True):
                voter_verdicts = {
                    name: verdict
                    for name, verdict in group_verdicts.items()
                    if shares[name] > 0 and name not in swapped_names
                }
                requested_texts = [completion.text for completion in request.completions]
                self.watch.add_group(requested_texts, group.completions, voter_verdicts, shares)
            metrics |= self.watch.metrics(remote.health)
        for kind, count in outcome.abstentions.items():
            metrics["committee/abstentions"] += count
            metrics[f"committee/abstain/{kind}"] = float(count)
        outcome.abstentions |= abstentions
        outcome.metrics |= metrics | {"committee/skipped_groups": float(outcome.skipped_groups)}
        return outcome, Evidence(groups, verdicts, dict(shares), requests, reasons)

    def _log_abstentions(self, member: str, verdicts: Sequence[Mapping[str, Verdict]]) -> None:
        """Log when a member starts or stops abstaining, instead of at every step."""
        kinds = count_abstentions(member, verdicts)
        groups = sum(member in group_verdicts for group_verdicts in verdicts)
        if kinds and member not in self._abstaining_names:
            summary = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            log.warning("committee member %s abstains on %d of %d groups: %s", member, kinds.total(), groups, summary)
            self._abstaining_names.add(member)
        elif not kinds and member in self._abstaining_names:
            log.info("committee member %s scores again", member)
            self._abstaining_names.discard(member)

    def _build_request(self, remote: MemberClient, group: Group, index: int, step: int) -> ScoreRequest:
        """Build the request for a group. Equal completions are included once. They are sorted by id, which is a digest,
        so an answer can mention neither its id nor its position. A replay sends the same requests again."""
        if self._warn_no_description and not self.description:
            log.warning(
                "the members %s have no description of the model in training; pass one to the committee, for example "
                "convene(description=oven.ModelDescription.from_model(...))",
                ", ".join(remote.members),
            )
        self._warn_no_description = False
        salt = f"{self._seed} {step} {self._batches} {index}"
        completions = [Completion(id=_digest(salt, text), text=text) for text in set(group.completions)]
        return ScoreRequest(
            run=self._run,
            group=_digest(salt, ""),
            prompt=group.prompt,
            completions=tuple(sorted(completions, key=lambda completion: completion.id)),
            policy=self.description,
            domain=self._domain,
            deadline_s=remote.deadline_s,
            reference=group.reference,
        )


def _digest(salt: str, text: str) -> str:
    return hashlib.sha256(f"{salt}\0{text}".encode()).hexdigest()[:12]
