"""The NeMo RL config of every recipe, as it was last looked at: ``make golden`` writes them anew."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.compile import compile_plan
from launcher.dataset import count_rows, find_dataset
from launcher.references import resolve_reference
from launcher.resolve import resolve
from rl.nemo_rl.config import RunFiles, master_config
from rl.nemo_rl.omegaconf_yaml import to_yaml

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "nemo_rl"
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


def config_of(recipe: str) -> str:
    """The config of a recipe, with paths that are the same on every machine."""
    job = resolve([f"recipe={recipe}", "engine.name=nemo_rl"]).job
    dataset = find_dataset(resolve_reference("dataset", job.dataset).local_path())
    assert dataset.validation is not None
    plan = compile_plan(
        job, num_training_rows=count_rows(dataset.training), num_validation_rows=count_rows(dataset.validation)
    )
    files = RunFiles(
        model=job.model.name.removeprefix("hf://").replace("wheel://", "/models/"),
        chat_template=None,
        training_rows=Path("/dataset/training.jsonl"),
        validation_rows=Path("/dataset/validation.jsonl"),
        gym_configs=(Path("/environment/configs/environment.yaml"),),
        output=Path("/run"),
    )
    return to_yaml(master_config(job, plan, files))


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_config_of_a_recipe(recipe: str, same_as_golden: Callable[[str, str], None]):
    same_as_golden(f"nemo_rl/{recipe}.yaml", config_of(recipe))


def test_there_is_no_golden_without_a_recipe():
    assert sorted(path.stem for path in GOLDEN.iterdir()) == RECIPES


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8")),
    st.text("$\\{}:.eE+-0123456789_x? \n'\"#"),
).filter(lambda value: value != "???")
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
)


def read_by_nemo_rl(text: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=True)


@given(config=st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3))
def test_what_is_written_is_what_is_read(config: dict[str, Any]):
    assert read_by_nemo_rl(to_yaml(config)) == config


def test_a_chat_template_is_not_interpolated():
    template = "{% for m in messages %}${policy.model_name} \\${x} {{ m['content'] }}\\n{% endfor %}"
    assert read_by_nemo_rl(to_yaml({"policy": {"tokenizer": {"chat_template": template}}})) == {
        "policy": {"tokenizer": {"chat_template": template}}
    }


def test_a_missing_value_marker_is_refused():
    with pytest.raises(ValueError, match=r"\?\?\?"):
        to_yaml({"a": ["???"]})
