"""A wheel of plain Python modules, written without a build backend."""

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence

_FIXED_TIME = (2020, 1, 1, 0, 0, 0)
"""Equal content gives equal bytes."""


def pure_wheel(
    project: str, version: str, modules: Mapping[str, str], *, requires: Sequence[str] = (), tag: str = "py3-none-any"
) -> tuple[str, bytes]:
    """Name and content of a wheel.

    Args:
        project: its name, such as ``word-count``.
        version: such as ``0.1.0``.
        modules: file name -> source text.
        requires: dependencies.
        tag: what the wheel claims to run on.
    """
    stem = f"{project.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [
        f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    kind = f"Wheel-Version: 1.0\nGenerator: grpo-launcher\nRoot-Is-Purelib: true\nTag: {tag}\n"
    files = {**modules, f"{info}/METADATA": "\n".join(metadata) + "\n", f"{info}/WHEEL": kind}
    record = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _FIXED_TIME), text)
    return f"{stem}-{tag}.whl", buffer.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
