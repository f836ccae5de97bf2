"""Seconds from nothing to all NeMo Gym servers ready, for an environment that was started before, and where they go.

    .venv/bin/python benchmarks/gym_start.py [--package recipes/demo/environment] [--starts 3]

Prints, for the median start: when each phase began; the processor time of every process until then, Gym's Ray's
included; and, from a start of its own because measuring costs time, what each process imported.
"""

import argparse
import asyncio
import os
import platform
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gym_bridge.host_process import HOST
from gym_bridge.install import GymEnvironment, gym_environment
from gym_bridge.package import PolicyEndpoint
from gym_bridge.servers import GymServers
from gym_bridge.session import session_processes
from gym_bridge.versions import DEFAULT_GYM_VERSION, GYM_VERSIONS, gym_version
from launcher.environment.package import load_package
from launcher.schema.manifest import Package
from launcher.schema.sampling import Sampling
from rl.model_files import cache_folder

BOUND_S = 15.0
"""What a second start may take."""
PROFILE = "PYTHONPROFILEIMPORTTIME"
NUM_PACKAGES = 6
NOWHERE = PolicyEndpoint(base_url="http://127.0.0.1:9/v1", api_key="none", model="policy")
SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=64)


@dataclass(frozen=True, kw_only=True)
class Start:
    phases: list[tuple[float, str]]
    """Seconds since the start, and what began then."""
    ready_s: float
    stop_s: float
    processor_s: dict[str, float]
    """Process -> seconds of processor time when all servers answered."""
    imports: dict[str, Counter[str]]
    """Process -> top-level package -> seconds of importing; empty unless profiled."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, default=Path("recipes/demo/environment"), help="the demo's")
    parser.add_argument("--gym", choices=list(GYM_VERSIONS), default=DEFAULT_GYM_VERSION)
    parser.add_argument("--starts", type=int, default=3, help="measured, after one that fills the caches (3)")
    options = parser.parse_args()
    package = load_package(options.package)
    starts, profiled = asyncio.run(measure(package, options.gym, options.starts))
    print(f"{platform.machine()}, {os.cpu_count()} cores; NeMo Gym {options.gym}, {package.manifest.metadata.name}")
    seconds = [start.ready_s for start in starts]
    print(f"  all servers ready after {', '.join(f'{each:.1f}' for each in seconds)} s (bound {BOUND_S:g} s)")
    median = min(starts, key=lambda start: abs(start.ready_s - statistics.median(seconds)))
    print(f"the start of {median.ready_s:.1f} s, its end {median.stop_s:.1f} s:")
    for at, what in median.phases:
        print(f"  {at:6.2f} s  {what}")
    print(f"processor time until then, {sum(median.processor_s.values()):.1f} s:")
    for name, used in sorted(median.processor_s.items(), key=lambda item: -item[1]):
        print(f"  {used:6.2f} s  {name}")
    print("imports, measured in a start of its own:")
    for name, packages in profiled.imports.items():
        heaviest = ", ".join(f"{package} {used:.2f}" for package, used in packages.most_common(NUM_PACKAGES))
        print(f"  {packages.total():6.2f} s  {name}: {heaviest}")


async def measure(package: Package, version: str, num_starts: int) -> tuple[list[Start], Start]:
    """The measured starts, and one with imports profiled."""
    cache = cache_folder()
    gym = await gym_environment(gym_version(version), cache=cache, timeout_s=900, on_progress=print)
    await one_start(package, gym, cache)
    starts = [await one_start(package, gym, cache) for _ in range(num_starts)]
    os.environ[PROFILE] = "1"
    return starts, await one_start(package, gym, cache)


async def one_start(package: Package, gym: GymEnvironment, cache: Path) -> Start:
    phases: list[tuple[float, str]] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        servers = await GymServers.start(
            package, NOWHERE, gym=gym, sampling=SAMPLING, cache=cache, log_folder=Path(folder),
            on_progress=lambda line: phases.append((time.monotonic() - started, line)), pass_variables=[PROFILE],
        )  # fmt: skip
        ready_s = time.monotonic() - started
        names = {pid: name for name, pid in servers.pids.items()}
        processes = session_processes(servers.pids[HOST])
        processor_s = {f"{names.get(pid) or command(pid)} ({pid})": processor_time(pid) for pid in processes}
        stopping = time.monotonic()
        await servers.close()
        stop_s = time.monotonic() - stopping
        imports = {log.stem: imported((log.read_text(errors="replace")).splitlines()) for log in logs(folder)}
    return Start(phases=phases, ready_s=ready_s, stop_s=stop_s, processor_s=processor_s, imports=imports)


def logs(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.log"))


def imported(lines: Sequence[str]) -> Counter[str]:
    """Seconds of importing by top-level package, from Python's own import profile."""
    found: Counter[str] = Counter()
    for line in lines:
        if match := re.search(r"import time:\s+(\d+) \|\s+\d+ \| *([\w.]+)", line):
            found[match[2].partition(".")[0]] += int(match[1]) / 1e6  # type: ignore[assignment]
    return found


def command(pid: int) -> str:
    """What a process of Ray is, in a word or two."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    script = next((word for word in words if word.endswith(".py")), words[0])
    return f"Ray's {Path(script).stem.removeprefix('ray::')}"


def processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
