"""Which environment variables reach the processes we start for NeMo Gym: what they need, by name, and nothing else.

Environment packages are code that others wrote. Tracker and hub keys, cloud credentials and the address of the training
cluster's Ray therefore stay behind; a package that needs a variable of its own has it named in ``extra``.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

SYSTEM = (
    "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
)  # fmt: skip
NETWORK = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
)  # fmt: skip
COMPILERS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS")
HUB = ("HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
LOOPBACK = "127.0.0.1,localhost"


def install_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """For uv: where packages come from and where it may write. Empty values are dropped, uv takes them for errors."""
    uv = {name for name in environ if name.startswith("UV_")}
    chosen = _chosen(environ, {*SYSTEM, *NETWORK, *COMPILERS, *uv, "PATH"})
    return {**chosen, "UV_PYTHON_DOWNLOADS": "never"}


def gym_variables(
    environ: Mapping[str, str], *, work: Path, ray_token: str, mark: str, bytecode: Path, extra: Collection[str] = ()
) -> dict[str, str]:
    """For Gym's host, its Ray and its servers.

    Args:
        environ: the launcher's own variables.
        work: private folder of this start; nothing is written elsewhere.
        ray_token: secret of Gym's own Ray cluster, which listens on every address.
        mark: ``NAME=value`` that tells these processes from all others.
        bytecode: where Python caches compiled modules, so that a package's folders stay as they are and a second
            start imports three times faster.
        extra: further names to hand on.
    """
    variables = _chosen(environ, {*SYSTEM, *NETWORK, *HUB, *extra, "PATH"})
    hub = variables.get("HF_HOME") or str(Path(variables.get("HOME", str(work)), ".cache", "huggingface"))
    no_proxy = ",".join(filter(None, [variables.get("NO_PROXY") or variables.get("no_proxy"), LOOPBACK]))
    name, _, value = mark.partition("=")
    return variables | {
        "HF_HOME": hub,  # nemo_gym would put it, and HF_DATASETS_CACHE, below the current folder
        "HF_DATASETS_CACHE": str(Path(hub, "datasets")),
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        "TMPDIR": str(work),  # among others, importing wandb leaves two folders there in each process
        "PYTHONPYCACHEPREFIX": str(bytecode),
        "PYTHONUNBUFFERED": "1",  # last words must reach the log
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": ray_token,
        "RAY_NUM_REDIS_GET_RETRIES": "120",  # seconds that a server waits for Ray, which starts beside it
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_num_prestart_python_workers": "0",
        "WANDB_MODE": "disabled",
        name: value,
    }


def _chosen(environ: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in names and value}
