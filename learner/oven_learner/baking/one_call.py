"""Train a model under the controller with one call, `bake()`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.messages import MetricSpec
from oven_learner.baking.own_stack import OwnStack, StackAddress
from oven_learner.client.held_out_evaluation import Measured
from oven_learner.completions.sample import Redact
from oven_learner.rewards.scores import RewardFunction

if TYPE_CHECKING:
    from oven_learner.baking.oven import Oven
    from oven_learner.baking.policy_training import PolicyTraining
    from oven_learner.baking.text_training import TextTraining
    from oven_learner.hf.prompts import PromptSource
    from oven_learner.teachers import TeacherConfig

    AnyTeachers = Mapping[str, Any] | Sequence[TeacherConfig | Mapping[str, Any]] | Path | str

log = logging.getLogger(__name__)
ONLY_OBSERVE = "settings={'rules': {'autonomy': 'observe'}}"
MODALITIES = ("text", "motion", "image", "audio", "video", "trajectory", "other")
"""Kinds of model output. TRL trains text models; all other models are trained as a Policy."""


def bake(
    model: Any,
    tokenizer: Any = None,
    *,
    name: str = "",
    modality: str = "text",
    architecture: str = "",
    domain: str = "",
    description: str = "",
    output_format: str = "",
    scoring_guidance: str = "",
    use_verifier: bool | str | Path = False,
    prompts: Sequence[str] | PromptSource,
    group_size: int = 8,
    prompts_per_step: int = 4,
    total_steps: int,
    teacher: str | None = None,
    teachers: AnyTeachers = (),
    rules: RewardFunction | Mapping[str, RewardFunction] | None = None,
    members: Mapping[str, Mapping[str, Any]] | None = None,
    evaluate: Callable[[], Measured] | None = None,
    metrics: Sequence[MetricSpec] = (),
    redact: Redact | None = None,
    settings: Mapping[str, Any] | None = None,
    run: str | None = None,
    resume: bool = False,
    **trainer_args: Any,
) -> Oven:
    """Set up a training under the controller in one call: `bake(...).run_sync()`.

    `prompts` are a list, or a PromptSource with topics. A PromptSource's topic weights become a knob, and it accepts
    new prompts during training. `rules` are reward functions by name. `members` are a committee's remote judges, in the
    format of the settings. Judges receive `name`, `architecture`, `domain`, `description`, `output_format` and
    `scoring_guidance` as the model's description. `teachers`, weakest first, are models by name, a list of
    TeacherConfigs or of mappings as in YAML, or the path of such a YAML file. `teacher` is the initially active one;
    the default is the first. TRL trains text models, and the remaining arguments go to GRPOConfig. Any other modality
    needs a Policy as its model, and the remaining arguments go to PolicyTrainerConfig.

    `evaluate` measures on held-out data. `metrics` give each metric's maximum and whether higher or lower is better.
    The reward's maximum is 1.

    `redact` maps text to text. It is applied to every prompt and completion before people see it. A setting enables
    this display: `settings={"completions": {"every": 10}}`.

    `use_verifier` adds a member that compares answers with the active teacher's answer, with a tenth of the weight. Its
    value may be the folder or id of the sentence model.

    If no stack is named in the environment, a child process runs one with `settings`, `members` and the name `run`.
    `resume` continues that run. The stack ends with the script. It changes the training's knobs (`auto`) unless
    `settings={"rules": {"autonomy": "observe"}}` disables that. A resumed run keeps its autonomy level.

    Raises ConfigError or UnknownNameError for invalid arguments, before the first step.
    """
    _check_model(model, tokenizer, modality, use_verifier)
    _check_sizes(prompts, group_size, prompts_per_step, total_steps)
    if not rules and not members:
        raise ConfigError("nothing scores the model's answers; pass rules=, members=, or both")
    taught = _configs(teachers, tokenizer)
    names = [config.name for config in taught]
    if teacher is not None and teacher not in names:
        raise UnknownNameError("teacher", teacher, names)
    if trainer_args.get("beta") and not taught:
        raise ConfigError(f"beta={trainer_args['beta']:g} needs a teacher; pass teachers=, or omit beta=")
    address = _address_in_environment()
    if address is not None and (settings or members or run or resume):
        raise ConfigError(
            f"the environment names a stack (run {address.run!r}), and settings=, members=, run= and resume= are for a "
            "new one; omit them, or unset OVEN_URL"
        )
    if address is None and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise ConfigError("each of several ranks would start its own stack; use `oven-controller run -- torchrun …`")
    stack = None if address is not None else OwnStack(_configured(settings, members, resume), run, resume)
    try:
        common: dict[str, Any] = {
            "model": model,
            "prompts": prompts,
            "rules": {getattr(rules, "__name__", "rule"): rules} if callable(rules) else rules or {},
            "teachers": taught,
            "teacher": teacher,
            "evaluate": evaluate,
            "metrics": _announced(metrics),
            "redact": redact,
            "model_details": {
                "name": name,
                "modality": modality,
                "architecture": architecture,
                "domain": domain,
                "description": description or "Answers the prompts.",
                "output_format": output_format,
                "scoring_guidance": scoring_guidance,
                "use_verifier": bool(use_verifier),
            },
        }
        sizes = group_size, prompts_per_step, total_steps
        training: TextTraining | PolicyTraining
        if modality == "text":
            from oven_learner.baking import text_training  # import TRL while the stack starts

            options = text_training.arguments(*sizes, trainer_args)
            training = text_training.TextTraining(
                **common,
                tokenizer=tokenizer,
                arguments=options,
                beta=trainer_args.get("beta"),
                verifier=use_verifier,
            )
        else:
            from oven_learner.baking import policy_training

            options = policy_training.arguments(*sizes, trainer_args)
            training = policy_training.PolicyTraining(**common, arguments=options)
        if stack is not None:
            address = stack.address()
        assert address is not None  # one of the two exists
        return training.oven(address, stack)
    except BaseException:
        if stack is not None:
            stack.end()
        raise


def _check_model(model: Any, tokenizer: Any, modality: str, use_verifier: bool | str | Path) -> None:
    if modality not in MODALITIES:
        raise UnknownNameError("modality", modality, MODALITIES)
    if not callable(getattr(model, "parameters", None)):
        raise ConfigError(f"model= is a {type(model).__name__}: expected a loaded model")
    if modality == "text" and tokenizer is None:
        raise ConfigError("text models need a tokenizer: bake(model, tokenizer, …)")
    if modality != "text" and use_verifier:
        raise ConfigError(f"the verifier compares texts, and the modality is {modality!r}; omit use_verifier=")


def _check_sizes(prompts: Any, group_size: int, prompts_per_step: int, total_steps: int) -> None:
    """Check a list of prompts and the sizes. A PromptSource checks its own prompts."""
    if isinstance(prompts, str) or (isinstance(prompts, list | tuple) and not prompts):
        raise ConfigError("prompts= must be a list with at least one prompt, or a PromptSource")
    if group_size < 2 or prompts_per_step < 1 or total_steps < 1:
        raise ConfigError(
            f"group_size={group_size}, prompts_per_step={prompts_per_step}, total_steps={total_steps}: give 2 or more "
            "completions per group, which are compared, and 1 or more prompts and steps"
        )


def _announced(metrics: Sequence[MetricSpec]) -> tuple[MetricSpec, ...]:
    """Return the metrics plus the reward, which ranges from 0 to 1 like the members' scores."""
    names = {spec.name for spec in metrics}
    return tuple(metrics) if "reward" in names else (*metrics, MetricSpec(name="reward", better="up", ceiling=1.0))


def _address_in_environment() -> StackAddress | None:
    url, run, folder = (os.environ.get(name) for name in ("OVEN_URL", "OVEN_RUN", "OVEN_RUN_DIR"))
    return StackAddress(run, Path(folder or os.devnull), {}) if url and run else None


def _configured(
    settings: Mapping[str, Any] | None, members: Mapping[str, Mapping[str, Any]] | None, resume: bool
) -> dict[str, Any]:
    configured = dict(settings or {})
    rules = configured.get("rules") or {}
    if not resume and isinstance(rules, Mapping) and "autonomy" not in rules:
        configured["rules"] = {"autonomy": "auto", **rules}
        log.warning("the controller changes the knobs of this training; to only observe, pass %s", ONLY_OBSERVE)
    if members:
        configured["committee"] = {
            **configured.get("committee", {}),
            "members": {key: dict(member) for key, member in members.items()},
        }
    return configured


def _configs(teachers: AnyTeachers, tokenizer: Any) -> Sequence[TeacherConfig]:
    """Return the TeacherConfigs, weakest first. Models given by name get the policy's tokenizer."""
    if not isinstance(teachers, str | Path) and not teachers:
        return ()
    from oven_learner.teachers import TeacherConfig, read_teachers, teachers_of

    if isinstance(teachers, str | Path):
        return read_teachers(teachers)
    if isinstance(teachers, Mapping):
        return [TeacherConfig(name=name, model=model, tokenizer=tokenizer) for name, model in teachers.items()]
    return teachers_of(teachers, "teachers=")
