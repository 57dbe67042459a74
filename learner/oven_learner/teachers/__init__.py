"""Local teachers, which are models that a loss pulls the policy towards. They can be swapped during a run.

A teacher is GRPO's reference in its KL term and in the channel `distill` (oven_learner.losses), or a
DistillationTrainer's teacher.

    teachers = Teachers(trainer)                   # the trainer's own reference, if any, is "initial"
    teachers.add("strong", model, tokenizer)       # from weak to strong; raises TeacherRefusedError
    teachers.register(TeacherConfig(name="big", kind="big", model_name="folder", strategy="quantized", bits=8))
    oven.attach(trainer, teachers=teachers)        # registers the knobs teacher.active and grpo.beta

GRPO's term is β·E[exp(r) − r − 1] with r = log π_ref − log π_θ, per token (Schulman's k3 estimator; Shao et al. 2024,
arXiv 2402.03300, eq. 4), times the importance ratio unless `use_bias_correction_kl` is off. TRL computes the term and
its gradient, and this package chooses the model π_ref.
"""

from oven_learner.teachers.kl_knobs import register_kl_knobs
from oven_learner.teachers.registry import LIMIT_BYTES, Teachers
from oven_learner.teachers.teacher_config import TeacherConfig, parse_teachers, read_teachers

__all__ = ["LIMIT_BYTES", "TeacherConfig", "Teachers", "parse_teachers", "read_teachers", "register_kl_knobs"]
