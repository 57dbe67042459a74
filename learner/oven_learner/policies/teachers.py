"""The teachers of a policy: frozen policies of its kind, one of which the KL term pulls towards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from oven_controller.errors import ConfigError, TeacherRefusedError, UnknownNameError, reason
from oven_learner.policies.base import Policy, repeated
from oven_learner.teachers import LIMIT_BYTES, TeacherConfig, checks
from oven_learner.trials.random_state import undisturbed


def policy_of(config: TeacherConfig) -> Policy:
    """The policy in memory that a config holds. Raises ConfigError where it holds none, or one whose trajectories are
    of other dimensions."""
    if not isinstance(config.model, Policy):
        raise ConfigError(
            f"teacher {config.name!r} has to be a Policy in memory, as model=: what a folder holds of one, only the "
            "script that wrote it knows"
        )
    dims = getattr(config.model, "dims", None)
    if config.joint_dim is not None and dims is not None and dims != config.joint_dim:
        raise ConfigError(f"teacher {config.name!r} makes {dims} coordinates a frame, and joint_dim={config.joint_dim}")
    return config.model


class PolicyTeachers:
    """By name, weakest first. All stay loaded, so that a swap is an assignment. The first that is added is active."""

    def __init__(self, policy: Policy, conditions: Sequence[Any], *, limit_bytes: int = LIMIT_BYTES) -> None:
        """`conditions`: the first is what a new teacher is tried with. `limit_bytes`: of all together."""
        self._policy, self._limit = policy, limit_bytes
        self._conditions = conditions[:1]
        self._models: dict[str, Policy] = {}
        self._refused: dict[str, str] = {}
        self._order: list[str] = []
        self._active = ""

    def add(self, name: str, teacher: Policy) -> None:
        """Check that `teacher` can score the policy's samples, freeze it, and put it on the policy's device.

        Raises TeacherRefusedError with the reason; the name is then known, and asking for it later is turned down.
        """
        if not name or name in self._order:
            raise ConfigError(f"a teacher named {name!r} is there already" if name else "a teacher needs a name")
        self._order.append(name)
        try:
            self._models[name] = self._admitted(teacher)
        except TeacherRefusedError as error:
            self._refused[name] = f"teacher {name!r} is refused: {error}"
            raise TeacherRefusedError(self._refused[name]) from error
        self._active = self._active or name

    def register(self, config: TeacherConfig) -> None:
        """`add` the policy that a config holds. Raises as `policy_of` does."""
        self.add(config.name, policy_of(config))

    @property
    def names(self) -> tuple[str, ...]:
        """Weakest first; those that were refused keep their place."""
        return tuple(self._order)

    @property
    def refused(self) -> Mapping[str, str]:
        """Name → why."""
        return MappingProxyType(self._refused)

    def __len__(self) -> int:
        """How many are loaded."""
        return len(self._models)

    def __getitem__(self, name: str) -> Policy:
        """Raises UnknownNameError, or TeacherRefusedError with the reason."""
        if name in self._refused:
            raise TeacherRefusedError(self._refused[name])
        if name not in self._models:
            raise UnknownNameError("teacher", name, self._models)
        return self._models[name]

    @property
    def active(self) -> str:
        """Name of the one that the KL term pulls towards; empty where there is none."""
        return self._active

    def swap(self, name: str) -> None:
        """Make `name` the one that the next step's loss pulls towards. Raises as `teachers[name]` does."""
        self[name]
        self._active = name

    def _admitted(self, teacher: Policy) -> Policy:
        checks.check_own_weights(self._policy, teacher)
        checks.check_size(teacher, sum(checks.size_bytes(one) for one in self._models.values()), self._limit)
        teacher = teacher.to(next(self._policy.parameters()).device).eval().requires_grad_(False)
        with undisturbed(self._policy), torch.no_grad():
            self._policy.eval()
            probe = self._policy.sample(self._conditions, 2)
            try:
                said = teacher.step_log_probs(probe, repeated(self._conditions, 2))
            except Exception as error:
                raise TeacherRefusedError(f"it cannot score the policy's samples: {reason(error)}") from error
        if said.shape != probe.mask.shape:
            raise TeacherRefusedError(
                f"it scores the policy's samples in {tuple(said.shape)} steps, and they have {tuple(probe.mask.shape)}"
            )
        if not bool(torch.isfinite(said[probe.mask > 0]).all()):
            raise TeacherRefusedError(
                "it gives the policy's samples a log-probability that is not finite; check its weights"
            )
        return teacher
