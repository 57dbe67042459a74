"""The gym's own trainees for a few steps, and the families that are tried on them: those written blind."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.trainee import Grpo
from oven_learner.gym.pretraining.trainee import Pretraining
from oven_learner.gym.trainee import Trainee

ONSET, END_OF_RUN, SEED = 3, 9, 1
Metrics = list[dict[str, float]]

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
ENTRY_POINTS: dict[str, dict[str, str]] = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]
SECOND_SET = frozenset(
    [
        "escaped_text",
        "framework_port",
        "grouped_by_length",
        "leaked_answers",
        "loss_of_one_rank",
        "masked_targets",
        "overloaded_rewards",
        "quantized_sampler",
        "repeated_ngrams",
        "rewards_as_completed",
        "sampler_upgrade",
        "summed_gradients",
        "uncleared_gradients",
        "unreduced_part",
    ]
)
THIRD_SET = frozenset(
    [
        "biased_judge",
        "cheaper_rollouts",
        "cut_prompts",
        "double_shift",
        "gradient_underflow",
        "memory_diet",
        "moody_judge",
        "new_crawl",
        "padded_vocabulary",
        "short_cache_key",
        "transposed_batch",
        "uneven_accumulation",
        "unloaded_layers",
        "unsynced_workers",
    ]
)
FOURTH_SET = frozenset(
    [
        "clip_too_tight",
        "deduplication_view",
        "dynamic_sampling",
        "entropy_bonus",
        "first_number",
        "first_stage_settings",
        "lagging_average",
        "padding_side",
        "pruning_left_on",
        "repetition_penalty",
        "shifted_vocabulary",
        "table_of_constants",
        "unshuffled_shards",
        "verifier_alone",
    ]
)
FIFTH_SET = frozenset(
    [
        "batch_ramp",
        "chat_collator",
        "context_extension",
        "folded_scales",
        "large_epsilon",
        "larger_groups",
        "long_momentum",
        "low_rank_gradients",
        "merged_twice",
        "minimum_length",
        "one_seed",
        "two_columns",
        "wrong_column",
        "wrong_reference",
    ]
)
SIXTH_SET = frozenset(
    [
        "alike_prompts",
        "fill_in_middle",
        "frozen_layers",
        "heavy_demonstrations",
        "lost_collectives",
        "number_column",
        "prose_cleaning",
        "resharded_moments",
        "review_prompts",
        "smoothed_labels",
        "tied_on_load",
        "token_budget",
        "weak_generator",
        "weights_by_name",
    ]
)
SEVENTH_SET = frozenset(
    [
        "banned_tokens",
        "canonical_prompts",
        "cleared_symbols",
        "config_defaults",
        "counted_padding",
        "growing_weights",
        "majority_answers",
        "open_mask",
        "reversed_sync",
        "saturated_weights",
        "signed_rewards",
        "sorted_lines",
        "token_price",
        "z_loss",
    ]
)
BLIND_A = frozenset(
    [
        "broken_ties",
        "capped_logits",
        "distinct_keys",
        "error_answers",
        "late_teacher",
        "misaligned_bucket",
        "own_judge",
        "planted_canaries",
        "probe_prompts",
        "redacted_words",
        "revived_units",
        "rotated_basis",
        "several_writers",
        "shifted_log_probs",
    ]
)
BLIND_B = frozenset(
    [
        "baseline_axis",
        "broken_ring",
        "canary_prompts",
        "code_listings",
        "contamination_filter",
        "generated_text",
        "hard_tokens",
        "outer_step",
        "pure_batches",
        "recycled_units",
        "sharpness_aware",
        "spreadsheet_keys",
        "stale_prefix_cache",
        "tournament",
    ]
)
BLIND_C = frozenset(
    [
        "balanced_classes",
        "detached_probes",
        "dropped_repeats",
        "flipped_rows",
        "kernel_scale",
        "novelty_bonus",
        "office_export",
        "other_algorithm",
        "overflowing_credit",
        "private_gradients",
        "regraded_levels",
        "temperature_ladder",
        "trusted_draft",
        "unlearned_text",
    ]
)
BLIND_D = frozenset(
    [
        "bag_of_tokens",
        "licence_headers",
        "log_lines",
        "restarted_positions",
        "shared_directory",
        "square_matrix",
        "swapped_bytes",
        "uncleared_buffer",
        "undivided_credit",
    ]
)
WRITTEN_BLIND = SECOND_SET.union(
    THIRD_SET, FOURTH_SET, FIFTH_SET, SIXTH_SET, SEVENTH_SET, BLIND_A, BLIND_B, BLIND_C, BLIND_D
)
"""Without sight of agents or graph, as those of test_gym_first_set.py were before them. All but the last four were
held out once."""


def loaded(target: str) -> Family:
    module, _, name = target.partition(":")
    return cast(Family, getattr(import_module(module), name)())


def written_blind() -> dict[str, Family]:
    """By name."""
    faults = ENTRY_POINTS["oven.faults"]
    return {name: loaded(target) for name, target in faults.items() if name.partition(".")[2] in WRITTEN_BLIND}


def held_out() -> dict[str, Family]:
    """By name."""
    return {name: loaded(target) for name, target in ENTRY_POINTS["oven.held_out"].items()}


def trainee(kind: str) -> Trainee:
    return Pretraining(SEED) if kind == "pretraining" else Grpo(SEED)


def stepped(run: Trainee, to: int, case: Case | None) -> Metrics:
    return [run.train_step(case) for _ in range(to - run.gradient_steps)]


def numbers(run: Trainee) -> list[Tensor]:
    """A copy of weights and moments."""
    parameters = list(run.model.parameters())
    moments = [run.optimizer.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq", "step")]
    return [one.detach().clone() for one in (*parameters, *moments)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
