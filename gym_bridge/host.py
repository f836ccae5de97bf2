# mypy: disable-error-code="import-not-found"
"""NeMo Gym's own process: parses a package's config, runs Gym's Ray and the package's servers, ends when we end.

It runs under Gym's Python, imports only the standard library and nemo_gym, and is the only file that knows nemo_gym.

    launcher --stdin-->  {"config", "agent_settings", "package", "log_folder"}  then {"environments"}
                         end of file: stop
    launcher <--pipe--   {"event": "servers"} or {"event": "refused"}, then "started", "waiting", "ready", "died";
                         "doing" says in between what takes time

Servers are started here and not by Gym's RunHelper. That one starts each through a shell, which shows the policy's API
key in the process list and outlives its server; it looks every three seconds, and all servers share one log. What a
server is given is the same: its folder, its environment, NEMO_GYM_CONFIG_DICT and NEMO_GYM_CONFIG_PATH.
"""

import contextlib
import http.client
import io
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

POLL_S = 0.1
GRACE_S = 2.0
RAY_OBJECT_STORE_BYTES = 80 * 2**20
RAY_PORT_VARIABLE = "RAY_GCS_SERVER_PORT"
"""Read by ``ray.init`` alone, which has no argument for it."""

# Runs before a server: asks the kernel to kill the server when this process dies, whatever it died of.
TIED_TO_HOST = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


Wishes = queue.Queue[dict[str, Any] | None]
Servers = dict[str, subprocess.Popen[bytes]]


class Refused(Exception):
    """The package cannot be started as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One server that the config defines."""

    name: str
    key: str
    """``<server type>/<implementation>``."""
    folder: str
    built_in: bool
    """True when its code lies in Gym's wheel."""
    entrypoint: str
    host: str
    port: int


def main(report_descriptor: int) -> None:
    reports = os.fdopen(report_descriptor, "w", buffering=1)
    wishes = wishes_from_stdin()
    servers: Servers = {}
    try:
        if (wish := wishes.get()) is None:
            return
        config = parsed_config(wish["config"], reports)
        apply_settings(config, wish["agent_settings"])
        package = Path(wish["package"])
        plans = planned_servers(config, package)
        entries = entry_servers(config, plans)
        report(reports, event="servers", servers=[asdict(plan) for plan in plans], entries=entries)
        if (environments := wishes.get()) is None:
            return
        check_ports(plans, head_port=config.head_server.port)
        address_ray(config, wish["ray_port"])
        start_servers(servers, plans, environments["environments"], config, package, Path(wish["log_folder"]))
        report(reports, event="doing", what="starting Gym's Ray while the servers import")
        start_ray_and_head(config)
        report(reports, event="started", silent=list(servers))
        watch(servers, plans, wishes, reports)
    except Refused as refusal:
        report(reports, event="refused", message=str(refusal))
    finally:
        stop(servers)


def wishes_from_stdin() -> Wishes:
    """The launcher's lines as they come, and None once it is gone."""
    wishes: Wishes = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            wishes.put(json.loads(line))
        wishes.put(None)

    threading.Thread(target=read, daemon=True).start()
    return wishes


def report(reports: TextIO, **fields: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more: the end of stdin follows
        reports.write(json.dumps(fields) + "\n")


def parsed_config(values: dict[str, Any], reports: TextIO) -> Any:
    """Gym's own reading of the package's YAML with our values over it; touches no process and no network."""
    report(reports, event="doing", what="importing NeMo Gym")
    from nemo_gym.config_types import AlmostServerError, ConfigError
    from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig, get_global_config_dict
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    report(reports, event="doing", what="reading the package's config")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            config = get_global_config_dict(
                GlobalConfigDictParserConfig(
                    initial_global_config_dict=DictConfig(values), skip_load_from_cli=True, skip_load_from_dotenv=True
                )
            )
            GlobalConfigDictParser().raise_on_no_server_instances(config)
    except AlmostServerError:  # its text is the whole config; what is wrong was printed
        raise Refused(f"AlmostServerError: {printed.getvalue().strip()}") from None
    except (ConfigError, OmegaConfBaseException) as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    return config


def apply_settings(config: Any, agent_settings: dict[str, dict[str, Any]]) -> None:
    """Write settings into every agent whose implementation has some."""
    from omegaconf import DictConfig, open_dict

    for instance in config.values():
        agents = instance.get("responses_api_agents") if isinstance(instance, DictConfig) else None
        for implementation, settings in agents.items() if isinstance(agents, DictConfig) else ():
            with open_dict(settings):
                settings.update(agent_settings.get(str(implementation), {}))


def planned_servers(config: Any, package: Path) -> list[Plan]:
    """Every server instance, in the order of the config."""
    from nemo_gym import PARENT_DIR
    from nemo_gym.global_config import NEMO_GYM_RESERVED_TOP_LEVEL_KEYS
    from omegaconf import OmegaConf

    plans: list[Plan] = []
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    for name, instance in resolved.items():
        if name in NEMO_GYM_RESERVED_TOP_LEVEL_KEYS or not isinstance(instance, dict):
            continue
        for server_type, implementations in instance.items():
            for implementation, settings in implementations.items() if isinstance(implementations, dict) else ():
                if isinstance(settings, dict) and "entrypoint" in settings:
                    if not re.fullmatch(r"[\w.-]+", name):
                        raise Refused(
                            f"server name {name!r}: letters, digits, '_', '-' and '.' only, it names a log file"
                        )
                    key, entrypoint = f"{server_type}/{implementation}", settings["entrypoint"]
                    folder, built_in = server_folder(package, Path(PARENT_DIR), key, entrypoint)
                    plans.append(Plan(
                        name=name, key=key, folder=str(folder), built_in=built_in, entrypoint=entrypoint,
                        host=settings["host"], port=settings["port"],
                    ))  # fmt: skip
    return plans


def entry_servers(config: Any, plans: list[Plan]) -> dict[str, str]:
    """Agent -> the server its rows are posted to: itself, or since Gym 0.7 the environment server in front of it."""
    from nemo_gym import global_config

    entries = {plan.name: plan.name for plan in plans if plan.key.startswith("responses_api_agents/")}
    for plan in plans:
        if plan.key.startswith("environment_servers/"):
            agent = global_config.environment_server_attributed_agent(
                global_config.get_first_server_config_dict(config, plan.name)
            )
            entries |= {agent: plan.name} if agent else {}
    return entries


def server_folder(package: Path, gym: Path, key: str, entrypoint: str) -> tuple[Path, bool]:
    """The package's own implementation when it has one, else the one in Gym's wheel (and True)."""
    own = package / key
    markers = [name for name in ("pyproject.toml", "requirements.txt") if (own / name).is_file()]
    if len(markers) == 2:
        raise Refused(f"Found both pyproject.toml and requirements.txt in {own}: keep one")
    if not markers and any(own.glob("*.py")):
        instead = "runs its own" if (gym / key).is_dir() else "does not take the folder for a server"
        raise Refused(
            f"Missing pyproject.toml or requirements.txt for uv venv setup in server dir {own}: add requirements.txt "
            f"(a comment line is enough), else Gym {instead}"
        )
    folder = own if markers else gym / key
    if Path(entrypoint).is_absolute() or not (folder / entrypoint).is_file():
        raise Refused(
            f"{key} has no entrypoint {entrypoint!r}: neither the package nor NeMo Gym holds {folder.name}/it"
        )
    return folder, not markers


def check_ports(plans: list[Plan], *, head_port: int) -> None:
    """A port that something else holds would be told only by the server's own last words, much later."""
    wanted = [("Gym's head server", "127.0.0.1", head_port), *((f"server {p.name}", p.host, p.port) for p in plans)]
    holders: dict[tuple[str, int], str] = {}
    for name, host, port in wanted:
        if (other := holders.setdefault((host, port), name)) != name:
            raise Refused(f"{name} cannot listen on {host}:{port}, where {other} is to listen")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise Refused(f"{name} cannot listen on {host}:{port}: {error.strerror}") from None


def address_ray(config: Any, port: int) -> None:
    """Write into the config where Gym's Ray will be, so that the servers can import meanwhile; they wait for it."""
    from omegaconf import open_dict

    os.environ[RAY_PORT_VARIABLE] = str(port)
    with open_dict(config):
        config["ray_head_node_address"] = f"127.0.0.1:{port}"


def start_ray_and_head(config: Any) -> None:
    import ray
    from nemo_gym.server_utils import HeadServer

    ray.init(
        include_dashboard=False, num_gpus=0, object_store_memory=RAY_OBJECT_STORE_BYTES, log_to_driver=False,
        _node_ip_address="127.0.0.1", _temp_dir=os.getcwd(),
    )  # fmt: skip
    address = ray.get_runtime_context().gcs_address
    if address.rpartition(":")[2] != os.environ[RAY_PORT_VARIABLE]:
        raise Refused(f"Gym's Ray listens on {address}, the servers expect it on {config['ray_head_node_address']}")
    HeadServer.run_webserver()


def start_servers(
    servers: Servers, plans: list[Plan], environments: dict[str, str], config: Any, package: Path, log_folder: Path
) -> None:
    """Fill ``servers``, one process per plan, each writing to ``<log_folder>/<name>.log``."""
    from nemo_gym.global_config import NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME, NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME
    from omegaconf import OmegaConf

    config_yaml = OmegaConf.to_yaml(config)
    for plan in plans:
        environment = Path(environments[plan.key])
        variables = os.environ | {
            NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME: config_yaml,
            NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME: plan.name,
            "PYTHONPATH": f"{plan.folder}:{package}",
            "PATH": f"{environment}/bin:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment),
        }
        command = [sys.executable, "-S", "-c", TIED_TO_HOST, str(os.getpid()), f"{environment}/bin/python"]
        with (log_folder / f"{plan.name}.log").open("ab") as log:
            servers[plan.name] = subprocess.Popen(
                [*command, plan.entrypoint], cwd=plan.folder, env=variables,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip


def watch(servers: Servers, plans: list[Plan], wishes: Wishes, reports: TextIO) -> None:
    """Report when all servers answer and when one dies; return when the launcher is gone or a server is."""
    waiting = plans
    while True:
        for name, process in servers.items():
            if process.poll() is not None:
                report(reports, event="died", server=name, pid=process.pid, status=process.returncode)
                return
        if waiting:
            silent = [plan for plan in waiting if not answers(plan.host, plan.port)]
            if silent != waiting:
                report(reports, event="waiting", silent=[plan.name for plan in silent])
            waiting = silent
            if not waiting:
                report(reports, event="ready", pids={name: process.pid for name, process in servers.items()})
        with contextlib.suppress(queue.Empty):
            if wishes.get(timeout=POLL_S) is None:
                return


def answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=1)
    try:
        connection.request("GET", "/")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def stop(servers: Servers) -> None:
    """Interrupt the servers, kill those that stay, end Ray, remove what was written."""
    for process in servers.values():
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE_S
    for process in servers.values():
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    shutil.rmtree(os.getcwd(), ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)  # with us goes whatever the servers themselves started
