"""The channel `channel.sdpo`, which distils the policy from itself. The teacher is the policy with hinted prompts.
The method is from Hübotter et al. 2026 (arXiv 2601.20802). The wording of hints and the choice of a sibling match TRL
1.16's `SuccessfulRolloutTeacherContextBuilder`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import TrainerCallback

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner import trainer_internals
from oven_learner.losses.completion_logits import compute_logits, pad_rows
from oven_learner.losses.loss_channel import Channel, Rollouts, TermSum

HINTED = "oven_hinted"
"""Key in TRL's batch for the tokens of each row's prompt with hints, or None for a row without hints."""
MAX_PROMPT_TOKENS = 10_240
"""Maximum tokens of a prompt with hints, like TRL's `max_reprompt_len`. Longer prompts are cut at the beginning."""
Template: TypeAlias = str | Callable[[Mapping[str, Any], str], str | None]
"""A text with column names in braces, or a function that maps (row, completion text) to a hint or None."""
PROMPT = "{prompt}{hints}\n\nCorrectly solve the original question.\n"
SOLUTION = "\nCorrect solution:\n\n{solution}\n\n"
FEEDBACK = "\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback}\n\n"


@dataclass(frozen=True, slots=True)
class Hints:
    """The sources of hints for a completion's prompt. Completions without hints are not distilled.

    - `sibling`: whether to use the first other completion of the group with a reward of at least `min_reward`.
    - `feedback`: the dataset column with the environment's feedback, or the environment's property of that name.
    - `template`: a custom hint.

    Raises ConfigError if all three are off.
    """

    sibling: bool = True
    min_reward: float = 1.0
    feedback: str | None = "feedback"
    template: Template | None = None

    def __post_init__(self) -> None:
        if not self.sibling and self.feedback is None and self.template is None:
            raise ConfigError("channel.sdpo has no source of hints; set sibling=True, a feedback column, or a template")

    def build_prompts(self, rollouts: Rollouts, decode: Callable[[Sequence[int]], str], rank: int) -> list[Any]:
        """Return each row's prompt with hints, as a string or a conversation, or None for a row without hints. With
        `sibling`, all ranks must call it, because a group may span two ranks."""
        all_completions = gather_object([list(ids) for ids in rollouts.completion_ids]) if self.sibling else []
        hinted_prompts: list[Any] = []
        for row, prompt in enumerate(rollouts.prompts):
            global_row = rank * len(rollouts.rows) + row  # over all ranks
            hints = self._make_sibling_hint(rollouts, all_completions, global_row, decode)
            hints += self._make_feedback_hint(rollouts, row) + self._make_template_hint(rollouts, row, decode)
            hinted_prompts.append(_add_hints(prompt, hints) if hints else None)
        return hinted_prompts

    def _make_sibling_hint(
        self, rollouts: Rollouts, all_completions: Sequence[Sequence[int]], global_row: int, decode: Callable[..., str]
    ) -> str:
        if not self.sibling:
            return ""
        group_start = global_row // rollouts.group_size * rollouts.group_size
        rewards = rollouts.rewards[group_start : group_start + rollouts.group_size].tolist()
        for sibling, reward in enumerate(rewards, start=group_start):
            if sibling != global_row and reward >= self.min_reward:
                return SOLUTION.format(solution=decode(all_completions[sibling]))
        return ""

    def _make_feedback_hint(self, rollouts: Rollouts, row: int) -> str:
        if self.feedback is None:
            return ""
        feedback = rollouts.rows[row].get(self.feedback)
        if feedback is None and rollouts.environments is not None:
            feedback = getattr(rollouts.environments[row], self.feedback, None)
        if feedback is not None and not isinstance(feedback, str):
            raise ConfigError(
                f"channel.sdpo: feedback {self.feedback!r} is a {type(feedback).__name__}; expected a string or None"
            )
        return FEEDBACK.format(feedback=feedback) if feedback and feedback.strip() else ""

    def _make_template_hint(self, rollouts: Rollouts, row: int, decode: Callable[..., str]) -> str:
        if self.template is None:
            return ""
        if callable(self.template):
            return self.template(rollouts.rows[row], decode(rollouts.completion_ids[row])) or ""
        try:
            return self.template.format_map(rollouts.rows[row])
        except (KeyError, IndexError) as error:
            raise ConfigError(
                f"channel.sdpo: the template uses {error}, but the row only has {', '.join(rollouts.rows[row])}; use "
                "these columns"
            ) from None


def _add_hints(prompt: Any, hints: str) -> Any:
    """Add the hints to a string, or to a conversation's last user message."""
    if isinstance(prompt, str):
        return PROMPT.format(prompt=prompt, hints=hints)
    last = max((index for index, message in enumerate(prompt) if message["role"] == "user"), default=None)
    if last is None:
        return [*prompt, {"role": "user", "content": PROMPT.format(prompt="", hints=hints)}]
    content = prompt[last]["content"]
    if isinstance(content, list):
        content = " ".join(part.get("text", "") for part in content if part.get("type") == "text")
    message = {**prompt[last], "content": PROMPT.format(prompt=content, hints=hints)}
    return [*prompt[:last], message, *prompt[last + 1 :]]


class MovingAverage(nn.Module):
    """The moving average of a model's trainable parameters, θ' ← (1 − rate)·θ' + rate·θ, in float32 buffers. For a
    model with an adapter only the adapter is copied. The buffers use 4 bytes per trainable parameter."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for name in self._names:
            self.register_buffer(_buffer_name(name), model.get_parameter(name).detach().float().clone())
        self.register_buffer("follows", torch.tensor(False))

    @property
    def is_following(self) -> bool:
        """Whether the average follows the model. Checkpoints contain this flag."""
        return bool(self.get_buffer("follows"))

    def stop(self) -> None:
        """Stop following. The next use starts with a new copy of the model."""
        self.get_buffer("follows").fill_(False)

    @torch.no_grad()
    def restart(self, model: nn.Module) -> None:
        """Copy the current model, and start to follow it."""
        self.get_buffer("follows").fill_(True)
        for name in self._names:
            self.get_buffer(_buffer_name(name)).copy_(model.get_parameter(name))

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Move the average one step towards the model, unless following has stopped."""
        if not self.is_following:
            return
        for name in self._names:
            average = self.get_buffer(_buffer_name(name))
            average.lerp_(model.get_parameter(name).detach().to(average), self.rate)

    def weights(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the averages with the model's names and dtypes, for torch.func.functional_call."""
        return {name: self.get_buffer(_buffer_name(name)).to(model.get_parameter(name)) for name in self._names}


def _buffer_name(name: str) -> str:
    """Return the name of a parameter's buffer, which must not contain a dot."""
    return name.replace(".", "/")


class SelfDistillation(Channel):
    """Divergence per token between the policy and a teacher that reads the same completion after a prompt with hints.
    Completions without hints are skipped. The term is computed by functions of TRL 1.16's SDPOTrainer
    (`experimental/sdpo/loss_utils`). SDPOTrainer itself is not a GRPOTrainer, and it mixes its losses differently.

    `teacher` is "live" for the current policy, or "ema" for its moving average with `rate` per step. The average starts
    from the policy when the weight rises above 0. The term compares the policy's `topk` tokens, plus one bucket for the
    rest. A `beta` of 0 is the forward KL, 1 is the reverse KL, and values in between are the generalized JSD. `clip`
    bounds the importance ratio when completions are reused. None disables it.

    Prompts, padding and tool output do not count. The trainer's temperature softens both models. Gauges cover the same
    tokens. Raises ConfigError for a β outside [0, 1], a rate outside (0, 1], and a `topk` or `clip` that is not
    positive.
    """

    name = "sdpo"
    unit = "nats per token, from the policy to the same model with hints"
    gauges: ClassVar[tuple[MetricSpec, ...]] = (
        MetricSpec(name="accuracy", better="up", unit="share of tokens with the same top prediction with hints"),
        MetricSpec(name="margin", unit="nats per token that hints add to the sampled tokens"),
        MetricSpec(name="hinted", unit="share of completions"),
    )

    def __init__(
        self,
        weight: float = 0.0,
        *,
        maximum: float = 1.0,
        hints: Hints | None = None,
        teacher: Literal["live", "ema"] = "ema",
        rate: float = 0.05,
        topk: int = 100,
        beta: float = 0.5,
        clip: float | None = 2.0,
    ) -> None:
        super().__init__(weight, maximum=maximum)
        if teacher not in ("live", "ema"):
            raise ConfigError(f"channel.sdpo: unknown teacher {teacher!r}; expected 'live' or 'ema'")
        if not (0 < rate <= 1 and topk >= 1 and 0 <= beta <= 1 and (clip is None or clip > 0)):
            raise ConfigError(
                f"channel.sdpo: invalid option among rate {rate:g}, topk {topk}, beta {beta:g} and clip {clip}; "
                "expected 0 < rate <= 1, topk >= 1, 0 <= beta <= 1 (0 is the forward KL, 1 the reverse), and a clip "
                "above 0 or None"
            )
        self.hints = hints or Hints()
        self.topk, self.beta, self.clip = topk, beta, clip
        self._uses_average, self._rate = teacher == "ema", rate
        self._average: MovingAverage | None = None

    def bind(self, trainer: Any) -> None:
        """Create the moving average. A `topk` above the vocabulary size is reduced to it."""
        super().bind(trainer)
        policy = trainer.accelerator.unwrap_model(trainer.model)
        self.topk = min(self.topk, int(policy.get_input_embeddings().weight.shape[0]))
        if self._uses_average:
            self._average = MovingAverage(policy, self._rate)
            if self.weight:
                self._average.restart(policy)
            trainer.add_callback(_FollowPolicy(self))

    def set_weight(self, weight: float) -> None:
        """Set the weight, starting with the next step. A positive weight drops buffered completions without hints."""
        super().set_weight(weight)
        if self._average is not None and weight == 0:
            self._average.stop()
        elif self._average is not None and not self._average.is_following:
            self._average.restart(self._policy)
        buffered_batches = trainer_internals.buffered_batches(self._trainer)
        if weight and any(HINTED not in batch for batch in buffered_batches):
            trainer_internals.drop_buffer(self._trainer)

    @property
    def module(self) -> nn.Module | None:
        """The moving average."""
        return self._average

    def columns(self, rollouts: Rollouts) -> dict[str, Any]:
        """Return the tokens of prompts with hints that fit into the context, or {} while the channel is off."""
        if not self.weight:
            return {}
        trainer = self._trainer
        tokenizer = trainer.processing_class

        def decode(ids: Sequence[int]) -> str:
            return str(tokenizer.decode(ids, skip_special_tokens=True))

        prompts = self.hints.build_prompts(rollouts, decode, trainer.accelerator.process_index)
        context_length = getattr(self._policy.config, "max_position_embeddings", None) or math.inf
        prompt_tokens: list[list[int] | None] = []
        for prompt, tools, completion in zip(prompts, rollouts.tools, rollouts.completion_ids, strict=True):
            tokens = None if prompt is None else self._tokenize(prompt, tools)
            fits = tokens is not None and len(tokens) + len(completion) <= context_length
            prompt_tokens.append(tokens if fits else None)
        return {HINTED: prompt_tokens}

    def tally(self, model: Any, inputs: dict[str, Any]) -> TermSum:
        """Return the divergence summed over the tokens of completions with hints, and the number of tokens."""
        trainer = self._trainer
        prompt_tokens: list[list[int] | None] = inputs.get(HINTED) or [None] * len(inputs["completion_ids"])
        rows = [row for row, tokens in enumerate(prompt_tokens) if tokens is not None]
        device = inputs["completion_ids"].device
        hinted_counts = (
            torch.tensor(float(len(rows)), device=device),
            torch.tensor(float(len(prompt_tokens)), device=device),
        )
        mask = inputs["completion_mask"]  # (B, C)
        mask = mask if "tool_mask" not in inputs else mask * inputs["tool_mask"]
        is_counted = mask[rows].bool()  # (b, C), b <= B
        if not is_counted.any():
            zero = torch.zeros((), device=device)
            return TermSum(zero, zero, {"hinted": hinted_counts})
        completion = inputs["completion_ids"][rows], inputs["completion_mask"][rows]
        hinted_prompts = pad_rows([tokens for tokens in prompt_tokens if tokens is not None], device, pad_left=True)
        hinted_logits = self._compute_hinted_logits(hinted_prompts, completion)[is_counted]  # (tokens, V)
        prompt = inputs["prompt_ids"][rows], inputs["prompt_mask"][rows]
        # DDP's forward would broadcast buffers, but other ranks may have no hints in this batch.
        policy = trainer.accelerator.unwrap_model(model)
        logits = compute_logits(trainer, policy, prompt, completion)[is_counted].float() / trainer.temperature
        tokens = completion[0][is_counted]
        old_logps = inputs["old_per_token_logps"][rows][is_counted] if "old_per_token_logps" in inputs else None
        divergences = self.divergence(logits, hinted_logits, tokens, old_logps)
        with torch.no_grad():
            count = is_counted.sum()
            matches = (logits.argmax(-1) == hinted_logits.argmax(-1)).float().sum()
            margins = _log_probability(hinted_logits, tokens) - _log_probability(logits, tokens)
        gauges = {"accuracy": (matches, count), "margin": (margins.sum(), count), "hinted": hinted_counts}
        return TermSum(divergences.sum(), count, gauges)

    def divergence(self, student: Tensor, teacher: Tensor, tokens: Tensor, old_logps: Tensor | None = None) -> Tensor:
        """Return the divergence per token in nats, (tokens,), from softened logits (tokens, V). `old_logps` are the
        log-probabilities of the `tokens` when they were sampled."""
        loss_utils: Any = trainer_internals.sdpo_losses()
        divergences: Tensor = loss_utils.compute_topk_self_distillation_loss(
            student, teacher, distillation_topk=self.topk, distillation_alpha=self.beta, distillation_add_tail=True
        )
        if self.clip is None or old_logps is None:
            return divergences
        logps = _log_probability(student, tokens)
        clipped: Tensor = loss_utils.apply_importance_sampling_clipping(divergences, logps, old_logps, self.clip)
        return clipped

    def follow(self) -> None:
        """Update the moving average at the end of a step."""
        if self._average is not None:
            self._average.follow(self._policy)

    @property
    def _policy(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def _compute_hinted_logits(self, prompt: tuple[Tensor, Tensor], completion: tuple[Tensor, Tensor]) -> Tensor:
        """Return the teacher's softened logits, (b, C, V), without dropout."""
        policy = self._policy
        weights = self._average.weights(policy) if self._average is not None else None
        was_training = policy.training
        policy.eval()
        try:
            with torch.no_grad():
                logits = compute_logits(self._trainer, policy, prompt, completion, weights)
        finally:
            policy.train(was_training)
        return logits.float() / float(self._trainer.temperature)

    def _tokenize(self, prompt: Any, tools: Any) -> list[int]:
        trainer = self._trainer
        if isinstance(prompt, str):
            ids = trainer.processing_class(text=prompt)["input_ids"]
        else:
            ids = trainer.processing_class.apply_chat_template(
                prompt,
                tools=list(tools) or None,
                chat_template=trainer.chat_template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                **trainer.chat_template_kwargs,
            )["input_ids"]
        return list(ids)[-MAX_PROMPT_TOKENS:]


class _FollowPolicy(TrainerCallback):
    """A callback that updates the moving average after each step."""

    def __init__(self, channel: SelfDistillation) -> None:
        self._channel = channel

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._channel.follow()


def _log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of tokens (…), from logits (…, V)."""
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
