"""One step of each optimizer type on a single weight, worked by hand."""

import pytest
import torch

from rl.optimizer import OptimizerSettings, build_optimizer, clip_gradients


def weight_after_one_step(kind, *, weight=2.0, gradient=0.5, decay=0.1, rate=0.01, eps=1e-5):
    parameter = torch.nn.Parameter(torch.tensor([weight]))
    settings = OptimizerSettings(
        optimizer_type=kind, weight_decay=decay, adam_beta1=0.9, adam_beta2=0.999, adam_eps=eps
    )
    optimizer = build_optimizer([parameter, torch.nn.Parameter(torch.ones(1), requires_grad=False)], settings)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]
    optimizer.param_groups[0]["lr"] = rate
    parameter.grad = torch.tensor([gradient])
    optimizer.step()
    return parameter.item()


@pytest.mark.parametrize("schedule", ["cosine_annealing", "flat_lr"])
def test_adamw_decays_the_weight_apart_from_the_gradient(schedule):
    # 2 * (1 - 0.01 * 0.1) - 0.01 * 0.5 / (0.5 + 1e-5)
    assert weight_after_one_step(f"adamw_with_{schedule}") == pytest.approx(1.998 - 0.01 * 0.5 / 0.50001)


@pytest.mark.parametrize("schedule", ["cosine_annealing", "flat_lr"])
def test_adam_adds_the_decay_to_the_gradient(schedule):
    # gradient 0.5 + 0.1 * 2 = 0.7; its sign is all that the first step keeps
    assert weight_after_one_step(f"adam_with_{schedule}") == pytest.approx(2 - 0.01 * 0.7 / 0.70001)


def test_eps_damps_small_gradients():
    moved = 2.0 - weight_after_one_step("adamw_with_flat_lr", gradient=1e-5, decay=0.0)
    assert moved == pytest.approx(0.005, rel=1e-3)  # 0.01 * 1e-5 / (1e-5 + 1e-5)


def test_betas_are_the_settings():
    settings = OptimizerSettings(
        optimizer_type="adam_with_flat_lr", weight_decay=0.0, adam_beta1=0.5, adam_beta2=0.7, adam_eps=1e-8
    )
    (group,) = build_optimizer([torch.nn.Parameter(torch.ones(1))], settings).param_groups
    assert (group["betas"], group["eps"], group["lr"]) == ((0.5, 0.7), 1e-8, 0.0)


def test_gradients_are_scaled_down_to_the_norm_and_never_up() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (1, 2, 3)]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0]), torch.tensor([0.0, 4.0])
    assert clip_gradients(parameters, 0) == 5.0
    assert clip_gradients(parameters, 10.0) == 5.0
    assert parameters[1].grad.tolist() == [0.0, 4.0]
    assert clip_gradients(parameters, 1.0) == 5.0
    assert parameters[0].grad.tolist() == pytest.approx([0.6])
    assert parameters[1].grad.tolist() == pytest.approx([0.0, 0.8])
