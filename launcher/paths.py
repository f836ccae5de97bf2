"""Where groups and recipes are looked for.

A root is a folder that holds ``conf/`` (groups), ``recipes/`` or both. The working directory comes first when it is
one, so that a project can have recipes of its own; then the checkout this package lies in, or what its wheel carries.
"""

from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).parent
GROUPS_FOLDER = "conf"
RECIPES_FOLDER = "recipes"
RECIPE = "recipe"
"""The group that recipes are choices of."""


def config_roots(*, working_directory: Path | None = None) -> tuple[Path, ...]:
    """Folders to search, first match wins.

    Args:
        working_directory: taken instead of the process's own.

    Returns:
        One or two absolute folders; the last one always has ``conf/grpo_job.yaml``.
    """
    own = _own_root()
    here = (working_directory or Path.cwd()).resolve()
    extends = here != own and any((here / name).is_dir() for name in (GROUPS_FOLDER, RECIPES_FOLDER))
    return (here, own) if extends else (own,)


def group_choices(roots: Iterable[Path]) -> dict[str, tuple[str, ...]]:
    """Every group, ``recipe`` among them, with the names of its choices.

    Example:
        group_choices(config_roots())["backend"] == ("automodel", "dtensor")
    """
    found: dict[str, set[str]] = {RECIPE: set()}
    for root in roots:
        for folder in (root / GROUPS_FOLDER).glob("*/"):
            found.setdefault(folder.name, set()).update(file.stem for file in folder.glob("*.yaml"))
        found[RECIPE].update(file.stem for file in (root / RECIPES_FOLDER).glob("*.yaml"))
    return {group: tuple(sorted(names)) for group, names in found.items()}


def _own_root() -> Path:
    checkout = _PACKAGE.parent
    if (checkout / GROUPS_FOLDER / "grpo_job.yaml").is_file():
        return checkout.resolve()
    return (_PACKAGE / "share").resolve()
