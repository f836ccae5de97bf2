"""Whatever is thrown at it, a command that checks answers with status 0, 1 or 2 and never with a traceback."""

import contextlib
import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.cli import main
from launcher.validation import key_paths

BOUNDED = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

KEYS = st.one_of(st.sampled_from([key.rpartition(".")[2] for key in key_paths()]), st.text(max_size=8))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["${training.seed}", "${oc.env:NOPE}", "${", "\\${a}", "???", "grpo", "lora", "dtensor", "1e-6"]),
)
TREES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=20,
)
JOBS = st.fixed_dictionaries(
    {},
    optional={
        "model": TREES,
        "dataset": TREES,
        "environment": TREES,
        "training": st.dictionaries(KEYS, TREES, max_size=8) | TREES,
        "output": TREES,
        "engine": TREES,
        "sandbox": TREES,
    },
)
MARKS = st.text(alphabet="=,.:[]{}()'\"${}@~+-/\\ \t\n0aé\0", max_size=20)
OVERRIDES = st.one_of(
    MARKS,
    st.builds("{}{}={}".format, st.sampled_from(["", "+", "++", "~"]), st.sampled_from(key_paths()), MARKS),
    st.builds("{}={}".format, st.sampled_from(["recipe", "backend", "model", "lora", "hydra", "hydra/sweeper"]), MARKS),
)


@BOUNDED
@given(job=JOBS)
def test_a_random_job_json(job: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job), encoding="utf-8", errors="surrogatepass")
        assert main(["check", "--config-only", "--json", "--job", str(file)]) in (0, 1)


@BOUNDED
@given(recipe=st.text(max_size=60) | JOBS.map(json.dumps))
def test_a_random_recipe(recipe: str) -> None:
    from launcher.compose import Composer
    from launcher.paths import config_roots
    from launcher.resolve import draft_job
    from launcher.schema.problems import LauncherError

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recipes" / "r.yaml"
        file.parent.mkdir()
        file.write_text("# @package _global_\n" + recipe, encoding="utf-8", errors="surrogatepass")
        with contextlib.suppress(LauncherError):
            draft_job(["recipe=r"], composer=Composer((Path(folder), *config_roots())))


@BOUNDED
@given(overrides=st.lists(OVERRIDES, max_size=4))
def test_random_overrides(overrides: list[str]) -> None:
    assert main(["check", "--config-only", "recipe=demo", *overrides]) in (0, 1, 2)
