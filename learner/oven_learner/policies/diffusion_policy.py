"""Diffusion models as policies, as in DDPO (Black et al. 2023, arXiv 2305.13301).

The denoising chain from noise to sample is treated as a decision process. Given x_t and the intent (the encoded
condition), x_{t−1} is Gaussian. Its mean is the scheduler's step, and its standard deviation is η σ_t (Song et al.
2020, arXiv 2010.02502, eq. 16). So each denoising step has an exact log-density, which is differentiable through the
network's prediction. The coordinates of x_{t−1} are independent. Each coordinate is a step of the GRPO objective with
its own ratio, as in gaussian_policy.py. DDPO uses one ratio per denoising step. A last step without noise is masked.

The KL to a teacher is computed over the chain, so the teacher needs the same noise schedule, steps and η. The density
of the final trajectory alone is unknown, so there is no KL to or from a Gaussian policy. This module needs the extra
`diffusion`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_learner.policies.gaussian_policy import normal_log_density
from oven_learner.policies.policy import Policy, Samples, as_vectors, to_network_device


def diffusers() -> Any:
    """Import and return diffusers. Raises ConfigError with the install command if it is missing."""
    try:
        import diffusers
    except ImportError as error:
        raise ConfigError(
            f'diffusion policies need diffusers ({error}): `pip install "oven-controller[diffusion]"`'
        ) from error
    return diffusers


class DiffusionPolicy(Policy):
    """A policy that samples trajectories (F frames × D dimensions) in `steps` denoising steps. `network(x, t, intent)`
    predicts the scheduler's `prediction_type` for x (B, F, D), t (B,) int64 and the intent (B, I). The scheduler is
    diffusers' DDIM with `eta` above 0, or DDPM, which equals DDIM at η = 1. Raises ConfigError for other schedulers,
    and if no step would be noisy."""

    dims: int

    def __init__(
        self,
        network: torch.nn.Module,
        scheduler: Any,
        *,
        frames: int,
        dims: int,
        steps: int = 10,
        eta: float = 1.0,
        encode: Callable[[Sequence[Any]], Tensor] = as_vectors,
    ) -> None:
        super().__init__()
        self.scheduler = _as_ddim(scheduler, eta)
        max_steps = self.scheduler.config.num_train_timesteps
        if not 2 <= steps <= max_steps:
            raise ConfigError(f"steps={steps} is invalid; expected 2 to {max_steps}, the scheduler's training steps")
        self.scheduler.set_timesteps(steps)
        self.network, self.encode = network, encode
        self.frames, self.dims, self.steps, self.eta = frames, dims, steps, eta
        self.saved_arguments = {"frames": frames, "dims": dims, "steps": steps, "eta": eta}
        self.intent_dim = getattr(network, "intent_dim", None)
        self._times = [int(time) for time in self.scheduler.timesteps]
        self._step_stds = [eta * self._noise_std(time) for time in self._times]

    def sample(self, conditions: Sequence[Any], n: int) -> Samples:
        """Sample `n` trajectories (F, D) per condition. The samples include the denoising chains for later scoring."""
        with torch.no_grad():
            intents = self._encode(conditions).repeat_interleave(n, dim=0)
            x = torch.randn(len(intents), self.frames, self.dims).to(intents)
            chain = [x]
            for step, std in enumerate(self._step_stds):
                x = self._predict_mean(step, x, self._predict(step, x, intents))
                x = x + std * torch.randn_like(x) if std else x
                chain.append(x)
        deviations = torch.tensor(self._step_stds, device=x.device)
        mask = (deviations > 0).float().repeat_interleave(self.frames * self.dims).expand(len(x), -1).clone()
        tensors = {"chain": torch.stack(chain, 1), "deviations": deviations.expand(len(x), -1).clone()}
        return Samples(tensors, mask, list(x.cpu()))

    def step_log_probs(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """Return the log-density of each coordinate in each denoising step, (B, steps · F · D). It is 0 for steps
        without noise. Raises ConfigError for samples from another kind of policy, of another shape, or with other
        noise."""
        if "chain" not in samples.tensors:
            raise ConfigError(
                "these samples have no denoising chain, but a diffusion policy only scores whole chains; use it only "
                "as a teacher of diffusion policies"
            )
        chain = samples.tensors["chain"]  # (B, steps + 1, F, D)
        if chain.shape[1:] != (self.steps + 1, self.frames, self.dims):
            raise ConfigError(
                f"the policy denoises {self.frames} × {self.dims} numbers in {self.steps} steps, but these samples "
                f"have {chain.shape[2]} × {chain.shape[3]} numbers and {chain.shape[1] - 1} steps; use samples with "
                "the policy's sizes"
            )
        deviations = samples.tensors["deviations"]  # (B, steps)
        if not torch.allclose(deviations, deviations.new_tensor(self._step_stds), rtol=1e-5, atol=0.0):
            raise ConfigError(
                "these samples have different noise; use the same noise schedule and eta for both policies"
            )
        intents, log_probs = self._encode(conditions), []
        for step, std in enumerate(self._step_stds):
            if not std:
                log_probs.append(torch.zeros_like(chain[:, step]).flatten(1))
                continue
            x, next_x = chain[:, step], chain[:, step + 1]
            mean = self._predict_mean(step, x, self._predict(step, x, intents))
            log_probs.append(normal_log_density(next_x, mean, mean.new_tensor(math.log(std))).flatten(1))
        return torch.cat(log_probs, 1)

    def denoising_loss(self, x: Tensor, conditions: Sequence[Any]) -> Tensor:
        """Return the mean squared error of predictions for trajectories x (B, F, D) with random levels of noise, as a
        scalar. Diffusion models are pretrained with this loss before they are trained on rewards."""
        noise = torch.randn_like(x)
        times = torch.randint(self.scheduler.config.num_train_timesteps, (len(x),), device=x.device)
        noisy = self.scheduler.add_noise(x, noise, times)
        prediction_type = self.scheduler.config.prediction_type
        if prediction_type == "epsilon":
            target = noise
        elif prediction_type == "sample":
            target = x
        else:
            target = self.scheduler.get_velocity(x, noise, times)
        return torch.nn.functional.mse_loss(self.network(noisy, times, self._encode(conditions)), target)

    def _predict(self, step: int, x: Tensor, intents: Tensor) -> Tensor:
        times = torch.full((len(x),), self._times[step], device=x.device)
        prediction: Tensor = self.network(x, times, intents)
        if prediction.shape != x.shape:
            raise ConfigError(
                f"the network returned the shape {tuple(prediction.shape)}, but its input x has the shape "
                f"{tuple(x.shape)}; return the shape of x"
            )
        return prediction

    def _predict_mean(self, step: int, x: Tensor, prediction: Tensor) -> Tensor:
        """Return the mean of the next x, which is the scheduler's step with zero noise. If the scheduler clips its
        estimate of x_0, the step uses the clipped value, like DDPM's posterior mean."""
        clips = bool(self.scheduler.config.clip_sample or self.scheduler.config.thresholding)
        options = {"eta": self.eta, "use_clipped_model_output": clips, "variance_noise": torch.zeros_like(x)}
        mean: Tensor = self.scheduler.step(prediction, self._times[step], x, **options).prev_sample
        return mean

    def _noise_std(self, time: int) -> float:
        """Return σ_t at η = 1, the standard deviation of the noise that the DDIM step at `time` adds."""
        next_time = time - self.scheduler.config.num_train_timesteps // self.steps
        alphas = self.scheduler.alphas_cumprod
        alpha = float(alphas[time])
        next_alpha = float(alphas[next_time] if next_time >= 0 else self.scheduler.final_alpha_cumprod)
        return math.sqrt(max(0.0, (1 - next_alpha) / (1 - alpha) * (1 - alpha / next_alpha)))

    def _encode(self, conditions: Sequence[Any]) -> Tensor:
        return to_network_device(self.encode(conditions), self.network)


class TemporalUNet(torch.nn.Module):
    """A 1-D UNet over frames from diffusers, as in the planner Diffuser (Janner et al. 2022, arXiv 2205.09991). The
    intent is appended to each frame as extra channels. `frames` must be divisible by 4."""

    def __init__(self, intent_dim: int, frames: int, dims: int, *, channels: tuple[int, int] = (32, 64)) -> None:
        super().__init__()
        if frames % 4:
            raise ConfigError(f"frames={frames} is invalid; the UNet halves it twice, so use a multiple of 4")
        self.intent_dim = intent_dim
        self.arguments = {"intent_dim": intent_dim, "frames": frames, "dims": dims, "channels": list(channels)}
        """Constructor arguments, for saving."""
        self.intent = torch.nn.Linear(intent_dim, channels[0])
        self.unet = diffusers().UNet1DModel(
            sample_size=frames,
            in_channels=dims + channels[0],
            out_channels=dims,
            time_embedding_type="positional",
            use_timestep_embedding=True,
            down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
            mid_block_type="MidResTemporalBlock1D",
            up_block_types=("UpResnetBlock1D", "UpResnetBlock1D"),
            out_block_type="OutConv1DBlock",
            block_out_channels=channels,
            norm_num_groups=8,
            layers_per_block=1,
            act_fn="mish",
        )

    def forward(self, x: Tensor, time: Tensor, intent: Tensor) -> Tensor:
        """Return the prediction (B, F, D) for x (B, F, D), time (B,) and intent (B, I)."""
        inputs = torch.cat([x, self.intent(intent)[:, None].expand(-1, x.shape[1], -1)], dim=-1)
        output: Tensor = self.unet(inputs.transpose(1, 2), time).sample
        return output.transpose(1, 2)


def _as_ddim(scheduler: Any, eta: float) -> Any:
    """Convert the user's scheduler to DDIM. Raises ConfigError if this is not possible."""
    library, name = diffusers(), type(scheduler).__name__
    if not isinstance(scheduler, library.DDPMScheduler | library.DDIMScheduler):
        raise ConfigError(f"{name} has no known density per step; use diffusers' DDIMScheduler or DDPMScheduler")
    variance_type = getattr(scheduler.config, "variance_type", None)
    equals_ddim = eta == 1.0 and variance_type in ("fixed_small", "fixed_small_log")
    if isinstance(scheduler, library.DDPMScheduler) and not equals_ddim:
        raise ConfigError(
            f"DDPM with eta={eta:g} and variance_type={variance_type!r} is not supported; use eta=1 and 'fixed_small', "
            "or a DDIMScheduler"
        )
    if not 0 < eta <= 1:
        raise ConfigError(
            f"eta={eta:g} is invalid; at 0 a denoising step has no density, and above 1 it has no deviation; expected "
            "0 < eta <= 1"
        )
    return library.DDIMScheduler.from_config(scheduler.config)
