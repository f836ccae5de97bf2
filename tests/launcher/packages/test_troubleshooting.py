"""The published troubleshooting table: each row that files can decide is found at validation, with phrase and fix."""

from pathlib import Path

import pytest

from launcher.environment.package import check_package
from launcher.environment.pure_wheel import pure_wheel
from launcher.environment.wheels import Target
from launcher.filesets import FileSetStore
from launcher.references import resolve_reference
from launcher.schema.problems import LauncherError, Problem

X86 = Target(arch="x86_64")
MANIFEST = "nemo-environment.yaml"
SERVER = "resources_servers/lists/configs/lists.yaml"


def only_error(problems: tuple[Problem, ...]) -> Problem:
    errors = [problem for problem in problems if problem.severity == "error"]
    assert len(errors) == 1, errors
    return errors[0]


def with_wheels(native, wheels: dict[str, bytes], **changes) -> Path:
    manifest = changes.pop("manifest", None) or native({}).joinpath(MANIFEST).read_text()
    manifest = manifest.replace("native-v1", "wheels-v1")
    return native({MANIFEST: manifest, **{f"wheels/{name}": content for name, content in wheels.items()}, **changes})


def test_manifest_in_a_subdirectory(native):
    problem = only_error(check_package(native({}).parent))
    assert "Missing nemo-environment.yaml at environment root" in problem.message
    assert "at the root" in problem.fix


def test_config_paths_of_a_flattened_package(native):
    problem = only_error(check_package(native({SERVER: None, "lists.yaml": "a: 1\n"})))
    assert "config_paths reference files that are not in the package: " + SERVER in problem.message
    assert "relative paths" in problem.fix


@pytest.mark.parametrize("name", ["training.jsonl", "data/a.JSONL", "x.jsonl.gz", "rows.ndjson", "deep/er/é.Jsonl"])
def test_rows_in_the_package(native, name):
    problems = check_package(native({name: "{}\n"}))
    problem = next(problem for problem in problems if problem.code == "rows-in-package")
    assert "Prompt JSONL must not live in the environment package" in problem.message
    assert "dataset FileSet" in problem.fix


def test_native_config_outside_server_folders(native):
    manifest = native({}).joinpath(MANIFEST).read_text().replace(SERVER, "configs/lists.yaml")
    problem = only_error(check_package(native({MANIFEST: manifest, "configs/lists.yaml": "a: 1\n"})))
    assert "native-v1 config_paths must be under (" in problem.message
    assert "switch" in problem.fix


def test_adapter_config_outside_configs(native):
    manifest = (
        "format: adapter-wheels-v1\nconfig_paths: [a.yaml]\nmetadata: {name: a}\nadapter: {agent: verifiers_agent}\n"
    )
    problem = only_error(check_package(native({MANIFEST: manifest, "a.yaml": "a: 1\n"})))
    assert "adapter-wheels-v1 config_paths should live under configs/" in problem.message
    assert "under configs/" in problem.fix


def test_wheels_folder_missing(native):
    problem = only_error(check_package(with_wheels(native, {})))
    assert "must carry a non-empty wheels/ directory" in problem.message
    assert "grpo env vendor" in problem.fix


def test_harness_that_does_not_exist(native):
    manifest = (
        "format: adapter-wheels-v1\nconfig_paths: [configs/a.yaml]\nmetadata: {name: a}\nadapter: {agent: my_agent}\n"
    )
    problem = only_error(check_package(native({MANIFEST: manifest})))
    assert "adapter.agent 'my_agent' is not built into the training image" in problem.message
    assert "switch format" in problem.fix


def test_no_policy_model(native):
    package = native({"responses_api_models/vllm_model/configs/policy_model.yaml": "unused: 1\n"})
    problem = only_error(check_package(package))
    assert "ServerRefNotFoundError" in problem.message
    assert "Available responses_api_models: (none)" in problem.message
    assert "configs/policy_model.yaml" in problem.fix
    assert problem.path == f"{SERVER}:11"


def test_fileset_of_the_wrong_purpose(tmp_path):
    store = FileSetStore(str(tmp_path))
    store.create("rows", purpose="dataset")
    with pytest.raises(LauncherError) as caught:
        resolve_reference("environment", "rows", store=store)
    problem = only_error(caught.value.problems)
    assert problem.message == "Environment fileset 'default/rows' has purpose 'dataset'; expected purpose='environment'"
    assert "--purpose environment" in problem.fix


@pytest.mark.parametrize("domain", ["", "      domain:\n", "      domain: sports\n"])
def test_domain_missing_empty_or_unknown(native, domain):
    text = native({}).joinpath(SERVER).read_text().replace("      domain: instruction_following\n", domain)
    problem = only_error(check_package(native({SERVER: text})))
    assert "AlmostServerError" in problem.message
    assert "allowed: math, coding" in problem.message


def test_implementation_without_install_marker(native):
    problem = only_error(check_package(native({"resources_servers/lists/requirements.txt": None})))
    assert "Missing pyproject.toml or requirements.txt for uv venv setup in server dir" in problem.message
    assert "requirements.txt" in problem.fix


def test_implementation_that_shadows_a_built_in(native):
    text = native({}).joinpath(SERVER).read_text().replace("    lists:\n", "    mcqa:\n")
    problems = check_package(native({SERVER: text, "resources_servers/mcqa/app.py": "x = 1\n"}))
    problem = only_error(problems)
    assert "the job scores an environment you did not ship" in problem.message
    assert "rename" in problem.fix


def test_empty_requirements(native):
    problem = only_error(check_package(native({"resources_servers/lists/requirements.txt": "\n \n"})))
    assert "ModuleNotFoundError" in problem.message
    assert "comment line counts" in problem.fix


def test_two_versions_of_one_project(native):
    wheels = dict(pure_wheel("idna", version, {"idna.py": ""}) for version in ("3.1", "3.2"))
    problem = only_error(check_package(with_wheels(native, wheels), target=X86))
    assert "your requirements are unsatisfiable" in problem.message
    assert "idna 3.1, 3.2" in problem.message
    assert "clear wheels/" in problem.fix


def test_wheel_for_another_architecture(native):
    wheels = dict([pure_wheel("fast", "1.0", {"fast.py": ""}, tag="cp313-cp313-manylinux_2_28_aarch64")])
    problem = only_error(check_package(with_wheels(native, wheels), target=X86))
    assert "has no wheels with a matching platform tag" in problem.message
    assert "--arch x86_64" in problem.fix


def test_format_that_needs_an_index_says_so(native):
    from launcher.environment.package import inspect_package
    from launcher.environment.source import FolderSource

    assert "needs a package index at start" in inspect_package(FolderSource(native({}))).network
