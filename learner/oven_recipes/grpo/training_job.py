"""Builds the training job of the recipe `grpo`, with its policy, prompts, reward, trainer and held-out evaluation."""

from pathlib import Path

import torch
from datasets import Dataset
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.protocol.messages import MetricSpec
from oven_learner.hf.knobs.mixture import Mixture, install_sampler
from oven_learner.rewards import Committee, ModelDescription, convene
from oven_learner.rewards.verdicts import RewardFunction
from oven_recipes.grpo.evaluation import held_out_evaluation
from oven_recipes.grpo.settings import GrpoSettings, Start, accuracy_specs
from oven_recipes.grpo.sorting_policy import build_teachers, build_tokenizer, warm_policy
from oven_recipes.grpo.sorting_task import RULES, STAGED_RULES, WEIGHTS, training_pools
from oven_recipes.quiet_libraries import quiet_libraries
from oven_recipes.recipe_interface import BETA_BOUNDS, LR_BOUNDS
from oven_recipes.training_runner import Job, trainer_arguments


def build(
    settings: GrpoSettings, start: Start, seed: int, workdir: Path, cache: Path, committee: Committee | None = None
) -> Job:
    """Build the training job for one start. The trainer writes its files to `workdir`, and `cache` stores warm policies
    between runs. Without a `committee`, only the recipe's own reward functions score answers."""
    if committee is None:
        rules, weights = reward_members(start)
        committee = Committee(rules, weights=weights, quorum=1, seed=seed)
    committee.group_size = settings.group_size
    quiet_libraries()
    tokenizer = build_tokenizer()
    model = warm_policy(settings, tokenizer, seed, cache)
    committee.description = describe(model, tokenizer)
    pools = training_pools(settings.lengths, settings.train_prompts, seed)
    datasets = [Dataset.from_list([vars(example) for example in pool]) for pool in pools]
    mixture = Mixture(dict(zip(settings.levels, datasets, strict=True)), start.mixture, seed=seed)
    args = _trainer_config(settings, start.learning_rate, seed, workdir)
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=[committee], args=args, train_dataset=mixture.dataset
    )
    install_sampler(trainer, mixture)
    beta = settings.beta if start.beta is None else start.beta
    teachers = None
    if beta > 0:
        # With a beta, the constructor would load a reference model from the policy's path, but the policy has no path.
        trainer.beta = args.beta = beta
        teachers = build_teachers(trainer, (start.teacher, "strong"), settings, tokenizer, seed, cache)
    return Job(
        trainer=trainer,
        evaluate=held_out_evaluation(trainer, tokenizer, settings),
        evaluate_every=settings.eval_every,
        metrics=recipe_metrics(settings),
        lr_bounds=LR_BOUNDS,
        beta_bounds=BETA_BOUNDS,
        mixture=mixture,
        teachers=teachers,
        committee=committee,
    )


def build_judged(settings: GrpoSettings, start: Start, seed: int, workdir: Path, cache: Path) -> Job:
    """Build the training job with the judges that environment variables name, in addition to the recipe's rewards."""
    rules, weights = reward_members(start)
    # If one rule sees no difference between the answers of a group, the other one decides.
    quorum = 1 if start.gamed_weight else None
    committee = convene(rules, weights=weights, quorum=quorum, seed=seed, reference="exact")
    return build(settings, start, seed, workdir, cache, committee)


def reward_members(start: Start) -> tuple[dict[str, RewardFunction], dict[str, float]]:
    """Return the recipe's reward functions and their weights, with the one that can be gamed if the start stages it."""
    if not start.gamed_weight:
        return RULES, WEIGHTS
    return RULES | STAGED_RULES, WEIGHTS | {"exact": 1 - start.gamed_weight, "smooth": start.gamed_weight}


def recipe_metrics(settings: GrpoSettings) -> tuple[MetricSpec, ...]:
    """Return the recipe's own metrics, which are published in addition to the trainer's."""
    rewards = (MetricSpec(name=f"reward/{name}", better="up", ceiling=1.0) for name in settings.levels)
    return (*accuracy_specs(settings.levels), *rewards)


def describe(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> ModelDescription:
    """Return the task's description for judges. It states the rule, so that judges do not have to guess it."""
    return ModelDescription.from_model(
        model,
        tokenizer,
        description="Sort the digits between S and = in ascending order; repeated digits stay repeated.",
        domain="sorting",
        output_format="the sorted digits, and nothing else",
        scoring_guidance="A good answer is exactly the sorted digits; anything before or after them is wrong.",
        use_verifier=True,
        example_input="S5203=",
        example_output="0235",
    )


def _trainer_config(settings: GrpoSettings, learning_rate: float, seed: int, workdir: Path) -> GRPOConfig:
    return GRPOConfig(
        # Plain "constant" silently ignores warmup_steps.
        lr_scheduler_type="constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        warmup_steps=settings.lr_warmup_steps,
        per_device_train_batch_size=settings.prompts_per_step * settings.group_size,
        num_generations=settings.group_size,
        max_completion_length=settings.max_completion_length,
        use_cpu=not torch.cuda.is_available(),
        **trainer_arguments(settings, learning_rate, seed, workdir),
    )
