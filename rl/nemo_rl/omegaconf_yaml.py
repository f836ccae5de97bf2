"""Plain values -> YAML that OmegaConf reads back as the same values: no string is interpolated or becomes a number."""

import re
from collections.abc import Mapping
from typing import Any

import yaml


def to_yaml(config: Mapping[str, Any]) -> str:
    """``config`` as YAML.

    Raises:
        ValueError: a string is ``???``, which OmegaConf takes for a missing value however it is written.
    """
    return yaml.dump(_escaped(config), Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that OmegaConf's reader, unlike YAML 1.1, takes for numbers, such as 1e5."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+.0-9][-+.0-9_:eE]*$"), list("-+.0123456789"))


def _escaped(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: _escaped(item) for key, item in value.items()}
        case list() | tuple():
            return [_escaped(item) for item in value]
        case "???":
            raise ValueError("the text ??? stands for a missing value in an OmegaConf file")
        case str():
            # OmegaConf halves the backslashes in front of ${, and an odd one makes it literal.
            return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value
