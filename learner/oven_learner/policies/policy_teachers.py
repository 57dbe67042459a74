"""Teachers of a policy: frozen policies of the same kind. The KL term pulls the policy towards the active teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from oven_core.errors import ConfigError, TeacherRefusedError, reason
from oven_learner.policies.policy import Policy, Samples, as_vectors, repeat_conditions
from oven_learner.policies.saved_policy import load_policy
from oven_learner.random_state import preserve_state
from oven_learner.teachers import LIMIT_BYTES, TeacherConfig, teacher_checks
from oven_learner.teachers.memory_forms import Form
from oven_learner.teachers.placement import choose_form, place_model
from oven_learner.teachers.registry import Candidate, NamedTeachers

AnyTeacher = Policy | TeacherConfig


class PolicyTeachers(NamedTeachers[Policy]):
    """The teachers of one policy. The first teacher that is added becomes active. A TeacherConfig contains either a
    Policy or the folder of a saved one. A teacher from a folder encodes conditions with the policy's `encode`. All
    values of TeacherConfig's `kind` are supported, and all values of `strategy` except "quantized"."""

    def __init__(
        self,
        policy: Policy,
        conditions: Sequence[Any],
        *,
        limit_bytes: int = LIMIT_BYTES,
        offload_folder: Path | str | None = None,
    ) -> None:
        """The first of the `conditions` is used to test new teachers. `limit_bytes` is the maximum size of all teachers
        together. `offload_folder` receives weights on disk. None means the system's folder for temporary files."""
        super().__init__(limit_bytes, offload_folder)
        self._policy = policy
        self._conditions = conditions[:1]
        self._active = ""

    @property
    def active(self) -> str:
        """Name of the active teacher, or an empty string if there is none."""
        return self._active

    def swap(self, name: str) -> None:
        """Make `name` the active teacher, starting with the next step. Raises the same errors as `teachers[name]`."""
        self[name]  # raises for an unknown or a refused name
        self._active = name

    @property
    def _device(self) -> torch.device:
        return next(self._policy.parameters()).device

    def _prepare(self, config: TeacherConfig, during_training: bool) -> tuple[Policy, Form]:
        teacher, loaded_bytes = self._load(config), self._loaded_bytes
        if not isinstance(teacher, Policy):
            raise TeacherRefusedError(
                f"it is a {type(teacher).__name__}, but this trainer needs `step_log_probs`; pass a Policy as model=, "
                "or the folder of a saved policy as model_name="
            )
        teacher_checks.check_own_weights(self._policy, teacher)
        loaded_config = config.model_copy(update={"model": teacher, "model_name": None})
        form = choose_form(loaded_config, self._device, self._limit - loaded_bytes, quantizable=False)
        teacher_checks.check_size(teacher, loaded_bytes, self._limit, form)
        place_model(teacher, self._device, form, self._offload_folder)
        return teacher, form

    def _load(self, config: TeacherConfig) -> Any:
        if config.strategy == "quantized":
            raise TeacherRefusedError(
                "quantized weights distort a policy's log-densities, and convolutions cannot be quantized; use "
                "the strategy 'resident', 'offload' or 'hybrid'"
            )
        if config.model is not None:
            return config.model
        try:
            return load_policy(str(config.model_name), getattr(self._policy, "encode", as_vectors))
        except ConfigError as error:
            raise TeacherRefusedError(str(error)) from error

    def _admit(self, candidate: Candidate[Policy]) -> Policy:
        teacher = candidate.model
        # Check again, because another teacher may have been added in the meantime.
        teacher_checks.check_size(teacher, self._loaded_bytes, self._limit, candidate.form)
        with preserve_state(self._policy), torch.no_grad():
            self._policy.eval()
            probe = self._policy.sample(self._conditions, 2)
            self._check_dimensions(candidate.config, teacher, probe)
            try:
                log_probs = teacher.step_log_probs(probe, repeat_conditions(self._conditions, 2))
            except Exception as error:
                raise TeacherRefusedError(f"it cannot score the policy's samples: {reason(error)}") from error
        if log_probs.shape != probe.mask.shape:
            raise TeacherRefusedError(
                f"it returned log-probabilities of shape {tuple(log_probs.shape)} for samples with the shape "
                f"{tuple(probe.mask.shape)}"
            )
        if not bool(torch.isfinite(log_probs[probe.mask > 0]).all()):
            raise TeacherRefusedError("its log-probabilities of the policy's samples are not finite; check its weights")
        self._active = self._active or candidate.name
        return teacher

    def _check_dimensions(self, config: TeacherConfig, teacher: Policy, probe: Samples) -> None:
        """Raise TeacherRefusedError if the dimensions in the config differ from the teacher's or the policy's."""
        sample, encode = probe.outputs[0], getattr(teacher, "encode", None)
        frame_dim = sample.shape[-1] if isinstance(sample, torch.Tensor) and sample.dim() else None
        condition_dim = encode(self._conditions).shape[-1] if encode is not None else None
        joint_dims = {"its frames": teacher.dims, "the policy's frames": frame_dim}
        intent_dims = {"its intents": teacher.intent_dim, "the conditions' intents": condition_dim}
        for field, configured_dim, actual_dims in (
            ("joint_dim", config.joint_dim, joint_dims),
            ("intent_dim", config.intent_dim, intent_dims),
        ):
            for source, dim in actual_dims.items():
                if configured_dim is not None and dim is not None and configured_dim != dim:
                    raise TeacherRefusedError(
                        f"{field}={configured_dim}, but {source} have {dim} numbers; set {field}={dim}"
                    )
