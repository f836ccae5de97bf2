"""What has to hold among the servers of a package so that Gym starts them, and starts these and no others.

MergedConfig + instances + listing --> problems: references, domains, values left open, the policy model, folders
"""

import re
from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement

from launcher.environment.gym_facts import BUILT_INS, DOMAINS
from launcher.environment.servers import INSTALL_MARKERS, MergedConfig, has_own_code, walk
from launcher.environment.source import PackageSource
from launcher.schema.manifest import SERVER_TYPES, AdapterManifest, Package, ServerInstance
from launcher.schema.problems import Problem
from launcher.suggest import did_you_mean, nearest

POLICY_KEYS = ("policy_base_url", "policy_api_key", "policy_model_name")
"""Interpolations that a job fills in."""
LARGEST_REQUIREMENTS_BYTES = 1_000_000

_INTERPOLATION = re.compile(r"\$\{([^${}]+)\}")


def server_problems(package: Package, merged: MergedConfig, source: PackageSource) -> Iterator[Problem]:
    """Everything wrong with the servers of a package whose configs could all be read."""
    for instance in package.instances:
        yield from _reference_problems(instance, package.instances, merged)
        yield from _domain_problems(instance, merged)
        yield from _dataset_problems(instance, merged)
        yield from _implementation_problems(instance, merged, source)
    yield from _open_values(merged)
    yield from _repeated_instances(package, merged)
    yield from _policy_problems(package, merged)
    yield from _agent_problems(package)
    yield from _unreferenced_folders(package, source)


def _reference_problems(
    instance: ServerInstance, instances: Sequence[ServerInstance], merged: MergedConfig
) -> Iterator[Problem]:
    for reference in instance.references:
        same_type = [other.name for other in instances if other.type == reference.type]
        if reference.name in same_type or _is_broken_server(reference.name, instances, merged):
            continue
        available = ", ".join(sorted(same_type)) or "(none)"
        target = f"{reference.type}/{reference.name}"
        message = f"ServerRefNotFoundError: {reference.key} of {instance.name!r} references {target}, which nothing "
        message += f"defines. Available {reference.type}: {available}"
        fix = did_you_mean(reference.name, same_type, otherwise=f"define {reference.name!r} in one of the config_paths")
        if reference.name == "policy_model" and reference.type == "responses_api_models":
            fix = "include a config that defines policy_model, such as configs/policy_model.yaml, and list it first"
        place = merged.place(instance.name, instance.type, instance.implementation, *reference.key.split("."))
        yield _error("server-reference", place, message, fix)


def _is_broken_server(name: str, instances: Sequence[ServerInstance], merged: MergedConfig) -> bool:
    """A block that is meant as a server and is none: reported by itself."""
    block = merged.tree.get(name)
    is_meant = isinstance(block, dict) and any(kind in block for kind in SERVER_TYPES)
    return is_meant and all(instance.name != name for instance in instances)


def _domain_problems(instance: ServerInstance, merged: MergedConfig) -> Iterator[Problem]:
    given = instance.config.get("domain")
    place = merged.place(instance.name, instance.type, instance.implementation, "domain")
    allowed = f"allowed: {', '.join(DOMAINS)}"
    if instance.type == "resources_servers" and not given:
        what = "is empty" if "domain" in instance.config else "is missing"
        message = f"AlmostServerError: domain of resources server {instance.name!r} {what}; {allowed}"
        yield _error("domain", place, message, "set the domain that fits best, or other")
    elif given and given not in DOMAINS:
        message = f"AlmostServerError: domain of {instance.name!r} is {given!r}; {allowed}"
        yield _error("domain", place, message, did_you_mean(str(given), DOMAINS, otherwise="choose one of these"))
    elif given and instance.type != "resources_servers":
        message = f"domain has no effect on {instance.name!r}: only resources servers have one"
        yield _warning("domain", place, message, "remove it here, or move it to the resources server")


def _dataset_problems(instance: ServerInstance, merged: MergedConfig) -> Iterator[Problem]:
    datasets = instance.config.get("datasets")
    if not datasets:
        return
    place = merged.place(instance.name, instance.type, instance.implementation, "datasets")
    paths = [str(entry["jsonl_fpath"]) for entry in datasets if isinstance(entry, dict) and "jsonl_fpath" in entry]
    message = f"datasets[].jsonl_fpath is left in {instance.name!r}: {', '.join(paths) or 'no path'}"
    yield _error("datasets", place, message, "remove the datasets block; rows come from the dataset FileSet")


def _implementation_problems(
    instance: ServerInstance, merged: MergedConfig, source: PackageSource
) -> Iterator[Problem]:
    folder = f"{instance.type}/{instance.implementation}"
    files = source.listing.files
    place = merged.place(instance.name, instance.type, instance.implementation, "entrypoint")
    entrypoint = str(instance.config["entrypoint"])
    if entrypoint.startswith("/") or ".." in entrypoint.split("/"):
        message = f"entrypoint {entrypoint!r} of {instance.name!r} leaves the implementation's folder"
        yield _error("entrypoint", place, message, f"give a path relative to {folder}/, such as app.py")
        return
    built_in = instance.implementation in BUILT_INS[instance.type]
    if not has_own_code(source.listing, folder):
        if not built_in:
            near = nearest(instance.implementation, BUILT_INS[instance.type])
            message = f"{folder} is neither in the package nor one of Gym's built-in servers"
            fix = f"ship {folder}/ with app.py and requirements.txt" + (f", or write {near[0]}" if near else "")
            yield _error("no-implementation", place, message, fix)
        return
    markers = [marker for marker in INSTALL_MARKERS if f"{folder}/{marker}" in files]
    if not markers and built_in:
        message = (
            f"{folder} has no requirements.txt, so Gym runs its own built-in {instance.implementation!r} instead "
            "and the job scores an environment you did not ship"
        )
        yield _error("shadowed-built-in", folder, message, "add requirements.txt, or rename the implementation")
    elif not markers:
        message = f"Missing pyproject.toml or requirements.txt for uv venv setup in server dir: {folder}"
        yield _error("install-marker", folder, message, "add requirements.txt (a comment line is enough)")
    elif len(markers) > 1:
        message = f"{folder} has both pyproject.toml and requirements.txt; Gym refuses that"
        yield _error("install-marker", folder, message, "keep one of the two")
    elif markers == ["requirements.txt"]:
        yield from _requirements_problems(f"{folder}/requirements.txt", source)
    if f"{folder}/{entrypoint}" not in files:
        message = f"entrypoint {entrypoint!r} of {instance.name!r} is not in {folder}/"
        yield _error("entrypoint", place, message, "add the file, or correct entrypoint")


def requirement_lines(source: PackageSource, path: str) -> list[tuple[int, str]]:
    """Lines of a requirements.txt that Gym installs, with their numbers: no comments, nothing below ``../..``."""
    with source.open(path) as file:
        text = file.read(LARGEST_REQUIREMENTS_BYTES).decode(errors="replace")
    numbered = ((number, re.split(r"(?:^|\s)#", line)[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in numbered if line and "../.." not in line]


def _requirements_problems(path: str, source: PackageSource) -> Iterator[Problem]:
    with source.open(path) as file:
        head = file.read(LARGEST_REQUIREMENTS_BYTES + 1)
    if not head.strip():
        message = "is empty, which breaks the server's install or ends in ModuleNotFoundError at the first rollout"
        yield _error("requirements", path, message, "list what the server imports; a comment line counts as content")
        return
    if len(head) > LARGEST_REQUIREMENTS_BYTES:
        yield _error("requirements", path, f"is larger than {LARGEST_REQUIREMENTS_BYTES:,} bytes", "shorten it")
        return
    for number, line in requirement_lines(source, path):
        if line.startswith("-"):
            continue
        try:
            Requirement(line)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            message = f"{line!r} is not a requirement: {reason}"
            yield _error("requirements", f"{path}:{number}", message, "write it as name==version")


def _open_values(merged: MergedConfig) -> Iterator[Problem]:
    """Values that nothing fills: ``???`` and interpolations of keys that nobody defines."""
    known = {key.split("[")[0] for key, _ in walk(dict(merged.tree)) if key} | set(POLICY_KEYS)
    for key, value in walk(dict(merged.tree)):
        if not isinstance(value, str):
            continue
        place = merged.place(*key.split("."))
        if value == "???":
            yield _error("open-value", place, f"{key} is ??? and nothing sets it", "give it a value")
        for name in _INTERPOLATION.findall(value):
            if name.startswith("oc.env:"):
                if "," not in name:
                    message = f"{key} reads the environment variable {name.removeprefix('oc.env:')} and has no default"
                    yield _warning("open-value", place, message, "give a default: ${oc.env:NAME,default}")
            elif ":" not in name and not name.startswith(".") and name not in known:
                message = f"{key} refers to ${{{name}}}, which nothing defines; a job sets {', '.join(POLICY_KEYS)}"
                yield _error("open-value", place, message, f"define {name} at the top of a config, or write the value")


def _repeated_instances(package: Package, merged: MergedConfig) -> Iterator[Problem]:
    for instance in package.instances:
        files = merged.files_with(instance.name)
        if len(files) > 1:
            message = f"{instance.name!r} is defined in {', '.join(files)}; they are merged and the last one wins"
            yield _warning("repeated-instance", merged.place(instance.name), message, "define it in one file")


def _policy_problems(package: Package, merged: MergedConfig) -> Iterator[Problem]:
    policies = [model for model in package.models if "${policy_base_url}" in str(model.config.get("base_url"))]
    if not policies:
        referenced = {reference.name for instance in package.instances for reference in instance.references}
        if package.models or "policy_model" not in referenced:  # else the missing reference is reported already
            message = "no server stands for the model under training: none has base_url: ${policy_base_url}"
            fix = "include a config that defines policy_model, such as configs/policy_model.yaml, and list it first"
            yield _error("policy-model", package.config_paths[0], message, fix)
        return
    for policy in policies:
        place = merged.place(policy.name, policy.type, policy.implementation, "return_token_id_information")
        if policy.config.get("return_token_id_information") is not True:
            message = f"{policy.name!r} does not return token ids, so no rollout can be trained on"
            yield _error("policy-model", place, message, "set return_token_id_information: true")
        if policy.source != package.config_paths[0]:
            message = f"{policy.source} defines {policy.name!r} and is not listed first"
            yield _warning("policy-model", policy.source, message, "list it first in config_paths")


def _agent_problems(package: Package) -> Iterator[Problem]:
    if not package.agents:
        message = "no agent is defined, so no row can be run"
        yield _error("no-agent", package.config_paths[0], message, "define a responses_api_agents server")
    manifest = package.manifest
    if not isinstance(manifest, AdapterManifest):
        return
    harness = manifest.adapter.agent
    if package.agents and all(agent.implementation != harness for agent in package.agents):
        message = f"adapter.agent is {harness!r}, but no agent of the package runs it"
        yield _error(
            "no-agent", package.config_paths[0], message, f"define an agent with responses_api_agents: {harness}"
        )


def _unreferenced_folders(package: Package, source: PackageSource) -> Iterator[Problem]:
    """Server folders that no config uses: harmless, and usually a slip."""
    used = {f"{instance.type}/{instance.implementation}" for instance in package.instances}
    for folder in sorted({"/".join(path.split("/")[:2]) for path in source.listing.files if path.endswith("/app.py")}):
        if folder.split("/")[0] in BUILT_INS and folder not in used and f"{folder}/app.py" in source.listing.files:
            yield _warning(
                "unused-folder", folder, "no config uses this implementation", "list its config, or remove it"
            )


def _error(code: str, path: str, message: str, fix: str) -> Problem:
    return Problem(code=code, path=path, message=message, fix=fix)


def _warning(code: str, path: str, message: str, fix: str) -> Problem:
    return Problem(code=code, path=path, message=message, fix=fix, severity="warning")
