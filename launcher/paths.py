"""Where groups and recipes are looked for.

A root is a folder that holds ``conf/`` (groups), ``recipes/`` or both. The working directory comes first when it is
one, so that a project can have recipes of its own; then the checkout this package lies in, or what its wheel carries.
"""

from pathlib import Path

_PACKAGE = Path(__file__).parent
GROUPS_FOLDER = "conf"
RECIPES_FOLDER = "recipes"


def config_roots(*, working_directory: Path | None = None) -> tuple[Path, ...]:
    """Folders to search, first match wins.

    Args:
        working_directory: taken instead of the process's own.

    Returns:
        One or two absolute folders; the last one always has ``conf/config.yaml``.
    """
    own = _own_root()
    here = (working_directory or Path.cwd()).resolve()
    extends = here != own and any((here / name).is_dir() for name in (GROUPS_FOLDER, RECIPES_FOLDER))
    return (here, own) if extends else (own,)


def _own_root() -> Path:
    checkout = _PACKAGE.parent
    if (checkout / GROUPS_FOLDER / "config.yaml").is_file():
        return checkout.resolve()
    return (_PACKAGE / "share").resolve()
