"""The recipe's teachers: policies warmed up under other settings, from the same cache.

`initial` is the warm-up policy itself, the usual reference. `small` has half its width and one layer, an eighth of its
parameters, and learnt the same mixed habits: it holds a policy down. `strong` learnt from right answers only.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast, Trainer

from oven_learner.teachers import Teachers
from oven_recipes.grpo.settings import TeacherName
from oven_recipes.grpo.supervised_warmup import warm_policy
from oven_recipes.sorting_settings import SortingSettings

WARMED: dict[TeacherName, Callable[[SortingSettings], SortingSettings]] = {
    "initial": lambda policy: policy,
    "small": lambda policy: policy.model_copy(
        update={"hidden": policy.hidden // 2, "layers": 1, "ffn": policy.ffn // 2}
    ),
    "strong": lambda policy: policy.model_copy(update={"right_habit": 1.0}),
}
"""Name → the warm-up's settings, from the policy's."""


def build_teachers(
    trainer: Trainer,
    names: Sequence[TeacherName],
    settings: SortingSettings,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    cache: Path,
    active: TeacherName | None = None,
) -> Teachers:
    """Return all teachers in `names`, weakest first, starting with `active` (default: the first). Teachers that are not
    cached are trained now."""
    teachers = Teachers(trainer)
    for name in names:
        teachers.add(name, warm_policy(WARMED[name](settings), tokenizer, seed, cache), tokenizer)
    teachers.swap(active or names[0])
    return teachers
