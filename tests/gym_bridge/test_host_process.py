"""Gym's host process as the launcher sees it, with a stand-in that says what a test wants."""

import asyncio
import sys
from pathlib import Path

import pytest

from gym_bridge.host import Plan, Refused, check_ports
from gym_bridge.host_process import MOST_LAST_BYTES, HostProcess
from gym_bridge.install import GymEnvironment
from launcher.schema.problems import RunFailed


def stand_in(root: Path, script: str) -> GymEnvironment:
    """A Gym whose Python runs ``script``, with ``reports`` open for writing, instead of the host."""
    python = root / "bin" / "python"
    python.parent.mkdir(parents=True)
    body = root / "host.py"
    body.write_text(f"import json, os, sys\nreports = os.fdopen(int(sys.argv[3]), 'w')\n{script}\n")
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {body} "$@"\n')
    python.chmod(0o755)
    return GymEnvironment(version="0.4.0", root=root, base_python=python)


async def failure_of(gym: GymEnvironment, logs: Path, said: list[str]) -> str:
    host = await HostProcess.spawn(gym, log_folder=logs, pass_variables=[], on_progress=said.append)
    try:
        with pytest.raises(RunFailed) as raised:
            await host.expect("ready", within_s=20.0, doing="starting")
        return str(raised.value)
    finally:
        await host.end(within_s=5.0)


def test_a_refusal_may_be_long(tmp_path: Path) -> None:
    gym = stand_in(tmp_path / "gym", "print(json.dumps({'event': 'refused', 'message': 'x' * 300_000}), file=reports)")
    assert len(asyncio.run(failure_of(gym, tmp_path / "logs", []))) > 300_000


def test_what_takes_time_is_said(tmp_path: Path) -> None:
    reports = [
        {"event": "doing", "what": "importing"},
        {"event": "started", "silent": ["a", "b"]},
        {"event": "waiting", "silent": []},
    ]
    script = "".join(f"print(json.dumps({report}), file=reports)\n" for report in reports)
    said: list[str] = []
    failure = asyncio.run(failure_of(stand_in(tmp_path / "gym", script), tmp_path / "logs", said))
    assert said == ["importing", "waiting for a, b", "all servers answer"]
    assert failure.startswith("NeMo Gym's host process ended with status 0")


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "mine.log").write_text("y" * 3 * MOST_LAST_BYTES + "\nlast words\n")
    report = "print(json.dumps({'event': 'died', 'server': 'mine', 'pid': 7, 'status': -9}), file=reports)"
    failure = asyncio.run(failure_of(stand_in(tmp_path / "gym", report), logs, []))
    assert failure.startswith("NeMo Gym server mine (pid 7) was killed by SIGKILL\nits last output")
    assert failure.endswith("  last words")
    assert len(failure) < 2 * MOST_LAST_BYTES


def test_two_servers_on_one_port_are_refused() -> None:
    plans = [
        Plan(
            name=name, key="resources_servers/x", folder="", built_in=False, entrypoint="app.py", host="127.0.0.1",
            port=0,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    with pytest.raises(Refused, match=r"server b cannot listen on 127.0.0.1:0, where server a is to listen"):
        check_ports(plans, head_port=65_535)
