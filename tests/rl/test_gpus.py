"""Which GPUs the policy and the sampler get."""

import pytest

from launcher.schema.problems import LauncherError
from rl.gpus import GpuLayout, gpu_layout, gpu_variables, visible_gpus


@pytest.mark.parametrize(
    ("num_gpus", "ranks", "workers", "policy", "sampler", "shared"),
    [
        (0, 2, 1, "", "", False),  # a CPU
        (1, 1, 1, "0", "0", True),
        (2, 1, 1, "0", "1", False),
        (2, 2, 2, "01", "01", True),
        (3, 2, 2, "01", "01", True),  # one GPU to spare is not enough for two workers
        (4, 2, 2, "01", "23", False),
        (8, 4, 1, "0123", "4", False),
        (2, 0, 2, "", "01", False),  # nothing is trained
    ],
)
def test_the_sampler_has_gpus_of_its_own_where_there_are_enough(num_gpus, ranks, workers, policy, sampler, shared):
    visible = tuple(str(index) for index in range(num_gpus))
    layout = gpu_layout(visible, num_ranks=ranks, num_sampler_workers=workers)
    assert layout == GpuLayout(policy=tuple(policy), sampler=tuple(sampler))
    assert layout.shared is shared


def test_a_machine_with_too_few_gpus_is_named():
    with pytest.raises(LauncherError, match="needs 4 GPUs and this machine shows 2"):
        gpu_layout(("0", "1"), num_ranks=4, num_sampler_workers=1)


def test_a_users_own_choice_of_gpus_holds(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,GPU-7f")
    assert visible_gpus(3) == ("3", "5", "GPU-7f")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus(2) == ("0", "1")


def test_ray_leaves_the_choice_alone():
    assert gpu_variables(("2", "3")) == {"CUDA_VISIBLE_DEVICES": "2,3", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    assert gpu_variables(()) == {}
