"""A policy from the folder that its `save` wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oven_core.errors import ConfigError, reason
from oven_learner.policies import policy_folder
from oven_learner.policies.diffusion import DiffusionPolicy, TemporalUNet, diffusers
from oven_learner.policies.gaussian import GaussianTrajectory, TrajectoryNetwork
from oven_learner.policies.policy import Policy, as_vectors
from oven_learner.policies.policy_folder import DESCRIPTION, REMEDY, SCHEDULER

POLICIES: Mapping[str, type[Policy]] = {"DiffusionPolicy": DiffusionPolicy, "GaussianTrajectory": GaussianTrajectory}
NETWORKS: Mapping[str, type[torch.nn.Module]] = {
    "TemporalUNet": TemporalUNet, "TrajectoryNetwork": TrajectoryNetwork,
}  # fmt: skip
"""Nothing else is made, whatever a folder says."""


def load_policy(folder: Path | str, encode: Callable[[Sequence[Any]], Tensor] = as_vectors) -> Policy:
    """The policy on the CPU, in evaluation mode. `encode`, a function, is in no folder: give the one that it was made
    with. No random generator is drawn from, so that a training beside it in another thread is not changed.

    Raises ConfigError for a folder that is missing, cut, of an unknown class or with weights of another shape.
    """
    folder = Path(folder)
    found = policy_folder.read(folder)
    for name, known in ((found.policy, POLICIES), (found.network, NETWORKS)):
        if name not in known:
            raise ConfigError(f"{folder / DESCRIPTION} names a {name!r}; only {' and '.join(known)} are loaded")
    try:
        with torch.device("meta"):
            network = NETWORKS[found.network](**found.network_arguments)
        policy_folder.fill(network, folder)
        if found.policy == "GaussianTrajectory":
            return GaussianTrajectory(network, encode, **found.arguments).eval()
        scheduler = diffusers().DDIMScheduler.from_pretrained(str(folder), subfolder=SCHEDULER, local_files_only=True)
        return DiffusionPolicy(network, scheduler, encode=encode, **found.arguments).eval()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{folder} holds no policy that can be made: {reason(error)[:300]}; {REMEDY}") from error
