"""Environment variables that are handed on, and the end of whole sessions."""

import subprocess
import sys
import time
from pathlib import Path

from gym_bridge.session import kill_session, session_processes
from gym_bridge.variables import gym_variables, install_variables

OURS = {
    "PATH": "/bin", "HOME": "/h", "UV_INDEX_URL": "http://index", "UV_OFFLINE": "",
    "HF_TOKEN": "s", "WANDB_API_KEY": "s", "RAY_ADDRESS": "auto",
    "RAY_JOB_ID": "1", "AWS_SECRET_ACCESS_KEY": "s", "OPENAI_API_KEY": "s", "VIRTUAL_ENV": "/v",
    "HTTPS_PROXY": "http://proxy", "NO_PROXY": "intranet", "PYTHONPATH": "/x",
}  # fmt: skip


def test_uv_gets_what_it_needs_and_nothing_empty() -> None:
    assert install_variables(OURS) == {
        "PATH": "/bin", "HOME": "/h", "UV_INDEX_URL": "http://index", "HTTPS_PROXY": "http://proxy",
        "NO_PROXY": "intranet", "UV_PYTHON_DOWNLOADS": "never",
    }  # fmt: skip


def test_gym_gets_no_secret_and_no_address_of_ours() -> None:
    variables = gym_variables(OURS, work=Path("/w"), ray_token="t", mark="M=1", bytecode=Path("/b"))
    assert not {"HF_TOKEN", "WANDB_API_KEY", "RAY_ADDRESS", "RAY_JOB_ID", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY",
                "VIRTUAL_ENV", "PYTHONPATH", "UV_INDEX_URL"} & set(variables)  # fmt: skip
    assert (variables["RAY_AUTH_MODE"], variables["RAY_AUTH_TOKEN"], variables["M"]) == ("token", "t", "1")
    assert variables["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert variables["HF_HOME"] == "/h/.cache/huggingface"
    assert (variables["TMPDIR"], variables["PYTHONPYCACHEPREFIX"]) == ("/w", "/b")


def test_a_package_gets_the_variables_that_it_is_granted() -> None:
    variables = gym_variables(
        OURS, work=Path("/w"), ray_token="t", mark="M=1", bytecode=Path("/b"), extra=["OPENAI_API_KEY", "NOT_SET"]
    )
    assert variables["OPENAI_API_KEY"] == "s"
    assert "NOT_SET" not in variables


def test_a_session_ends_with_its_grandchildren_and_with_those_that_left_it() -> None:
    tree = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
print("started", flush=True)
time.sleep(60)
"""
    mark = f"SESSION_TEST={time.monotonic_ns()}"
    name, value = mark.split("=")
    with subprocess.Popen(
        [sys.executable, "-c", tree], env={name: value}, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        leader.stdout.readline()
        assert len(session_processes(leader.pid)) == 2
        assert len(session_processes(leader.pid, mark=mark)) == 3
        assert kill_session(leader.pid, mark=mark) == []
        assert session_processes(leader.pid, mark=mark) == []


def test_a_session_that_is_gone_is_no_error() -> None:
    assert kill_session(2**22 + 1) == []
