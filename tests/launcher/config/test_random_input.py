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


NUMBERS = st.text(alphabet="0123456789,.-+e*:", max_size=12)
SWEEPS = st.builds(
    "{}={}({})".format,
    st.sampled_from([*key_paths(), "recipe", "lora", "hydra/launcher", "hydra.sweep.dir"]),
    st.sampled_from(["range", "choice", "interval", "glob", "sort", "shuffle", "tag", "str", "int"]),
    NUMBERS | MARKS,
)


@BOUNDED
@given(overrides=st.lists(SWEEPS | OVERRIDES, min_size=1, max_size=3), sweeper=st.sampled_from(["basic", "optuna"]))
def test_random_sweeps(overrides: list[str], sweeper: str) -> None:
    """All that happens before the first trial."""
    from launcher.checking import Checker
    from launcher.hydra_app import hydra_arguments, sweep_config
    from launcher.schema.problems import LauncherError
    from launcher.sweep_checks import common_problems, composition_problems, expand_grid, trial_problems

    checker = Checker()
    with contextlib.suppress(LauncherError):
        arguments = hydra_arguments(["recipe=demo", f"hydra/sweeper={sweeper}", *overrides], checker.composer)
        composition_problems(overrides, checker.composer)
        settings = sweep_config(checker.composer, arguments.overrides).hydra
        if sweeper == "optuna":
            common_problems(arguments, settings, checker)
        else:
            trial_problems(expand_grid(arguments, settings.sweeper.params or {}, checker)[:3], checker)
