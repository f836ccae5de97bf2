"""Servers of a package: what merges, what resolves, what would not start, what would start instead."""

import pytest

from launcher.environment.package import check_package, load_package, row_expectations

MANIFEST = "nemo-environment.yaml"
SERVER = "resources_servers/lists/configs/lists.yaml"
POLICY = "responses_api_models/vllm_model/configs/policy_model.yaml"


def found(root) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in check_package(root)]


def changed(native, path: str, old: str, new: str):
    text = native({}).joinpath(path).read_text()
    assert old in text
    return native({path: text.replace(old, new)})


def test_a_right_package_has_no_problems_and_its_servers_are_known(native):
    package = load_package(native({}))
    assert check_package(package.root) == ()
    (agent,), (server,), (policy,) = package.agents, package.resources_servers, package.models
    assert (agent.name, agent.implementation, agent.directory) == ("lists_agent", "simple_agent", None)
    assert (server.name, server.directory) == ("lists", package.root / "resources_servers/lists")
    assert (policy.name, policy.directory) == ("policy_model", None)
    assert [(reference.key, reference.name) for reference in agent.references] == [
        ("resources_server", "lists"),
        ("model_server", "policy_model"),
    ]
    assert row_expectations(package).agents == {"lists_agent"}


def test_a_reference_to_nothing_offers_the_nearest(native):
    (problem,) = check_package(changed(native, SERVER, "name: lists}", "name: lsits}"))
    assert problem.path == f"{SERVER}:10"
    assert "references resources_servers/lsits" in problem.message
    assert problem.fix == "did you mean lists?"


def test_nested_references_are_followed_too(native):
    text = "      judge: {server: {type: responses_api_models, name: judge}}\n"
    (problem,) = check_package(changed(native, SERVER, "      domain: ", f"{text}      domain: "))
    assert "judge.server of 'lists' references responses_api_models/judge" in problem.message


def test_policy_model_listed_last_is_a_warning(native):
    text = native({}).joinpath(MANIFEST).read_text().splitlines()
    text[2], text[3] = text[3], text[2]
    (problem,) = check_package(native({MANIFEST: "\n".join(text)}))
    assert (problem.code, problem.severity) == ("policy-model", "warning")


def test_policy_model_must_be_the_jobs_and_return_token_ids(native):
    assert found(changed(native, POLICY, "      return_token_id_information: true\n", "")) == [
        ("policy-model", f"{POLICY}:3")
    ]
    assert found(changed(native, POLICY, "${policy_base_url}", "http://elsewhere/v1")) == [("policy-model", POLICY)]


def test_domain_elsewhere_is_a_warning_and_must_be_valid(native):
    agent = "    simple_agent:\n      entrypoint: app.py\n"
    (problem,) = check_package(changed(native, SERVER, agent, agent + "      domain: math\n"))
    assert (problem.code, problem.severity) == ("domain", "warning")
    (problem,) = check_package(changed(native, SERVER, agent, agent + "      domain: maths\n"))
    assert (problem.severity, problem.fix) == ("error", "did you mean math?")


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("      domain: ", "      datasets: [{name: a, jsonl_fpath: a.jsonl}]\n      domain: ", "datasets"),
        ("      domain: ", "      threshold: ???\n      domain: ", "open-value"),
        ("      domain: ", "      key: ${judge_api_key}\n      domain: ", "open-value"),
        ("    lists:\n      entrypoint: app.py\n", "    lists:\n      entrypoint: /etc/passwd\n", "entrypoint"),
        ("    lists:\n      entrypoint: app.py\n", "    lists:\n      entrypoint: ../app.py\n", "entrypoint"),
        ("    lists:\n      entrypoint: app.py\n", "    lists:\n      entrypoint: main.py\n", "entrypoint"),
        ("    lists:\n      entrypoint: app.py\n", "    lists:\n", "almost-server"),
        ("    lists:\n", "    mcqa: {entrypoint: app.py}\n    lists:\n", "almost-server"),
        ("    simple_agent:\n", "    simpel_agent:\n", "no-implementation"),
        ("lists_agent:\n", "lists agent:\n", "server-name"),
        ("lists_agent:\n  responses_api_agents:", "lists_agent:\n  responses_api_agent:", "almost-server"),
    ],
)  # fmt: skip
def test_what_would_not_start(native, old, new, code):
    problems = check_package(changed(native, SERVER, old, new))
    errors = [problem for problem in problems if problem.severity == "error"]
    assert errors[0].code == code, errors
    assert errors[0].path.startswith(f"{SERVER}:")


def test_interpolations_that_something_defines_are_fine(native):
    text = "judge_api_key: secret\nlists:"
    assert found(changed(native, SERVER, "lists:\n  resources_servers:", f"{text}\n  resources_servers:")) == []


def test_both_install_markers(native):
    (problem,) = check_package(native({"resources_servers/lists/pyproject.toml": "[project]\nname='a'\n"}))
    assert (problem.code, problem.path) == ("install-marker", "resources_servers/lists")


def test_requirements_that_are_none(native):
    text = "# fine\nidna>=3\n-r more.txt\nidna === what is this\n"
    assert found(native({"resources_servers/lists/requirements.txt": text})) == [
        ("requirements", "resources_servers/lists/requirements.txt:4")
    ]


def test_root_pyproject(native):
    assert found(native({"pyproject.toml": "[project]\n"})) == [("root-pyproject", "pyproject.toml")]


def test_an_instance_defined_twice_is_merged_and_reported(native):
    manifest = native({}).joinpath(MANIFEST).read_text()
    more = manifest.replace("metadata:", "  - resources_servers/lists/configs/more.yaml\nmetadata:")
    root = native({
        MANIFEST: more,
        "resources_servers/lists/configs/more.yaml": "lists: {resources_servers: {lists: {domain: math}}}\n",
    })  # fmt: skip
    assert [(problem.code, problem.severity) for problem in check_package(root)] == [("repeated-instance", "warning")]
    assert load_package(root).resources_servers[0].config["domain"] == "math"


def test_config_paths_inside_a_config_file_are_merged_when_they_are_in_the_package(native):
    text = native({}).joinpath(SERVER).read_text()
    nested = "resources_servers/lists/configs/judge.yaml"
    judge = "lists: {resources_servers: {lists: {threshold: 3}}}\n"
    root = native({SERVER: f"config_paths: [{nested}]\n{text}", nested: judge})
    assert load_package(root).resources_servers[0].config["threshold"] == 3
    problems = check_package(native({SERVER: f"config_paths: [resources_servers/mcqa/configs/mcqa.yaml]\n{text}"}))
    assert (problems[0].code, problems[0].path) == ("config-missing", f"{SERVER}:1")


def test_gyms_own_settings_have_no_effect_in_a_package(native):
    root = changed(
        native, SERVER, "lists:\n  resources_servers:", "nemo_gym_log_dir: /tmp/x\nlists:\n  resources_servers:"
    )
    assert [(problem.code, problem.severity) for problem in check_package(root)] == [("reserved-key", "warning")]


def test_the_demo_package_is_right():
    from pathlib import Path

    demo = Path(__file__).parents[3] / "recipes" / "demo" / "environment"
    assert check_package(demo) == ()
