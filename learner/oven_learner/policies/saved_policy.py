"""Load a policy from the folder that its `save` wrote."""

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
"""No other classes are created, whatever the folder says."""


def load_policy(folder: Path | str, encode: Callable[[Sequence[Any]], Tensor] = as_vectors) -> Policy:
    """Load a policy on the CPU, in evaluation mode. `encode` is a function and is not saved, so pass the original one.

    Uses no random generator, so that training in another thread is not affected. Raises ConfigError for a folder that
    is missing, damaged, of an unknown class or with weights of another shape.
    """
    folder = Path(folder)
    description = policy_folder.read(folder)
    for name, allowed in ((description.policy, POLICIES), (description.network, NETWORKS)):
        if name not in allowed:
            raise ConfigError(f"{folder / DESCRIPTION} names a {name!r}; only {' and '.join(allowed)} are loaded")
    try:
        with torch.device("meta"):
            network = NETWORKS[description.network](**description.network_arguments)
        policy_folder.fill(network, folder)
        if description.policy == "GaussianTrajectory":
            return GaussianTrajectory(network, encode, **description.arguments).eval()
        scheduler = diffusers().DDIMScheduler.from_pretrained(str(folder), subfolder=SCHEDULER, local_files_only=True)
        return DiffusionPolicy(network, scheduler, encode=encode, **description.arguments).eval()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{folder} has no policy that can be loaded: {reason(error)[:300]}; {REMEDY}") from error
