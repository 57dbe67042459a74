"""`bake()`: a model, its prompts and its judges in, a training under the controller out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.messages import MetricSpec
from oven_learner.baking.own_stack import OwnStack, Place
from oven_learner.client.held_out_evaluation import Measured
from oven_learner.completions.redaction import Redact
from oven_learner.rewards.rule_members import RewardFunction

if TYPE_CHECKING:
    from oven_learner.baking.oven import Oven
    from oven_learner.baking.policy_training import PolicyTraining
    from oven_learner.baking.text_training import TextTraining
    from oven_learner.hf.prompts import PromptSource
    from oven_learner.teachers import TeacherConfig

    AnyTeachers = Mapping[str, Any] | Sequence[TeacherConfig | Mapping[str, Any]] | Path | str

MODALITIES = ("text", "motion", "image", "audio", "video", "trajectory", "other")
"""What a model may make. Text is trained by TRL, all else as a Policy."""


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
    """One call from a model to a training under the controller: `bake(...).run_sync()`.

    `prompts` are a list, or a PromptSource with topics, whose weights are then a knob and which takes more prompts
    while training. `rules` are reward functions, by name; `members` the remote judges of a committee, as settings have
    them. `name`, `architecture`, `domain`, `description`, `output_format` and `scoring_guidance` are what judges are
    told of the model. `teachers` are models by name; or a list of TeacherConfigs and of mappings as in YAML; or the
    path of such a YAML file: weakest first. Without `teacher` the first is the one to begin with. Text is trained by
    TRL, and what is left of the arguments is GRPOConfig's; any other modality takes a Policy as its model, and
    PolicyTrainerConfig's.

    `evaluate` measures on data that are not trained on; `metrics` say which way a metric is better and how high it can
    get, which of the reward is known: 1.

    `redact` is a function from text to text that every prompt and completion goes through before it is shown to those
    who watch; whether any are is a setting: `settings={"completions": {"every": 10}}`.

    `use_verifier` adds a member that compares texts with the active teacher's own, with a tenth of the weight; it may
    name the folder or id of the sentence model.

    Without a stack in the environment one is started as a child, with `settings`, `members` and the name `run`, which
    `resume` continues; it ends with the script.

    Raises ConfigError or UnknownNameError for what cannot be trained, before the first step.
    """
    if modality not in MODALITIES:
        raise UnknownNameError("modality", modality, MODALITIES)
    if not callable(getattr(model, "parameters", None)):
        raise ConfigError(f"model= is a {type(model).__name__}: give one that is loaded")
    if modality == "text" and tokenizer is None:
        raise ConfigError("text needs its tokenizer: bake(model, tokenizer, …)")
    if modality != "text" and use_verifier:
        raise ConfigError(f"the verifier compares texts, and the modality is {modality!r}: leave use_verifier= out")
    _check_prompts(prompts)
    _check_sizes(group_size, prompts_per_step, total_steps)
    if not rules and not members:
        raise ConfigError("nothing scores what the model says: give rules=, members=, or both")
    taught = _configs(teachers, tokenizer)
    _check_teachers(teacher, taught, trainer_args.get("beta"))
    place = _place_in_environment()
    if place is not None and (settings or members or run or resume):
        raise ConfigError(
            f"a stack is there already (run {place.run!r}), and settings=, members=, run= and resume= are those of one "
            "that is started: leave them out, or unset OVEN_URL"
        )
    if place is None and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise ConfigError(
            "several ranks share one stack, and each would start its own: `oven-controller run -- torchrun …`"
        )
    stack = None if place is not None else OwnStack(_configured(settings, members), run, resume)
    try:
        given: dict[str, Any] = {
            "model": model,
            "prompts": prompts,
            "rules": _named(rules),
            "teachers": taught,
            "teacher": teacher,
            "evaluate": evaluate,
            "metrics": _announced(metrics),
            "redact": redact,
            "said": _described(
                name=name,
                modality=modality,
                architecture=architecture,
                domain=domain,
                description=description,
                output_format=output_format,
                scoring_guidance=scoring_guidance,
                use_verifier=bool(use_verifier),
            ),
        }
        sizes = group_size, prompts_per_step, total_steps
        training: TextTraining | PolicyTraining
        if modality == "text":
            from oven_learner.baking import text_training  # TRL takes its seconds while the stack gets ready

            options = text_training.arguments(*sizes, trainer_args)
            training = text_training.TextTraining(
                **given,
                tokenizer=tokenizer,
                arguments=options,
                beta=trainer_args.get("beta"),
                verifier=use_verifier,
            )
        else:
            from oven_learner.baking import policy_training

            options = policy_training.arguments(*sizes, trainer_args)
            training = policy_training.PolicyTraining(**given, arguments=options)
        if stack is not None:
            place = stack.place()
        assert place is not None  # one of both is there
        return training.oven(place, stack)
    except BaseException:
        if stack is not None:
            stack.end()
        raise


def _announced(metrics: Sequence[MetricSpec]) -> tuple[MetricSpec, ...]:
    """With the reward, which is a committee's: its members score from 0 to 1."""
    known = {spec.name for spec in metrics}
    return tuple(metrics) if "reward" in known else (*metrics, MetricSpec(name="reward", better="up", ceiling=1.0))


def _check_prompts(prompts: Sequence[str] | PromptSource) -> None:
    """A source has checked its own."""
    if isinstance(prompts, str) or (isinstance(prompts, list | tuple) and not prompts):
        raise ConfigError("prompts= has to be a list with at least one prompt, or a PromptSource")


def _check_sizes(group_size: int, prompts_per_step: int, total_steps: int) -> None:
    if group_size < 2:
        raise ConfigError(f"group_size={group_size}: a completion is compared with others of its group; give 2 or more")
    for word, number in (("prompts_per_step", prompts_per_step), ("total_steps", total_steps)):
        if number < 1:
            raise ConfigError(f"{word}={number} is not a number of them; give 1 or more")


def _check_teachers(first: str | None, teachers: Sequence[TeacherConfig], beta: float | None) -> None:
    if first is not None:
        names = [config.name for config in teachers]
        if first not in names:
            raise UnknownNameError("teacher", first, names)
    if beta and not teachers:
        raise ConfigError(f"beta={beta:g} needs a teacher to be held to: give teachers=, or leave it out")


def _place_in_environment() -> Place | None:
    url, run, folder = (os.environ.get(word) for word in ("OVEN_URL", "OVEN_RUN", "OVEN_RUN_DIR"))
    return Place(run, Path(folder or os.devnull), {}) if url and run else None


def _configured(settings: Mapping[str, Any] | None, members: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    found = dict(settings or {})
    if members:
        found["committee"] = {**found.get("committee", {}), "members": {key: dict(one) for key, one in members.items()}}
    return found


def _configs(teachers: AnyTeachers, tokenizer: Any) -> Sequence[TeacherConfig]:
    """Weakest first. A model by its name is kept as it is, and has the policy's tokenizer."""
    if not isinstance(teachers, str | Path) and not teachers:
        return ()
    from oven_learner.teachers import TeacherConfig, read_teachers, teachers_of

    if isinstance(teachers, str | Path):
        return read_teachers(teachers)
    if isinstance(teachers, Mapping):
        return [TeacherConfig(name=name, model=model, tokenizer=tokenizer) for name, model in teachers.items()]
    return teachers_of(teachers, "teachers=")


def _described(**said: Any) -> dict[str, Any]:
    """Fields of ModelDescription; what is not said is read off the model, or has its default."""
    return {"description": "Answers the prompts."} | {field: value for field, value in said.items() if value}


def _named(rules: RewardFunction | Mapping[str, RewardFunction] | None) -> Mapping[str, RewardFunction]:
    if rules is None or isinstance(rules, Mapping):
        return rules or {}
    return {getattr(rules, "__name__", "rule"): rules}
