"""Train a model under the controller with one call, `bake()`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.messages import MetricSpec
from oven_learner.baking.child_stack import ChildStack, StackAddress
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.completions.sample_message import Redact
from oven_learner.rewards.verdicts import RewardFunction

if TYPE_CHECKING:
    from oven_learner.baking.policy_training import PolicyTraining
    from oven_learner.baking.text_training import TextTraining
    from oven_learner.baking.training_handle import Oven
    from oven_learner.hf.prompts import PromptSource
    from oven_learner.teachers import TeacherConfig

    TeacherArgument = Mapping[str, Any] | Sequence[TeacherConfig | Mapping[str, Any]] | Path | str

log = logging.getLogger(__name__)
OBSERVE_SETTINGS = "settings={'rules': {'autonomy': 'observe'}}"
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
    teachers: TeacherArgument = (),
    rules: RewardFunction | Mapping[str, RewardFunction] | None = None,
    members: Mapping[str, Mapping[str, Any]] | None = None,
    evaluate: Callable[[], Measurements] | None = None,
    metrics: Sequence[MetricSpec] = (),
    redact: Redact | None = None,
    settings: Mapping[str, Any] | None = None,
    run: str | None = None,
    resume: bool = False,
    **trainer_args: Any,
) -> Oven:
    """Set up a training run under the controller in one call: `bake(...).run_sync()`.

    TRL trains text models, and the remaining arguments go to GRPOConfig. Any other modality needs a Policy as its
    model, and the remaining arguments go to PolicyTrainerConfig.

    If the environment does not name a stack, a child process runs one until the script ends. That stack changes the
    training's knobs (autonomy `auto`) unless you pass `settings={"rules": {"autonomy": "observe"}}`. A resumed run
    keeps its autonomy level.

    Args:
        name, architecture, domain, description, output_format, scoring_guidance: the model's description for judges.
        use_verifier: add a committee member that compares answers with the active teacher's answer. It has a tenth of
            the weight. Pass a folder or an id instead of True to choose the sentence model.
        prompts: a list, or a PromptSource with topics. With a PromptSource, the weights of the topics become a knob,
            and new prompts can be added during training.
        teacher: the teacher that is active at the start. The default is the first.
        teachers: weakest first. A mapping from name to model, a list of TeacherConfigs or of mappings as in YAML, or
            the path of such a YAML file.
        rules: reward functions by name.
        members: remote judges of the committee, in the format of the settings.
        evaluate: a function that measures metrics on held-out data.
        metrics: descriptions of metrics, with their maximum and whether higher is better. The reward's maximum is 1.
        redact: a function from text to text, applied to every prompt and completion before the monitor shows it. To
            show completions, pass `settings={"completions": {"every": 10}}`.
        settings: the settings of a new stack.
        run: the name of the run on a new stack.
        resume: continue that run.

    Raises ConfigError or UnknownNameError for invalid arguments, before the first step.
    """
    _check_model(model, tokenizer, modality, use_verifier)
    _check_sizes(prompts, group_size, prompts_per_step, total_steps)
    if callable(rules):
        rules = {getattr(rules, "__name__", "rule"): rules}
    if not rules and not members:
        raise ConfigError("nothing scores the model's answers; pass rules=, members=, or both")
    teacher_configs = _teacher_configs(teachers, tokenizer)
    teacher_names = [config.name for config in teacher_configs]
    if teacher is not None and teacher not in teacher_names:
        raise UnknownNameError("teacher", teacher, teacher_names)
    if trainer_args.get("beta") and not teacher_configs:
        raise ConfigError(f"beta={trainer_args['beta']:g} needs a teacher; pass teachers=, or omit beta=")
    address = _address_in_environment()
    if address is not None and (settings or members or run or resume):
        raise ConfigError(
            f"the environment already names a stack (run {address.run!r}), but settings=, members=, run= and resume= "
            "configure a new one; omit them, or unset OVEN_URL"
        )
    if address is None and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise ConfigError("every rank would start its own stack; use `oven-controller run -- torchrun …`")
    stack = None if address is not None else ChildStack(_stack_settings(settings, members, resume), run, resume)
    try:
        common_arguments: dict[str, Any] = {
            "model": model,
            "prompts": prompts,
            "rules": rules or {},
            "teachers": teacher_configs,
            "teacher": teacher,
            "evaluate": evaluate,
            "metrics": _with_reward(metrics),
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

            config_args = text_training.config_args(*sizes, trainer_args)
            training = text_training.TextTraining(
                **common_arguments,
                tokenizer=tokenizer,
                config_args=config_args,
                beta=trainer_args.get("beta"),
                verifier=use_verifier,
            )
        else:
            from oven_learner.baking import policy_training

            config_args = policy_training.config_args(*sizes, trainer_args)
            training = policy_training.PolicyTraining(**common_arguments, config_args=config_args)
        if stack is not None:
            address = stack.wait_for_address()
        assert address is not None  # either the environment or the new stack has set it
        return training.build(address, stack)
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
        raise ConfigError("a text model needs a tokenizer: bake(model, tokenizer, …)")
    if modality != "text" and use_verifier:
        raise ConfigError(f"the verifier compares strings, but the modality is {modality!r}; omit use_verifier=")


def _check_sizes(prompts: Any, group_size: int, prompts_per_step: int, total_steps: int) -> None:
    """Check that there are prompts and that the sizes are large enough. A PromptSource checks its own prompts."""
    if isinstance(prompts, str) or (isinstance(prompts, list | tuple) and not prompts):
        raise ConfigError("prompts= must be a list with at least one prompt, or a PromptSource")
    if group_size < 2 or prompts_per_step < 1 or total_steps < 1:
        raise ConfigError(
            f"group_size={group_size}, prompts_per_step={prompts_per_step}, total_steps={total_steps}: a group needs "
            "at least 2 completions to compare; prompts_per_step and total_steps must be at least 1"
        )


def _with_reward(metrics: Sequence[MetricSpec]) -> tuple[MetricSpec, ...]:
    """Add the reward to the metrics. It ranges from 0 to 1 like the members' scores."""
    names = {spec.name for spec in metrics}
    return tuple(metrics) if "reward" in names else (*metrics, MetricSpec(name="reward", better="up", ceiling=1.0))


def _address_in_environment() -> StackAddress | None:
    url, run, folder = (os.environ.get(name) for name in ("OVEN_URL", "OVEN_RUN", "OVEN_RUN_DIR"))
    return StackAddress(run, Path(folder or os.devnull), {}) if url and run else None


def _stack_settings(
    settings: Mapping[str, Any] | None, members: Mapping[str, Mapping[str, Any]] | None, resume: bool
) -> dict[str, Any]:
    """Add the members and the default autonomy level to the settings."""
    all_settings = dict(settings or {})
    rules = all_settings.get("rules") or {}
    if not resume and isinstance(rules, Mapping) and "autonomy" not in rules:
        all_settings["rules"] = {"autonomy": "auto", **rules}
        log.warning("the controller may change this training run's knobs; to observe only, pass %s", OBSERVE_SETTINGS)
    if members:
        all_settings["committee"] = {
            **all_settings.get("committee", {}),
            "members": {key: dict(member) for key, member in members.items()},
        }
    return all_settings


def _teacher_configs(teachers: TeacherArgument, tokenizer: Any) -> Sequence[TeacherConfig]:
    """Return the TeacherConfigs, weakest first. In a mapping from name to model, models use the policy's tokenizer."""
    if not isinstance(teachers, str | Path) and not teachers:
        return ()
    from oven_learner.teachers import TeacherConfig, parse_teachers, read_teachers

    if isinstance(teachers, str | Path):
        return read_teachers(teachers)
    if isinstance(teachers, Mapping):
        return [TeacherConfig(name=name, model=model, tokenizer=tokenizer) for name, model in teachers.items()]
    return parse_teachers(teachers, "teachers=")
