"""The reward committee as a trainer's reward function. It asks all members and combines their scores."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
from collections import Counter
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
from oven_learner.rewards.aggregation import DEFAULT_RULE, rule_named
from oven_learner.rewards.group import Evidence, Group, Judged, batch_rewards, groups_of, spread_out, whole
from oven_learner.rewards.judge_watch import JudgeWatch
from oven_learner.rewards.live_judges import Answers, Asker, LiveJudges
from oven_learner.rewards.model_description import ModelDescription
from oven_learner.rewards.scores import KINDS, OTHER, Abstention, Cell, RewardFunction, Verdict, score_rows
from oven_runs.log.committee_view import abstention_metric

if TYPE_CHECKING:  # imports numpy, which rules and judges do not need
    from oven_learner.rewards.calibrated import CalibratedReward

log = logging.getLogger("oven.learner")

COSTS = (
    MetricSpec(name="committee/tokens", unit="of judges, since the step before; evaluations included"),
    MetricSpec(name="committee/cost_usd", unit="US dollars, the same, of judges whose price is known"),
)
METRICS = (
    MetricSpec(name="committee/agreement", unit="correlation in a group, mean over pairs of members with weight"),
    MetricSpec(name="committee/skipped_groups", better="down", unit="groups of this batch without a quorum"),
    MetricSpec(name="committee/skipped_steps", better="down", unit="1: no scored group, optimizer not stepped"),
    MetricSpec(name="committee/abstentions", better="down", unit="of this batch, one a member and group"),
    *(MetricSpec(name=f"committee/abstain/{kind}", better="down", unit=text) for kind, text in KINDS.items()),
)
OWN_KINDS = 16
"""Maximum number of failure kinds from remote members per batch. Further kinds are counted together."""


class Committee:
    """A reward function that combines its members' scores. Pass it as a GRPOTrainer's only reward function, and to
    `attach(trainer, committee=...)`.

    `rules` are functions with TRL's signature. All weights default to 1, including remote members', and are shares of
    their sum. Rules of weight 0 are measured (`rewards/<member>/mean`) but do not count. Remote members of weight 0 are
    skipped, because answers cost money. `quorum` is the number of members with weight that must score a group and see a
    difference in it. None means two, or one if only one member has weight. `caution` is λ of the rule `cautious`.
    `description` describes the model in training to remote members. Without it they only see the prompt, and the
    process log warns. After `hold_after` consecutive steps without a scored group the run is held. With `ahead` 1, a
    GRPOTrainer generates the next completions while remote members score (rewards/generation_ahead.py).

    Raises ConfigError for invalid names, weights or quorum, and UnknownNameError for an unknown aggregation rule.
    """

    def __init__(
        self,
        rules: Mapping[str, RewardFunction],
        *,
        remote: Asker | None = None,
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
        shape: CalibratedReward | None = None,
    ) -> None:
        self.__name__ = "committee"  # TRL's name for a reward function in its metrics
        self.rules = dict(rules)
        self.shape = shape
        self.remote = remote
        self.hold_after = hold_after
        self.ahead = ahead
        self.waiting: Callable[[Callable[[], Answers]], Answers] = lambda ask: ask()
        """A function that waits for the remote members' answers."""
        self.description = description
        self.group_size = 0
        """Completions per prompt. The attached trainer sets it."""
        self.reference_columns: frozenset[str] = frozenset()
        """Columns that authored prompts lack. The trainer's PromptSource sets them."""
        self.last = Judged([])
        self.evidence = Evidence()
        """The evidence behind `last`, on rank 0."""
        self.rows = range(0)
        """This rank's rows in `last.rewards`."""
        rule_named(rule)
        self._rule, self._caution, self._quorum = rule, caution, quorum
        self._reference, self._unreferenced = reference, bool(reference)
        self._seed, self._run = seed, run
        self._batches = 0
        self._warn_no_description = remote is not None  # whether to warn that judges have no description
        self._silent: set[str] = set()
        remotes = remote.members if remote else ()
        self.judges = LiveJudges({name: remote.judges.get(name) for name in remotes} if remote else {})
        """The model behind each remote member."""
        self.watch = JudgeWatch(remotes, weigh=reliability)
        self._learnt: dict[str, Any] = {}
        self._learnt_of: dict[str, str] = {}
        self.members = (*self.rules, *remotes)
        for name in self.members:
            names.checked("member", name)
        if twice := set(self.rules).intersection(remotes):
            raise ConfigError(f"the committee has two members named {', '.join(sorted(twice))}; rename the remote ones")
        self._weights: dict[str, float] = {}
        self.set_weights(dict.fromkeys(self.members, 1.0) | dict(weights or {}))
        voting = len(self._voting())
        if quorum is not None and quorum > voting:
            raise ConfigError(
                f"a quorum of {quorum} with {voting} members that have weight is never reached; "
                "lower committee.quorum, or add members"
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
        """Each member's share of the weight. The shares sum to 1."""
        return dict(self._weights)

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights from the next batch on. Every member needs a finite weight >= 0, and the sum must be
        positive. Raises ConfigError."""
        total = math.fsum(weights.values())
        if set(weights) != set(self.members) or not (math.isfinite(total) and total > 0 and min(weights.values()) >= 0):
            raise ConfigError(
                f"committee weights {dict(weights)}: give {', '.join(self.members) or 'at least one member'} each a "
                "finite weight >= 0, of a positive sum"
            )
        if not any(weight > 0 and not self.judges.muted(name) for name, weight in weights.items()):
            raise ConfigError(f"only members that are muted would have weight in {dict(weights)}; unmute one first")
        self._weights = {name: weights[name] / total for name in self.members}

    @property
    def quorum(self) -> int:
        """Number of members with weight that must score a group, given the current weights and muted members."""
        return min(2 if self._quorum is None else self._quorum, len(self._voting()))

    def choose_judge(self, member: str, identity: str) -> None:
        """Choose the model behind this member from the next batch on, or OFF for none. Raises UnknownNameError, and
        ConfigError for a model that is not a choice, or if too few members would remain."""
        if identity == OFF:
            self._check_without(member)
        before = self.judges.active(member)
        self.judges.choose(member, identity)
        if identity not in (before, OFF):  # evidence about another model does not apply to this one
            self._watch_anew(member)

    def add_member(self, member: str, judge: JudgeSpec, share: float) -> None:
        """Add a remote member from the next batch on, with this share of the total weight, above 0 and below 1. Raises
        ConfigError."""
        names.checked("member", member)
        if self.remote is None:
            raise ConfigError("the committee has no connection to remote members")
        if member in self.members:
            raise ConfigError(f"{member!r} is a member already; choose another name")
        if not 0 < share < 1:
            raise ConfigError(
                f"a share of {share:g}: give the new member's share of the total weight, above 0, below 1"
            )
        self.remote.join(member)
        self.judges.seat(member, judge)
        self._watch_anew(member)
        self.members = (*self.members, member)
        self._weights = {**{name: weight * (1 - share) for name, weight in self._weights.items()}, member: share}

    def remove_member(self, member: str) -> None:
        """Remove a remote member. The others share its weight. Raises UnknownNameError, and ConfigError if too few
        members would remain."""
        if self.remote is None or member not in self.remote.members:
            raise UnknownNameError("committee member", member, self.remote.members if self.remote else ())
        self._check_without(member)
        self.remote.leave(member)
        self.judges.leave(member)
        self.watch.leave(member)
        self.members = tuple(name for name in self.members if name != member)
        remaining = math.fsum(self._weights[name] for name in self.members)
        self._weights = {name: self._weights[name] / remaining for name in self.members}

    def _check_without(self, member: str) -> None:
        remaining = [name for name in self._voting() if name != member]
        if not remaining:
            raise ConfigError(f"{member} is the only member with weight that is not muted, so no member would score")
        if self._quorum is not None and self._weights[member] > 0 and len(remaining) < self._quorum:
            raise ConfigError(
                f"without {member} {len(remaining)} members would score, and committee.quorum is {self._quorum}: no "
                "group would ever be scored; swap its model instead, or start with a lower quorum"
            )

    def _voting(self) -> list[str]:
        return [name for name, weight in self._weights.items() if weight > 0 and not self.judges.muted(name)]

    def announced(self) -> tuple[MetricSpec, ...]:
        """Return the metrics logged per batch."""
        return (
            *(MetricSpec(name=f"rewards/{name}/mean", unit="0 to 1, groups that it scored") for name in self.members),
            *METRICS,
            *(COSTS if self.remote is not None else ()),
            *self.watch.announced(),
            *(self.shape.announced() if self.shape is not None else ()),
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
        """Return one reward per completion, or None for groups without a quorum. Member failures never raise."""
        if self.group_size < 1:
            raise ConfigError("the committee has no trainer; call oven.attach(trainer, committee=...) first")
        written = [as_text(completion) for completion in completions]
        if self.shape is not None:
            prompts, completions = self.shape.shown(prompts, written, columns)
        arguments = {"prompts": prompts, "completions": completions, **columns}
        arguments |= {"log_metric": log_metric, "trainer_state": trainer_state}
        lacking = self.reference_columns
        cells = {name: score_rows(name, rule, arguments, len(prompts), lacking) for name, rule in self.rules.items()}
        texts = [as_text(completion) for completion in completions]
        references = self._references(texts, cells, columns)
        shaped = [] if self.shape is None else written
        mine = ([as_text(prompt) for prompt in prompts], texts, cells, references, shaped)
        step = int(getattr(trainer_state, "global_step", 0))
        several = "torch" in sys.modules and ranks.world() > 1
        rows, parts = ranks.gather_rows(mine, len(prompts)) if several else (range(len(prompts)), [mine])
        judged, evidence = Judged(), Evidence()
        if not several or ranks.rank() == 0:
            judged, evidence = self._judge(groups_of(parts, self.rules, self.group_size), step)
        judged = ranks.from_leader(judged)
        # Set together: another batch may have been judged while this one waited.
        self.rows, self.last, self.evidence = rows, judged, evidence
        if log_metric is not None and self.rows.start == 0:
            for name, value in judged.metrics.items():
                log_metric(name, value)
        return [judged.rewards[row] for row in rows]

    def take_cost(self) -> dict[str, float]:
        """Return `committee/tokens` and, if a judge's price is known, `committee/cost_usd` since the last call."""
        if self.remote is None:
            return {}
        cost = self.remote.take_cost()
        dollars = {} if cost.usd is None else {"committee/cost_usd": cost.usd}
        return {"committee/tokens": float(cost.tokens), **dollars}

    def close(self) -> None:
        """End the training, so that remote members get no more requests."""
        if self.remote is not None:
            self.remote.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the learnt state about the judges, for checkpoints."""
        judges = {member: self.judges.active(member) for member in self.judges.members}
        shape = {} if self.shape is None else {"shape": self.shape.state_dict()}
        return {"reliability": self.watch.reliability.state_dict(), "judges": judges, **shape}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint's state. Unknown judges start afresh. So do members whose model differs from the
        checkpoint's, until that model is chosen again, which a resumed run does after loading."""
        self._learnt, self._learnt_of = dict(state.get("reliability", {})), dict(state.get("judges", {}))
        for member in self.judges.members:
            self._watch_anew(member)
        if self.shape is not None:
            self.shape.load_state_dict(state.get("shape", {}))

    def _watch_anew(self, member: str) -> None:
        """Start watching afresh, because the member is new or has another judge."""
        self.watch.begin(member)
        if self.remote is not None:
            self.remote.health.pop(member, None)
        if self._learnt_of.get(member) == self.judges.active(member):
            self.watch.reliability.load_state_dict(self._learnt, [member])

    def _references(
        self, texts: Sequence[str], cells: Mapping[str, Sequence[Cell]], columns: Mapping[str, Any]
    ) -> list[str]:
        """Return a known right answer to each row's prompt, or an empty string if unknown."""
        if self._reference in self.rules:
            proven = cells[self._reference]
            return [text if cell == 1.0 else "" for text, cell in zip(texts, proven, strict=True)]
        references = columns.get(self._reference)
        if references is None and self._unreferenced:
            log.warning(
                "committee.reference %r is neither a rule nor a column of the data; judges are tested with known-bad "
                "answers only",
                self._reference,
            )
            self._unreferenced = False
        references = [None] * len(texts) if references is None else references
        return ["" if reference is None else as_text(reference) for reference in references]

    def _judge(self, groups: Sequence[Group], step: int) -> tuple[Judged, Evidence]:
        """Judge the groups. Pure except for the requests to remote members."""
        verdicts = [{name: whole(cells) for name, cells in group.cells.items()} for group in groups]
        shares, quorum = self._weights, self.quorum  # changes during the requests apply to the next batch
        remote = self.remote
        weighty = [name for name in self._voting() if name in remote.members] if remote else []
        requests: list[ScoreRequest] = []
        reasons: list[dict[str, Mapping[str, str]]] = []
        begun = self.watch.begun
        if remote is not None and weighty:
            self._batches += 1
            requests = [self._request(remote, group, i, step) for i, group in enumerate(groups)]
            answers = self.waiting(partial(remote.ask, requests, self.judges.named(weighty)))
            for member in weighty:
                for i, verdict in enumerate(answers[member]):
                    verdicts[i][member] = spread_out(verdict, requests[i], groups[i].completions)
            reasons = [{name: remote.take_reasons(name, request.group) for name in weighty} for request in requests]
        judged = batch_rewards(
            groups,
            verdicts,
            shares,
            weights=self.watch.weights(shares),
            quorum=quorum,
            rule=self._rule,
            caution=self._caution,
            shape=self.shape,
        )
        metrics, abstained = self._measured(verdicts)
        if remote is not None and weighty:
            gone = {name for name in weighty if self.watch.begun.get(name) != begun[name]}  # swapped meanwhile
            for name in gone:
                remote.health.pop(name, None)
            for group, request, of_group in zip(groups, requests, verdicts, strict=True):
                of_voting = {name: of_group[name] for name in of_group if shares[name] > 0 and name not in gone}
                shown = [completion.text for completion in request.completions]
                self.watch.add_group(shown, group.completions, of_voting, shares)
            metrics |= self.watch.metrics(remote.health)
        for kind, count in judged.abstained.items():
            metrics["committee/abstentions"] += count
            metrics[f"committee/abstain/{kind}"] = float(count)
        judged.abstained |= abstained
        judged.metrics |= metrics | {"committee/skipped_groups": float(judged.skipped)}
        return judged, Evidence(groups, verdicts, dict(shares), requests, reasons)

    def _measured(self, verdicts: Sequence[Mapping[str, Verdict]]) -> tuple[dict[str, float], Counter[str]]:
        metrics: dict[str, float] = {}
        kinds: Counter[str] = Counter()
        of_judges: dict[str, Counter[str]] = {}
        for member in self.members:
            member_verdicts = [of_group[member] for of_group in verdicts if member in of_group]
            scored = [score for verdict in member_verdicts if not isinstance(verdict, Abstention) for score in verdict]
            if scored:
                metrics[f"rewards/{member}/mean"] = math.fsum(scored) / len(scored)
            failed = Counter(verdict.kind for verdict in member_verdicts if isinstance(verdict, Abstention))
            self._log_silence(member, failed, len(member_verdicts))
            kinds += failed
            if member in self.judges.members:
                of_judges[member] = failed
        metrics["committee/abstentions"] = float(kinds.total())
        own = [kind for kind in sorted(kinds) if kind not in KINDS]
        for kind in own[OWN_KINDS:]:
            kinds[OTHER] += kinds.pop(kind)
        metrics |= {f"committee/abstain/{kind}": float(count) for kind, count in kinds.items()}
        for member, failed in of_judges.items():  # only non-zero ones: a metric per kind would be too many
            metrics |= {
                abstention_metric(member, kind): float(count) for kind, count in failed.items() if kind in kinds
            }
        return metrics, kinds

    def _log_silence(self, member: str, failed: Counter[str], groups: int) -> None:
        """Log when a member starts or stops abstaining, instead of at every step."""
        if failed and member not in self._silent:
            summary = ", ".join(f"{kind} {count}" for kind, count in failed.items())
            log.warning("committee member %s abstains on %d of %d groups: %s", member, failed.total(), groups, summary)
            self._silent.add(member)
        elif not failed and member in self._silent:
            log.info("committee member %s scores again", member)
            self._silent.discard(member)

    def _request(self, remote: Asker, group: Group, index: int, step: int) -> ScoreRequest:
        """Build the request. Equal completions are included once.

        Ids are digests in sorted order, so that no answer can name its own id or position. A run in lockstep sends the
        same request again.
        """
        if self._warn_no_description and not self.description:
            log.warning(
                "%s have no description of the model in training; pass one to the committee, for example "
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
