"""Vendored wheels: names, tags, contents, and whether they are a closure."""

import shutil
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gym_bridge.versions import DEFAULT_GYM_VERSION, GYM_VERSIONS
from launcher.environment.closure import Demand, closure_gaps, prove_closure, server_demands
from launcher.environment.package import inspect_package, load_package
from launcher.environment.pure_wheel import pure_wheel
from launcher.environment.scaffold import scaffold_package
from launcher.environment.source import FolderSource
from launcher.environment.wheels import Target, inspect_wheels, matching_target, tag_problems

X86, ARM = Target(arch="x86_64"), Target(arch="aarch64")
MANIFEST = "nemo-environment.yaml"


def wheelhouse(root: Path, *wheels: tuple[str, bytes]) -> Path:
    (root / "wheels").mkdir(parents=True, exist_ok=True)
    for name, content in wheels:
        (root / "wheels" / name).write_bytes(content)
    return root


def inspected(root: Path):
    source = FolderSource(root)
    return inspect_wheels(source, [path for path in source.listing.files if path.endswith(".whl")])


def only_message(root: Path) -> str:
    wheels, problems = inspected(root)
    assert len(wheels) + len(problems) == 1
    return problems[0].message


def test_a_plain_wheel_is_read(tmp_path):
    (wheel,), problems = inspected(wheelhouse(tmp_path, pure_wheel("my-lib", "1.0", {}, requires=["idna>=3"])))
    assert (wheel.project, wheel.version, wheel.requires, problems) == ("my-lib", "1.0", (Requirement("idna>=3"),), [])


@pytest.mark.parametrize(
    "name", ["a.whl", "a-1.whl", "a-1-py3-none.whl", "a-x-py3-none-any.whl", "-1-py3-none-any.whl"]
)
def test_names_that_are_none(tmp_path, name):
    assert "is no valid wheel name" in only_message(wheelhouse(tmp_path, (name, b"")))


def test_renamed_wheels_are_noticed(tmp_path):
    _, content = pure_wheel("idna", "3.1", {})
    assert "holds idna 3.1" in only_message(wheelhouse(tmp_path, ("idna-3.2-py3-none-any.whl", content)))


def wheel_with(tmp_path: Path, **members: bytes) -> Path:
    root = wheelhouse(tmp_path)
    with zipfile.ZipFile(root / "wheels/a-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("META", "a-1.dist-info/METADATA"), content)
    return root


HEAD = b"Metadata-Version: 2.1\nName: a\nVersion: 1\n"


def test_python_that_is_too_new_for_it(tmp_path):
    message = only_message(wheel_with(tmp_path, META=HEAD + b"Requires-Python: <3.13\n"))
    assert message == "needs Python <3.13, and servers run on 3.13"


def test_members_that_would_leave_the_folder(tmp_path):
    assert "contains '..'" in only_message(wheel_with(tmp_path, META=HEAD, **{"../../evil.py": b""}))


def test_zip_bombs(tmp_path):
    root = wheel_with(tmp_path, META=HEAD, big=b"\0" * (150 * 2**20))
    assert "unpack to 157,286," in only_message(root)


def test_not_a_zip_at_all_and_a_cut_off_one(tmp_path):
    name, content = pure_wheel("a", "1", {"a.py": "x = 1\n" * 1000})
    for broken in (b"", b"hello", content[: len(content) // 2], content[:-30]):
        assert "is no usable wheel" in only_message(wheelhouse(tmp_path, (name, broken)))


def test_a_table_of_contents_that_claims_to_be_huge(tmp_path):
    name, content = pure_wheel("a", "1", {})
    end = content.rfind(b"PK\x05\x06")
    lie = content[: end + 12] + (2**31).to_bytes(4, "little") + content[end + 16 :]
    assert "table of contents has 2,147,483,648 bytes" in only_message(wheelhouse(tmp_path, (name, lie)))


def test_unreadable_metadata(tmp_path):
    assert "unreadable metadata" in only_message(wheel_with(tmp_path, META=HEAD + b"Requires-Dist: ???\n"))
    assert "0 .dist-info/METADATA" in only_message(wheel_with(tmp_path, other=b""))


@pytest.mark.parametrize(
    ("tag", "fits_x86", "fits_arm"),
    [
        ("py3-none-any", True, True),
        ("cp313-cp313-manylinux_2_28_x86_64", True, False),
        ("cp313-cp313-manylinux2014_aarch64", False, True),
        ("cp39-abi3-manylinux_2_17_x86_64", True, False),
        ("cp313-cp313-linux_x86_64", True, False),
        ("cp313-cp313-manylinux_2_40_x86_64", False, False),
        ("cp312-cp312-manylinux_2_17_x86_64", False, False),
        ("cp313-cp313t-manylinux_2_17_x86_64", False, False),
        ("cp313-cp313-musllinux_1_2_x86_64", False, False),
        ("cp313-cp313-macosx_11_0_arm64", False, False),
        ("cp313-cp313-win_amd64", False, False),
        ("py2-none-any", False, False),
    ],
)
def test_tags(tmp_path, tag, fits_x86, fits_arm):
    wheels, _ = inspected(wheelhouse(tmp_path, pure_wheel("a", "1", {}, tag=tag)))
    assert [not list(tag_problems(wheels, target)) for target in (X86, ARM)] == [fits_x86, fits_arm]


def test_an_older_glibc_takes_fewer_wheels(tmp_path):
    wheels, _ = inspected(wheelhouse(tmp_path, pure_wheel("a", "1", {}, tag="cp313-cp313-manylinux_2_28_x86_64")))
    assert list(tag_problems(wheels, Target(arch="x86_64", glibc=(2, 17))))


def test_the_target_is_inferred_when_all_wheels_agree(tmp_path):
    wheels, _ = inspected(wheelhouse(tmp_path, pure_wheel("a", "1", {}, tag="cp313-cp313-manylinux_2_28_aarch64")))
    assert matching_target(wheels, X86) == ARM
    wheels, _ = inspected(wheelhouse(tmp_path, pure_wheel("b", "1", {}, tag="cp313-cp313-manylinux_2_28_x86_64")))
    assert matching_target(wheels, X86) == X86


CLOSURE = [
    pure_wheel(
        "app", "1.0", {}, requires=["lib[fast]>=2", "win-only; sys_platform == 'win32'", "dev-tool; extra == 'dev'"]
    ),
    pure_wheel("lib", "2.1", {}, requires=["base", "accelerator>1; extra == 'fast'", "never; extra == 'slow'"]),
    pure_wheel("accelerator", "1.5", {}, tag="cp313-cp313-manylinux_2_28_x86_64"),
    pure_wheel("base", "0.1", {}, requires=["base-arm; platform_machine == 'aarch64'"]),
    pure_wheel("root-only", "1.0", {}),
]
DEMANDS = [Demand(requirement=Requirement(text), by="server", install=1) for text in ("app==1.0", "root-only")]


def gaps(root: Path, target: Target = X86) -> list[str]:
    wheels, problems = inspected(root)
    assert not problems
    return [str(gap.requirement).split(";")[0].strip() for gap in closure_gaps(DEMANDS, wheels, target)]


def test_a_complete_closure_has_no_gaps_and_uv_agrees(tmp_path):
    root = wheelhouse(tmp_path, *CLOSURE)
    assert gaps(root) == []
    assert prove_closure(DEMANDS, inspected(root)[0], root / "wheels", X86) is None


def test_any_missing_wheel_is_a_gap_and_uv_agrees(tmp_path):
    for name, _ in CLOSURE:
        root = wheelhouse(tmp_path / name, *(wheel for wheel in CLOSURE if wheel[0] != name))
        assert gaps(root), name
        problem = prove_closure(DEMANDS, inspected(root)[0], root / "wheels", X86)
        assert problem is not None
        assert "uv cannot install from wheels/" in problem.message


def test_markers_are_those_of_the_target(tmp_path):
    assert gaps(wheelhouse(tmp_path, *CLOSURE), ARM) == ["accelerator==1.5", "base-arm"]


def test_a_version_that_does_not_fit_is_a_gap(tmp_path):
    old = pure_wheel("lib", "1.9", {}, requires=["base"])
    root = wheelhouse(tmp_path, *(wheel for wheel in CLOSURE if not wheel[0].startswith("lib")), old)
    assert gaps(root) == ["lib[fast]>=2"]


def wheels_package(native, requirements: str = "my-lib==1.0\n", **wheels: bytes) -> Path:
    manifest = native({}).joinpath(MANIFEST).read_text().replace("native-v1", "wheels-v1")
    changes = {MANIFEST: manifest, "resources_servers/lists/requirements.txt": requirements}
    return native({**changes, **{f"wheels/{name}": content for name, content in wheels.items()}})


def test_both_installs_ask_for_what_gym_and_the_servers_need(native):
    root = wheels_package(native, "-e nemo-gym[dev] @ ../../\nmy-lib==1.0 # ours\n\n# comment\n")
    demands, problems = server_demands(load_package(root), FolderSource(root), GYM_VERSIONS[DEFAULT_GYM_VERSION])
    assert [str(demand.requirement) for demand in demands] == [
        "nemo-gym==0.4.0",
        "ray[default]==2.60.0",
        "openai==2.7.2",
        "pip",
        "my-lib==1.0",
    ]
    assert problems == []


def test_what_the_first_install_lacks_is_a_warning_unless_there_is_no_network(native):
    root = wheels_package(native, **dict([pure_wheel("my-lib", "1.0", {})]))
    inspection = inspect_package(FolderSource(root), target=X86, prove=True)
    (problem,) = inspection.problems
    assert problem.severity == "warning"
    assert "fetches nemo-gym==0.4.0, openai==2.7.2, pip, ray[default]==2.60.0" in problem.message
    assert "for what wheels/ lacks: nemo-gym, openai, pip, ray" in inspection.network
    strict = inspect_package(FolderSource(root), target=X86, offline=True)
    assert len(strict.problems) == 4
    assert not strict.is_valid


def test_what_the_offline_install_lacks_is_an_error(native):
    root = wheels_package(native, **dict([pure_wheel("my-lib", "1.0", {}, requires=["idna"])]))
    problems = inspect_package(FolderSource(root), target=X86).problems
    assert any("my-lib 1.0 needs idna and wheels/ lacks it, so the offline install" in p.message for p in problems)


def test_requirements_by_address_cannot_be_vendored(native):
    text = "my-lib @ git+https://example.org/my-lib\n"
    root = wheels_package(native, text, **dict([pure_wheel("my-lib", "1.0", {})]))
    problems = [p for p in inspect_package(FolderSource(root), target=X86).problems if "address" in p.message]
    assert [(p.path, p.severity) for p in problems] == [("resources_servers/lists/requirements.txt:1", "warning")]


def test_wheels_of_another_folder_do_not_count(native):
    root = wheels_package(native, **dict([pure_wheel("my-lib", "1.0", {})]))
    shutil.move(root / "wheels", root / "other")
    assert not inspect_package(FolderSource(root), target=X86).is_valid


def test_the_verifiers_environment_must_be_in_a_wheel(tmp_path):
    scaffold = scaffold_package("ascii-tree", format="adapter-wheels-v1", into=tmp_path)
    wheels = Path(scaffold.package, "wheels")
    (own,) = wheels.iterdir()
    own.unlink()
    name, content = pure_wheel("other", "1.0", {"other.py": ""})
    (wheels / name).write_bytes(content)
    problems = [p for p in inspect_package(FolderSource(Path(scaffold.package))).problems if p.severity == "error"]
    assert [p.message for p in problems] == [
        "vf_env_id is 'ascii-tree', and no wheel holds the module 'ascii_tree' that it is loaded from"
    ]
