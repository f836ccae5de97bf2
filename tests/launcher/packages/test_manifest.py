"""Every published rule of nemo-environment.yaml, with the line it points to."""

import pytest
import yaml

from launcher.environment.layout import layout_problems, read_manifest
from launcher.environment.package import check_package, load_package
from launcher.environment.source import FileSetSource, FolderSource
from launcher.filesets import FileSetStore
from launcher.schema.manifest import MANIFEST
from launcher.schema.problems import LauncherError

MANIFEST_NAME = "nemo-environment.yaml"
HEAD = "format: wheels-v1\nconfig_paths: "


def manifest_problems(native, text: str) -> list[tuple[str, str]]:
    with pytest.raises(LauncherError) as caught:
        load_package(native({MANIFEST_NAME: text}))
    return [(problem.path, problem.message) for problem in caught.value.problems]


def test_unknown_keys_are_rejected_with_the_nearest_known(native):
    text = "format: native-v1\nconfig_path: [a]\nconfig_paths: [resources_servers/a.yaml]\n"
    text += "metadata:\n  name: a\n  nam: b\n"
    with pytest.raises(LauncherError) as caught:
        load_package(native({MANIFEST_NAME: text}))
    assert [(problem.path, problem.fix) for problem in caught.value.problems] == [
        (f"{MANIFEST_NAME}:6", "did you mean name?"),
        (f"{MANIFEST_NAME}:2", "did you mean config_paths?"),
    ]


@pytest.mark.parametrize(
    ("text", "place", "phrase"),
    [
        ("config_paths: [a]\nmetadata: {name: a}\n", "", "format is missing; allowed: native-v1"),
        ("format: native-v2\n", ":1", "format is 'native-v2'; allowed: native-v1"),
        (HEAD + "[a]\n", "", "metadata is missing"),
        (HEAD + "[a]\nmetadata: {description: d}\n", ":3", "metadata.name is missing"),
        (HEAD + "[a]\nmetadata: {name: ''}\n", ":3", "at least 1 character"),
        (HEAD + "[]\nmetadata: {name: a}\n", ":2", "config_paths is []"),
        (HEAD + "a\nmetadata: {name: a}\n", ":2", "config_paths is 'a'"),
        (HEAD + "[/etc/a]\nmetadata: {name: a}\n", ":2", "is not a relative path"),
        (HEAD + "[a/../b]\nmetadata: {name: a}\n", ":2", "contains '..'"),
        (HEAD + "[a, ./a]\nmetadata: {name: a}\n", ":2", "names a twice"),
        (HEAD + "[a]\nconfig_paths: [a]\n", ":3", "'config_paths' stands twice"),
        (HEAD + "[a]\nmetadata: {name: a}\nadapter: {agent: verifiers_agent}\n",
         ":4", "adapter block belongs to adapter-wheels-v1 only"),
        ("format: adapter-wheels-v1\nconfig_paths: [configs/a]\nmetadata: {name: a}\n", "", "adapter is missing"),
        ("format: [native-v1\n", ":2", "not valid YAML"),
        ("- a\n", ":1", "holds a list"),
        ("", ":1", "holds nothing"),
    ],
)  # fmt: skip
def test_rules(native, text, place, phrase):
    problems = manifest_problems(native, text)
    assert any(path == MANIFEST_NAME + place and phrase in message for path, message in problems), problems


def test_paths_are_normalised_before_they_are_compared(native):
    text = native({}).joinpath(MANIFEST_NAME).read_text().replace("resources_servers/", "./resources_servers//")
    package = load_package(native({MANIFEST_NAME: text}))
    assert package.manifest.config_paths[1] == "resources_servers/lists/configs/lists.yaml"
    assert check_package(package.root) == ()


def test_all_faults_are_reported_at_once(native):
    text = "format: adapter-wheels-v1\nconfig_paths: [../a]\nmetadata: {}\nadapter: {agent: mine}\n"
    messages = " | ".join(message for _, message in manifest_problems(native, text))
    assert "'..'" in messages
    assert "metadata.name is missing" in messages
    assert "not built into the training image" in messages


def test_the_same_rules_run_on_a_fileset(native, tmp_path):
    root = native({"data/rows.jsonl": "{}\n", "pyproject.toml": ""})
    store = FileSetStore(str(tmp_path / "store"))
    store.create("env", purpose="environment")
    fileset = store.upload(root, "env").fileset
    found = []
    for source in (FolderSource(root), FileSetSource(store, fileset)):
        manifest = read_manifest(source)
        found.append([(problem.code, problem.path) for problem in layout_problems(manifest, source.listing)])
    assert found[0] == found[1] == [("rows-in-package", "data/rows.jsonl"), ("root-pyproject", "pyproject.toml")]


def test_wheels_of_native_packages_are_noticed(native):
    problems = check_package(native({"wheels/a-1-py3-none-any.whl": b""}))
    assert [(problem.code, problem.severity) for problem in problems] == [("wheels-folder", "warning")]


def test_strays_in_wheels(native):
    text = native({}).joinpath(MANIFEST_NAME).read_text().replace("native-v1", "wheels-v1")
    problems = check_package(
        native({MANIFEST_NAME: text, "wheels/a.tar.gz": b"", "wheels/sub/b-1-py3-none-any.whl": b""})
    )
    messages = [problem.message for problem in problems if problem.code == "wheels-folder"]
    assert messages == [
        "wheels-v1 packages must carry a non-empty wheels/ directory",
        "Non-wheel files in wheels/: wheels/a.tar.gz, wheels/sub/b-1-py3-none-any.whl",
    ]


def test_the_published_manifest_is_right():
    text = """\
format: wheels-v1
config_paths:
  - configs/policy_model.yaml
  - configs/my_env.yaml
metadata:
  name: my-env
  description: Custom reward environment
"""
    assert MANIFEST.validate_python(yaml.safe_load(text)).metadata.name == "my-env"
