"""The errors of ``swirl.errors`` under the name that users and layers import."""

from swirl.errors import (
    BodyError,
    CommandError,
    CompilerFailed,
    CompilerMissing,
    DataError,
    DeclarationError,
    DerivativeError,
    LatteError,
    LayoutError,
    MappingError,
    RecipeError,
    Refused,
    TargetError,
    TrainingError,
    UnknownName,
    ValidationError,
)

__all__ = [
    "BodyError",
    "CommandError",
    "CompilerFailed",
    "CompilerMissing",
    "DataError",
    "DeclarationError",
    "DerivativeError",
    "LatteError",
    "LayoutError",
    "MappingError",
    "RecipeError",
    "Refused",
    "TargetError",
    "TrainingError",
    "UnknownName",
    "ValidationError",
]
