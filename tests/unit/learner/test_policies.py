"""Policies: what they sample, and what its log-probability is, with its gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY
from tests.support.policies import KINDS, conditions, gradient, made
from torch.distributions import Normal

from oven_learner.policies import DiffusionPolicy, TemporalUNet
from oven_learner.policies.policy import repeat_conditions

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def sampled(policy: Any, kind: str, n: int = 3) -> tuple[Any, list[Any]]:
    torch.manual_seed(5)
    return policy.sample(conditions(kind), n), repeat_conditions(conditions(kind), n)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_the_batch_order(kind: str) -> None:
    policy = made(kind)
    samples, rows = sampled(policy, kind)
    whole = policy.log_prob(samples, rows)
    assert whole.shape == (9,) and bool(whole.isfinite().all()) and len(samples.outputs) == 9
    order = torch.tensor([7, 0, 4])
    part = policy.log_prob(samples.rows(order), [rows[index] for index in order.tolist()])
    torch.testing.assert_close(part, whole[order], rtol=1e-5, atol=1e-5)
    again, _ = sampled(policy, kind)
    assert torch.equal(again.mask, samples.mask)
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in samples.tensors.items())


def test_token_probabilities_match_sampling() -> None:
    policy: Any = made("causal")
    samples, rows = sampled(policy, "causal")
    log_probabilities = policy.step_log_probs(samples, rows)
    for row, prompt in enumerate(rows):
        ids = list(policy.tokenizer(prompt)["input_ids"])
        for step in range(int(samples.mask[row].sum())):
            token = int(samples.tensors["completion_ids"][row, step])
            alone = policy.model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            assert float(alone[token].detach()) == pytest.approx(float(log_probabilities[row, step].detach()), abs=1e-5)
            ids.append(token)


def test_tokens_after_the_end_token_do_not_count() -> None:
    policy: Any = made("causal")
    with torch.no_grad():
        policy.model.lm_head.weight[policy.tokenizer.eos_token_id] += 0.5
    samples, _ = sampled(policy, "causal", n=20)
    ids, end = samples.tensors["completion_ids"], policy.tokenizer.eos_token_id
    lengths = samples.mask.sum(1).int().tolist()
    assert len(set(lengths)) > 1
    for row, length in zip(ids.tolist(), lengths, strict=True):
        assert end not in row[: length - 1] and (length == 4 or row[length - 1] == end)


def test_a_trajectory_has_the_density_of_its_gaussians() -> None:
    policy: Any = made("gaussian")
    samples, rows = sampled(policy, "gaussian")
    mean, log_deviation = policy.distribution(rows)
    wanted = Normal(mean, log_deviation.exp()).log_prob(samples.tensors["trajectory"]).sum((1, 2))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(policy.log_prob(samples, rows), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("library_scheduler", ["DDIMScheduler", "DDPMScheduler"])
@pytest.mark.parametrize("clip", [False, True])
def test_denoising_matches_the_scheduler(library_scheduler: str, clip: bool) -> None:
    """Every step of it is the scheduler's mean and noise of known size, by the scheduler's own `step`."""
    library = pytest.importorskip("diffusers")
    scheduler = getattr(library, library_scheduler)(num_train_timesteps=40, clip_sample=clip)
    torch.manual_seed(1)
    policy = DiffusionPolicy(TemporalUNet(3, 4, 2, channels=(8, 16)), scheduler, frames=4, dims=2, steps=4).eval()
    samples, rows = sampled(policy, "diffusion")
    scheduler.set_timesteps(4)
    chain, intents = samples.tensors["chain"], torch.tensor(rows)
    density = torch.zeros(len(rows))
    with torch.no_grad():
        for step, time in enumerate(scheduler.timesteps):
            predicted = policy.network(chain[:, step], torch.full((len(rows),), int(time)), intents)
            drawn = []
            for _ in range(2):  # the same noise to both, and to a chain that begins elsewhere
                options: dict[str, Any] = {"generator": torch.Generator().manual_seed(9)}
                if library_scheduler == "DDIMScheduler":
                    options |= {"eta": 1.0, "use_clipped_model_output": clip}
                drawn.append(scheduler.step(predicted, time, chain[:, step], **options).prev_sample)
            noise = torch.randn(predicted.shape, generator=torch.Generator().manual_seed(9))
            mean = policy._predict_mean(step, chain[:, step], predicted)  # noqa: SLF001
            deviation = policy._step_stds[step]  # noqa: SLF001
            torch.testing.assert_close(drawn[0], mean + deviation * noise, rtol=1e-4, atol=1e-4)
            if deviation:
                density += Normal(mean, deviation).log_prob(chain[:, step + 1]).sum((1, 2))  # type: ignore[no-untyped-call]
            else:
                torch.testing.assert_close(chain[:, step + 1], mean)
    torch.testing.assert_close(policy.log_prob(samples, rows).detach(), density, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("kind", "h"), [("causal", 1e-4), ("gaussian", 1e-4), ("diffusion", 1e-7)])
def test_the_gradient_matches_finite_differences(kind: str, h: float) -> None:
    """Along the gradient; Llama normalises in float32 whatever its weights are, and a UNet of 16 channels is curved."""
    policy = made(kind).double()
    samples, rows = sampled(policy, kind)
    policy.log_prob(samples, rows).sum().backward()  # type: ignore[no-untyped-call]
    slope, sums = float(gradient(policy).norm()), []
    for sign in (1, -2):
        with torch.no_grad():
            for parameter in policy.parameters():
                if parameter.grad is not None:
                    parameter.add_(sign * h / slope * parameter.grad)
            sums.append(float(policy.log_prob(samples, rows).sum()))
    assert (sums[0] - sums[1]) / (2 * h) == pytest.approx(slope, rel=1e-3)


def test_the_denoising_loss_falls_on_clips() -> None:
    policy: Any = made("diffusion")
    clips = torch.linspace(-1, 1, 4)[None, :, None].expand(24, 4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), 0.003)
    torch.manual_seed(0)
    losses = []
    for _ in range(120):
        optimizer.zero_grad()
        loss = policy.denoising_loss(clips, conditions("diffusion") * 8)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])
