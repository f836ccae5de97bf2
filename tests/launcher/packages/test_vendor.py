"""Vendoring against a small package index on loopback, which has stand-ins under the names both installs ask for."""

import io
import tarfile
from pathlib import Path

import pytest

from gym_bridge.versions import DEFAULT_GYM_VERSION, GYM_VERSIONS
from launcher.environment.package import inspect_package, load_package
from launcher.environment.pure_wheel import pure_wheel
from launcher.environment.scaffold import scaffold_package
from launcher.environment.source import FolderSource
from launcher.environment.vendor import VendorReport, vendor_closure
from launcher.environment.wheels import Target
from launcher.schema.problems import LauncherError

X86, ARM = Target(arch="x86_64"), Target(arch="aarch64")
GYM = GYM_VERSIONS[DEFAULT_GYM_VERSION]

BACKEND = """
import os
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = {name!r}
    Path(folder, name).write_bytes(Path("content.whl").read_bytes())
    return name

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = Path(folder, {info!r})
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {project}\\nVersion: 1.0\\n")
    return info.name
"""


def source_only(project: str, *, tag: str = "py3-none-any") -> tuple[str, bytes]:
    """An sdist whose build needs nothing: its own backend copies a finished wheel."""
    name, content = pure_wheel(project, "1.0", {f"{project}.py": ""}, tag=tag)
    files = {
        "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(name=name, info=f"{project}-1.0.dist-info", project=project).encode(),
        "content.whl": content,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n".encode(),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(f"{project}-1.0/{path}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return f"{project}-1.0.tar.gz", buffer.getvalue()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return Path(scaffold_package("lists", format="wheels-v1", into=tmp_path).package)


def vendored(package: Path, target: Target = X86) -> VendorReport:
    return vendor_closure(load_package(package), target, gym=GYM)


def names(package: Path) -> list[str]:
    return sorted(path.name for path in (package / "wheels").iterdir())


def test_one_closure_for_the_target(index, package):
    report = vendored(package, ARM)
    assert names(package) == [
        "dashboard-1.0-py3-none-any.whl",
        "fast-1.0-cp313-cp313-manylinux_2_28_aarch64.whl",
        "lists_reward-0.1.0-py3-none-any.whl",
        "nemo_gym-0.4.0-py3-none-any.whl",
        "openai-2.7.2-py3-none-any.whl",
        next(name for name in names(package) if name.startswith("pip-")),
        "ray-2.60.0-py3-none-any.whl",
    ]
    assert (report.num_wheels, report.built, report.removed) == (7, (), ())
    assert "fast 1.0" in report.added
    assert inspect_package(FolderSource(package), target=ARM, offline=True, prove=True).problems == ()


def test_stale_wheels_are_cleared(index, package):
    vendored(package, ARM)
    for stale in (pure_wheel("idna", "3.1", {}), pure_wheel("ray", "2.61.0", {})):
        (package / "wheels" / stale[0]).write_bytes(stale[1])
    report = vendored(package, X86)
    assert (report.removed, "fast-1.0-cp313-cp313-manylinux_2_28_x86_64.whl" in names(package)) == (
        ("idna 3.1", "ray 2.61.0"),
        True,
    )
    assert inspect_package(FolderSource(package), target=X86, offline=True).problems == ()


def test_any_wheel_taken_away_is_noticed(index, package):
    vendored(package)
    for path in sorted((package / "wheels").iterdir()):
        content = path.read_bytes()
        path.unlink()
        assert not inspect_package(FolderSource(package), target=X86, offline=True).is_valid, path.name
        path.write_bytes(content)


def test_projects_with_source_only_are_built(index, package):
    index.add(*source_only("antlr"))
    (package / "resources_servers/lists/requirements.txt").write_text("antlr\nlists-reward\n")
    assert vendored(package, ARM).built == ("antlr",)
    assert "antlr-1.0-py3-none-any.whl" in names(package)


def test_what_cannot_be_built_for_another_architecture_is_named_and_nothing_changes(index, package):
    index.add(*source_only("native", tag="cp313-cp313-linux_x86_64"))
    (package / "resources_servers/lists/requirements.txt").write_text("native\nlists-reward\n")
    before = names(package)
    with pytest.raises(LauncherError, match=r"native 1\.0 was built here and does not run on CPython 3\.13 on aarch64"):
        vendored(package, ARM)
    assert names(package) == before
    assert vendored(package, X86).built == ("native",)


def test_requirements_that_nothing_satisfies(index, package):
    (package / "resources_servers/lists/requirements.txt").write_text("nosuchproject==1\nlists-reward\n")
    before = names(package)
    with pytest.raises(LauncherError, match="nothing satisfies"):
        vendored(package)
    assert names(package) == before
    assert [path.name for path in package.parent.iterdir() if "wheels" in path.name] == []


def test_adapter_packages_get_their_harness_and_keep_their_environment(index, tmp_path):
    index.add(*pure_wheel("verifiers", "0.1.14", {"verifiers.py": ""}))
    root = Path(scaffold_package("ascii-tree", format="adapter-wheels-v1", into=tmp_path).package)
    vendored(root)
    assert {"verifiers-0.1.14-py3-none-any.whl", "ascii_tree-0.1.0-py3-none-any.whl"} <= set(names(root))
    assert inspect_package(FolderSource(root), target=X86, offline=True).problems == ()
