"""What every section of the job config has in common: frozen, unknown keys refused, types taken literally."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

LARGEST_COUNT = 2**31 - 1
"""Upper bound of every count, so that products of counts stay sane and a typo of many digits is reported."""

Count = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], Field(strict=False)]
"""A list in YAML and JSON."""


class Section(BaseModel):
    """A mapping of the job config.

    ``strict`` keeps ``"32"`` and ``true`` out of integers: what a file says is what a run uses, or it is an error.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
