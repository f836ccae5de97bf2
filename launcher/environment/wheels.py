"""Vendored wheels, one by one: names, tags, one version per project, and what is inside, read with bounds.

wheels/*.whl --(inspect_wheels)--> Wheel for each that can be used + problems
A wheel is a zip that somebody else made: nothing is unpacked, and its directory is measured before it is read.
"""

import platform
import struct
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from typing import BinaryIO, Literal, get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from launcher.environment.source import PackageSource
from launcher.schema.filesets import relative_path_fault
from launcher.schema.problems import Problem

Arch = Literal["x86_64", "aarch64"]
ARCHES: tuple[Arch, ...] = get_args(Arch)

PYTHON = (3, 13)
"""The interpreter of the training image and of this project."""
MAX_DIRECTORY_BYTES = 16 * 2**20
"""Of a wheel's table of contents; torch's is 2 MB."""
MAX_UNPACKED_BYTES = 16 * 2**30
MAX_RATIO = 200
"""Unpacked to packed size of a wheel above 100 MB unpacked. Deflate reaches 1,000 on zeros, 10 on libraries."""
MAX_METADATA_BYTES = 4 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The machine that wheels are for: CPython 3.13 on Linux.

    Example:
        Target(arch="aarch64", glibc=(2, 39))
    """

    arch: Arch
    glibc: tuple[int, int] = (2, 39)
    """Newest glibc that a wheel may ask for; the training image has 2.39."""

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags such a machine accepts, the most demanding first."""
        newest = [f"manylinux_2_{minor}_{self.arch}" for minor in range(self.glibc[1], 4, -1)]
        legacy = [f"manylinux2014_{self.arch}"]
        if self.arch == "x86_64":
            legacy += ["manylinux2010_x86_64", "manylinux1_x86_64"]
        return (*newest, *legacy, f"linux_{self.arch}")

    @property
    def tags(self) -> frozenset[Tag]:
        """Every wheel tag such a machine accepts."""
        interpreter = "cp" + "".join(map(str, PYTHON))
        native = cpython_tags(PYTHON, abis=[interpreter], platforms=self.platforms)
        return frozenset(native) | frozenset(compatible_tags(PYTHON, interpreter=interpreter, platforms=self.platforms))

    def __str__(self) -> str:
        return f"CPython 3.13 on {self.arch} with glibc {self.glibc[0]}.{self.glibc[1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """A wheel whose name and metadata could be read.

    Example:
        Wheel(path="wheels/numpy-2.5.5-cp313-cp313-manylinux_2_27_x86_64.whl", project="numpy", version="2.5.5", ...)
    """

    path: str
    project: str
    """Normalised name."""
    version: str
    tags: frozenset[Tag]
    requires: tuple[Requirement, ...]
    """Its dependencies, markers included."""
    modules: frozenset[str]
    """What Python can import from it: top-level modules and packages."""


def host_arch() -> Arch:
    """The architecture of this machine; x86_64 on one that no engine runs on."""
    machine = platform.machine()
    return next((arch for arch in ARCHES if arch == machine), "x86_64")


def inspect_wheels(source: PackageSource, paths: Sequence[str]) -> tuple[tuple[Wheel, ...], list[Problem]]:
    """Look into every wheel."""
    wheels: list[Wheel] = []
    problems: list[Problem] = []
    for path in paths:
        outcome = _inspect(source, path)
        if isinstance(outcome, Wheel):
            wheels.append(outcome)
        else:
            problems.append(outcome)
    return tuple(wheels), problems + list(_repeated_projects(wheels))


def matching_target(wheels: Sequence[Wheel], preferred: Target) -> Target:
    """The architecture that all wheels fit, ``preferred`` when it is one of them or none fits."""
    others = [Target(arch=arch, glibc=preferred.glibc) for arch in ARCHES if arch != preferred.arch]
    fitting = [target for target in (preferred, *others) if not list(tag_problems(wheels, target))]
    return fitting[0] if fitting else preferred


def tag_problems(wheels: Sequence[Wheel], target: Target) -> Iterator[Problem]:
    """Projects without a wheel that installs on ``target``."""
    accepted = target.tags
    usable = {wheel.project for wheel in wheels if wheel.tags & accepted}
    for wheel in wheels:
        if wheel.project in usable:
            continue
        found = ", ".join(sorted({str(tag) for tag in wheel.tags})[:4])
        message = f"{wheel.project} has no wheels with a matching platform tag for {target}; this one is {found}"
        fix = f"rebuild the closure for that machine: grpo env vendor DIR --arch {target.arch}"
        yield Problem(code="wheel-tag", path=wheel.path, message=message, fix=fix)


def _repeated_projects(wheels: Sequence[Wheel]) -> Iterator[Problem]:
    versions: dict[str, set[str]] = {}
    for wheel in wheels:
        versions.setdefault(wheel.project, set()).add(wheel.version)
    for project, found in sorted(versions.items()):
        if len(found) > 1:
            message = (
                f"wheels/ vendors {len(found)} versions of one project: {project} {', '.join(sorted(found))}; "
                "the install ends with 'your requirements are unsatisfiable'"
            )
            fix = "clear wheels/ and rebuild the closure: grpo env vendor DIR --arch x86_64|aarch64"
            yield Problem(code="wheel-versions", path="wheels", message=message, fix=fix)


def _inspect(source: PackageSource, path: str) -> Wheel | Problem:
    try:
        project, version, _, tags = parse_wheel_filename(path.rsplit("/", 1)[-1])
    except (InvalidWheelFilename, ValueError) as error:
        return _refused(path, f"is no valid wheel name: {error}", "name it PROJECT-VERSION-PYTHON-ABI-PLATFORM.whl")
    try:
        with source.open(path) as file:
            _check_directory_size(file, source.listing.files[path])
            with zipfile.ZipFile(file) as archive:
                metadata, modules = _metadata(archive), _modules(archive)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        return _refused(path, f"is no usable wheel: {error}", "download or build it again")
    message = BytesParser().parsebytes(metadata)
    named = (canonicalize_name(str(message["Name"])), str(message["Version"]).strip())
    if named[0] != project or named[1] != str(version):
        fix = "download it again; do not rename wheels"
        return _refused(path, f"holds {named[0]} {named[1]}, not what its name says", fix)
    try:
        admits = SpecifierSet(str(message["Requires-Python"] or "")).contains("3.13.0", prereleases=True)
        requires = tuple(Requirement(str(text)) for text in message.get_all("Requires-Dist", []))
    except (InvalidSpecifier, InvalidRequirement) as error:
        return _refused(path, f"has unreadable metadata: {str(error).splitlines()[0]}", "vendor another version of it")
    if not admits:
        fix = "vendor a version that runs on Python 3.13"
        return _refused(path, f"needs Python {message['Requires-Python']}, and servers run on 3.13", fix)
    return Wheel(
        path=path, project=project, version=str(version), tags=tags, requires=requires, modules=frozenset(modules)
    )


def _metadata(archive: zipfile.ZipFile) -> bytes:
    """METADATA of a wheel whose members are named and sized as a wheel's are.

    Raises:
        ValueError: they are not.
    """
    members = archive.infolist()
    for member in members:
        if fault := relative_path_fault(member.filename.removesuffix("/")):
            raise ValueError(f"member {member.filename[:80]!r} {fault}")
    packed, unpacked = sum(member.compress_size for member in members), sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED_BYTES or (unpacked > 100 * 2**20 and unpacked > MAX_RATIO * packed):
        raise ValueError(f"{packed:,} bytes unpack to {unpacked:,}")
    found = [member for member in members if _is_metadata(member.filename)]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} .dist-info/METADATA files")
    if found[0].file_size > MAX_METADATA_BYTES:
        raise ValueError(f"METADATA has {found[0].file_size:,} bytes")
    with archive.open(found[0]) as file:  # a bounded read: the size in the directory may be a lie
        return file.read(MAX_METADATA_BYTES)


def _modules(archive: zipfile.ZipFile) -> set[str]:
    top = (name.split("/")[0] for name in archive.namelist() if name.endswith((".py", ".so", ".pyd")))
    return {name.split(".")[0] for name in top if not name.endswith((".dist-info", ".data"))}


def _is_metadata(name: str) -> bool:
    folder, _, leaf = name.partition("/")
    return leaf == "METADATA" and folder.endswith(".dist-info")


def _check_directory_size(file: BinaryIO, file_size: int) -> None:
    """``zipfile`` reads as much directory as the archive's end record claims; look at the claim first."""
    tail_size = min(file_size, 65_557 + 20)  # end record, longest comment, zip64 locator
    file.seek(file_size - tail_size)
    tail = file.read(tail_size)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) < end + 22:
        raise ValueError("it is no zip archive")
    claimed = struct.unpack_from("<I", tail, end + 12)[0]
    if end >= 20 and tail[end - 20 : end - 16] == b"PK\x06\x07":
        file.seek(min(struct.unpack_from("<Q", tail, end - 12)[0], max(file_size - 56, 0)))
        record = file.read(56)
        claimed = max(claimed, struct.unpack_from("<Q", record, 40)[0]) if len(record) == 56 else file_size
    if claimed > MAX_DIRECTORY_BYTES:
        raise ValueError(f"its table of contents has {claimed:,} bytes")
    file.seek(0)


def _refused(path: str, message: str, fix: str) -> Problem:
    return Problem(code="wheel", path=path, message=message, fix=fix)
