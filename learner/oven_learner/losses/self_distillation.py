"""`channel.sdpo`: self-distillation towards the policy's own answers with a hint in the prompt."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.losses.channel import Channel, Tally
from oven_learner.losses.completion_logits import completion_logits, padded
from oven_learner.losses.generated import Generated
from oven_learner.losses.hints import Hints


class MovingAverage(nn.Module):
    """θ' ← (1 − rate)·θ' + rate·θ over a model's trainable parameters, as float32 buffers.

    For a model with an adapter only the adapter is copied. Memory: 4 bytes per trainable parameter.
    """

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for name in self._names:
            self.register_buffer(_key(name), model.get_parameter(name).detach().float().clone())
        self.register_buffer("follows", torch.tensor(False))

    @property
    def following(self) -> bool:
        """Whether it is following the model. Checkpoints keep this flag, so that a resumed average continues."""
        return bool(self.get_buffer("follows"))

    def stop(self) -> None:
        """Stop following; the next use starts afresh."""
        self.get_buffer("follows").fill_(False)

    @torch.no_grad()
    def restart(self, model: nn.Module) -> None:
        """Copy the model as it is now, and follow it from here on."""
        self.get_buffer("follows").fill_(True)
        for name in self._names:
            self.get_buffer(_key(name)).copy_(model.get_parameter(name))

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Take one step towards the model, if following."""
        if not self.following:
            return
        for name in self._names:
            own = self.get_buffer(_key(name))
            own.lerp_(model.get_parameter(name).detach().to(own), self.rate)

    def weights(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return the weights by the model's names and in its dtypes, for torch.func.functional_call."""
        return {name: self.get_buffer(_key(name)).to(model.get_parameter(name)) for name in self._names}


def _key(name: str) -> str:
    """Return the buffer's name: it must not contain a dot."""
    return name.replace(".", "/")


HINTED = "oven_hinted"
"""Key in TRL's batch: the tokens of each row's hinted prompt, or None."""
LONGEST = 10_240
"""Maximum tokens of a hinted prompt; its end is kept. TRL's `max_reprompt_len`."""
Mode = Literal["full_logits", "topk_logits", "sampled_token"]


class SelfDistillation(Channel):
    """Divergence per token between the policy and a teacher that reads the same completion after a hinted prompt
    (Hübotter et al. 2026, arXiv 2601.20802). It covers the completions with a hint (oven_learner.losses.hints): a
    sibling's success, the environment's feedback, or a template. TRL 1.16's functions (`experimental/sdpo/loss_utils`)
    compute it. Its SDPOTrainer is not used, because it is not a GRPOTrainer and mixes its loss differently.

    `teacher` is "live", the current policy, or "ema", its moving average with `rate` per step. The average starts from
    the policy when the weight rises above 0 (MovingAverage). `mode` compares the whole vocabulary,
    the policy's `topk` tokens plus one bucket for the rest, or only the sampled token. `beta` is 0 for the forward KL,
    1 for the reverse, and the generalized JSD in between. A sampled token supports only the reverse KL. `clip` bounds
    the importance ratio when completions are reused; None disables it.

    Prompts, padding and tool output do not count. The trainer's temperature softens both models. Gauges are over the
    same tokens. Raises ConfigError for a β outside [0, 1], a rate outside (0, 1], and a `topk` that does not match the
    mode.
    """

    name = "sdpo"
    unit = "nats per token, policy to its hinted self"
    gauges: ClassVar[tuple[MetricSpec, ...]] = (
        MetricSpec(name="accuracy", better="up", unit="share of tokens whose most probable one is the hinted policy's"),
        MetricSpec(name="margin", unit="nats per token that the hint adds to what was sampled"),
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
        mode: Mode = "topk_logits",
        topk: int | None = None,
        beta: float = 0.5,
        clip: float | None = 2.0,
    ) -> None:
        super().__init__(weight, maximum=maximum)
        if mode == "topk_logits" and topk is None:
            topk = 100
        _check(teacher, rate, mode, topk, beta, clip)
        self.hints = hints or Hints()
        self.mode, self.topk, self.beta, self.clip = mode, topk, beta, clip
        self._averaged, self._rate = teacher == "ema", rate
        self._average: Any = None

    def bind(self, trainer: Any) -> None:
        """Create the moving average. A `topk` above the vocabulary size is reduced to it."""
        super().bind(trainer)
        policy = trainer.accelerator.unwrap_model(trainer.model)
        rows = int(policy.get_input_embeddings().weight.shape[0])
        if self.topk is not None:
            self.topk = min(self.topk, rows)
        if self._averaged:
            self._average = MovingAverage(policy, self._rate)
            if self.weight:
                self._average.restart(policy)
            trainer.add_callback(_Follow(self))

    def set_weight(self, weight: float) -> None:
        """Set the weight from the next step on. When it rises from 0, buffered completions without hints are
        dropped."""
        super().set_weight(weight)
        if self._average is not None and weight == 0:
            self._average.stop()
        elif self._average is not None and not self._average.following:
            self._average.restart(self._policy)
        if weight and self._trainer is not None:
            waiting = getattr(self._trainer, "_buffered_inputs", None) or ()
            if any(HINTED not in batch for batch in waiting):
                self._trainer._buffered_inputs = None

    @property
    def module(self) -> nn.Module | None:
        """The moving average."""
        average: nn.Module | None = self._average
        return average

    def columns(self, generated: Generated) -> dict[str, Any]:
        """Return the hinted prompts' tokens; nothing while the channel is off."""
        if not self.weight:
            return {}
        trainer = self._trainer
        tokenizer = trainer.processing_class
        prompts = self.hints.prompts(
            generated,
            lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
            trainer.accelerator.process_index,
        )
        window = getattr(self._policy.config, "max_position_embeddings", None) or math.inf
        hinted: list[list[int] | None] = []
        for prompt, tools, completion in zip(prompts, generated.tools, generated.completion_ids, strict=True):
            tokens = None if prompt is None else self._tokens(prompt, tools)
            fits = tokens is not None and len(tokens) + len(completion) <= window
            hinted.append(tokens if fits else None)
        return {HINTED: hinted}

    def tally(self, model: Any, inputs: dict[str, Any]) -> Tally:
        """Return the divergence summed over the tokens of hinted completions, and their number."""
        trainer = self._trainer
        hinted: list[list[int] | None] = inputs.get(HINTED) or [None] * len(inputs["completion_ids"])
        rows = [row for row, tokens in enumerate(hinted) if tokens is not None]
        device = inputs["completion_ids"].device
        share = torch.tensor(float(len(rows)), device=device), torch.tensor(float(len(hinted)), device=device)
        mask = inputs["completion_mask"]  # (B, C)
        mask = mask if "tool_mask" not in inputs else mask * inputs["tool_mask"]
        counted = mask[rows].bool()  # (b, C), b <= B
        if not counted.any():
            nothing = torch.zeros((), device=device)
            return Tally(nothing, nothing, {"hinted": share})
        completion = inputs["completion_ids"][rows], inputs["completion_mask"][rows]
        hinted_prompts = padded([tokens for tokens in hinted if tokens is not None], device, pad_left=True)
        hinted_logits = self._hinted_logits(hinted_prompts, completion)[counted]  # (tokens, V)
        prompt = inputs["prompt_ids"][rows], inputs["prompt_mask"][rows]
        # Bypass DDP's forward: it broadcasts buffers, and other ranks may have no hints in this batch.
        policy = trainer.accelerator.unwrap_model(model)
        logits = completion_logits(trainer, policy, prompt, completion)[counted].float() / trainer.temperature
        sampled = completion[0][counted]
        old = inputs["old_per_token_logps"][rows][counted] if "old_per_token_logps" in inputs else None
        apart = self.divergence(logits, hinted_logits, sampled, old)
        with torch.no_grad():
            count = counted.sum()
            agree = (logits.argmax(-1) == hinted_logits.argmax(-1)).float().sum()
            added = _log_probability(hinted_logits, sampled) - _log_probability(logits, sampled)
        gauges = {"accuracy": (agree, count), "margin": (added.sum(), count), "hinted": share}
        return Tally(apart.sum(), count, gauges)

    def divergence(self, student: Tensor, teacher: Tensor, sampled: Tensor, old: Tensor | None = None) -> Tensor:
        """Return nats per token, (tokens,), from softened logits (tokens, V).

        `sampled` are the tokens, and `old` their log-probabilities when they were sampled.
        """
        functions = _functions()
        if self.mode == "topk_logits":
            apart = functions.compute_topk_self_distillation_loss(
                student, teacher, distillation_topk=self.topk, distillation_alpha=self.beta, distillation_add_tail=True
            )
        elif self.mode == "full_logits":
            apart = functions.compute_full_logit_self_distillation_loss(student, teacher, distillation_alpha=self.beta)
        else:
            apart = functions.compute_sampled_token_self_distillation_loss(
                student, teacher, sampled, distillation_alpha=self.beta
            )
        if self.clip is not None and old is not None:
            apart = functions.apply_importance_sampling_clipping(
                apart, _log_probability(student, sampled), old, self.clip
            )
        whole: Tensor = apart
        return whole

    def follow(self) -> None:
        """Update the moving average at the end of a step."""
        if self._average is not None:
            self._average.follow(self._policy)

    @property
    def _policy(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def _hinted_logits(self, prompt: tuple[Tensor, Tensor], completion: tuple[Tensor, Tensor]) -> Tensor:
        """Return the teacher's softened logits, (b, C, V), without dropout."""
        policy = self._policy
        weights = self._average.weights(policy) if self._average is not None else None
        was_training = policy.training
        policy.eval()
        try:
            with torch.no_grad():
                logits = completion_logits(self._trainer, policy, prompt, completion, weights)
        finally:
            policy.train(was_training)
        return logits.float() / float(self._trainer.temperature)

    def _tokens(self, prompt: Any, tools: Any) -> list[int]:
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
        return list(ids)[-LONGEST:]


class _Follow(TrainerCallback):
    def __init__(self, channel: SelfDistillation) -> None:
        self._channel = channel

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._channel.follow()


def _log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of tokens (…), from logits (…, V)."""
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _functions() -> Any:
    with warnings.catch_warnings():
        # Experimental API: trl's minor version is pinned.
        warnings.simplefilter("ignore")
        from trl.experimental.sdpo import loss_utils

        return loss_utils


def _check(teacher: str, rate: float, mode: str, topk: int | None, beta: float, clip: float | None) -> None:
    if teacher not in ("live", "ema"):
        raise ConfigError(f"channel.sdpo: teacher {teacher!r}; give 'live' or 'ema'")
    if not 0 < rate <= 1:
        raise ConfigError(f"channel.sdpo: rate {rate:g} is outside (0, 1]; it is the average's step towards the policy")
    if mode not in ("full_logits", "topk_logits", "sampled_token"):
        raise ConfigError(f"channel.sdpo: mode {mode!r}; give 'full_logits', 'topk_logits' or 'sampled_token'")
    if topk is not None and (mode != "topk_logits" or topk < 1):
        raise ConfigError(f"channel.sdpo: topk {topk} with mode {mode!r}; give 1 or more, and only with 'topk_logits'")
    if not 0 <= beta <= 1:
        raise ConfigError(f"channel.sdpo: beta {beta:g} is outside [0, 1]; 0 is the forward KL, 1 the reverse")
    if mode == "sampled_token" and beta != 1:
        raise ConfigError(
            f"channel.sdpo: beta {beta:g} with 'sampled_token', which supports only the reverse KL; give 1"
        )
    if clip is not None and not clip > 0:
        raise ConfigError(f"channel.sdpo: clip {clip:g}; give a number above 0, or None")
