"""Kinds of numbers in the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Amount = Annotated[float, Field(ge=0.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
