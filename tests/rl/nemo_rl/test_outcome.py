"""The cause of a failure, found in what a script printed."""

import pytest

from rl.nemo_rl.outcome import failure_cause, nothing_trained, plain_lines


def test_colours_and_ray_prefixes_are_dropped():
    assert plain_lines("\x1b[36m(NemoGym pid=12, ip=10.0.0.1)\x1b[0m hello\n(autoscaler +3s) x\n") == [
        "hello",
        "(autoscaler +3s) x",
    ]


def test_every_refused_key_is_named():
    output = """
Traceback (most recent call last):
pydantic_core._pydantic_core.ValidationError: 2 validation errors for MasterConfig
policy.generation.val_temperature
  Field required [type=missing, input_value={'a': 1}, input_type=dict]
    For further information visit https://errors.pydantic.dev
grpo.max_val_samples
  Input should be None [type=none_required, input_value=4, input_type=int]
"""
    cause = failure_cause(plain_lines(output), exit_status=1)
    assert "policy.generation.val_temperature: Field required" in cause
    assert "grpo.max_val_samples: Input should be None" in cause


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "lower training.train_mb_tokens"),
        ("OSError: [Errno 28] No space left on device", "a disk is full"),
        ("error: The lockfile at `uv.lock` needs to be updated, but `--locked` was provided.", "check out a release"),
        ("  x No solution found when resolving dependencies:", "wheels/ and requirements.txt"),
        ("  hint: Packages were unavailable because the network was disabled.", "a package with vendored wheels"),
        ("ray.exceptions.ActorDiedError: The actor died", "a worker process died"),
    ],
)
def test_known_causes_come_with_a_fix(output: str, expected: str):
    assert expected in failure_cause(plain_lines(output), exit_status=1)


def test_an_unknown_cause_is_the_last_exception_not_the_last_line():
    output = "Traceback\nValueError: bad rows\n\nDuring shutdown:\nclosing"
    assert failure_cause(plain_lines(output), exit_status=2) == "NeMo RL ended with status 2: ValueError: bad rows"


def test_a_signal_and_silence():
    assert failure_cause([], exit_status=-9) == "NeMo RL was ended by signal 9: it printed nothing"


def test_too_few_rows_are_counted():
    assert "3 rows make 0 batches of 4" in nothing_trained(num_rows=3, num_prompts_per_step=4)
