"""Settings of a whole net."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import uuid4

import numpy as np

from latte.model.checks import is_flag, is_size, size_limit
from latte.model.freezing import Freezing
from latte.model.source_location import user_location
from swirl.config import compatibility
from swirl.errors import CommandError, DeclarationError
from swirl.ir.buffers import Layout

T = TypeVar("T")


@dataclass
class NetSettings:
    """The settings of a whole net, shared by its ensembles.

    Args:
        batch_size: items in a batch.
        seed: of all random numbers.
        keeps_all: whether every layer's value and gradient can be read.
        memory: ``"less"`` where backward computes values again instead of keeping them.
        recipes: folders of recipes for this net, the first one first.
        force_backward: whether gradients of data are computed.
        compat: whether activations work in place, as the original's, and commands that do not apply are skipped.
        freezing: what does not train.
        told_of_sizes: whether the user has been told that sizes are not the original's; see :mod:`latte.model.sizes`.
        given: storage whose memory whoever runs the net brings with each call → how that is laid out.
        origin: what a net and its copies have in common, and no other net has.
        compiled: whether the declaration is complete: it can no longer be changed.
    """

    batch_size: int
    seed: int
    keeps_all: bool = False
    memory: str | None = None
    recipes: tuple[Path, ...] = ()
    force_backward: bool = False
    compat: bool = False
    compiled: bool = False
    freezing: Freezing = field(default_factory=Freezing)
    told_of_sizes: bool = False
    given: Mapping[str, Layout] = field(default_factory=dict)
    origin: str = field(default_factory=lambda: uuid4().hex)

    @staticmethod
    def of(
        batch_size: int,
        seed: int | None,
        keep: str | None,
        compat: bool | None = None,
        memory: str | None = None,
        recipes: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    ) -> NetSettings:
        """Checked settings; see :class:`latte.net.Net`.

        Raises:
            DeclarationError: the batch size is not a positive integer, the seed is negative or too large, ``keep``,
                ``compat`` or ``memory`` is something else, all is to be kept in less memory, or ``recipes`` is not a
                folder.
        """
        if not is_size(batch_size):
            raise DeclarationError(
                f"the batch size must be a positive integer{size_limit(batch_size)}, not {batch_size!r}",
                location=user_location(),
            )
        if seed is not None and not is_size(seed, 0):
            raise DeclarationError(
                f"the seed must be an integer from 0 to 2**31 - 1, not {seed!r}", location=user_location()
            )
        if keep is not None and not (isinstance(keep, str) and keep == "all"):
            raise DeclarationError(
                f"keep must be 'all', not {keep!r}", location=user_location(), way_out="net.keep(conv1) keeps one layer"
            )
        if compat is not None and not is_flag(compat):
            raise DeclarationError(f"compat must be True or False, not {compat!r}", location=user_location())
        if memory is not None and not (isinstance(memory, str) and memory == "less"):
            raise DeclarationError(
                f"memory must be 'less', not {memory!r}",
                location=user_location(),
                way_out="by default values are kept as long as they are needed",
            )
        in_place = compatibility() if compat is None else bool(compat)
        if memory is not None and (keep == "all" or in_place):
            raise DeclarationError(
                "keep='all' and memory='less' exclude each other",
                location=user_location(),
                way_out="net.keep(conv1) keeps one layer",
            )
        folders = recipes if isinstance(recipes, (list, tuple)) else () if recipes is None else (recipes,)
        wrong = [each for each in folders if not (isinstance(each, (str, PathLike)) and Path(each).is_dir())]
        if wrong:
            raise DeclarationError(
                f"recipes must be a folder of recipe files, not {wrong[0]!r}",
                location=user_location(),
                way_out="net.use_recipe(conv1, path) names one file",
            )
        drawn = int(np.random.randint(2**31)) if seed is None else int(seed)
        paths = tuple(map(Path, folders))
        keeps_all = keep == "all" or in_place
        return NetSettings(int(batch_size), drawn, keeps_all, memory, paths, compat=in_place)


class Setting(Generic[T]):
    """An attribute of a net that is one of its settings. A flag may be set until the net is compiled."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, net: Any, owner: type) -> T:
        found: Any = self if net is None else getattr(net.graph.settings, self._name)
        return found

    def __set__(self, net: Any, value: T) -> None:
        location, settings = user_location(), net.graph.settings
        if not is_flag(getattr(settings, self._name)):
            way_out = "Net(batch_size, seed=…) declares another one"
            raise CommandError(f"{self._name} of a net is fixed", location=location, way_out=way_out)
        if not is_flag(value):
            raise DeclarationError(f"{self._name} must be True or False, not {value!r}", location=location)
        if settings.compiled and bool(value) != getattr(settings, self._name):
            way_out = f"set {self._name} before net.compile()"
            raise CommandError(f"{self._name}: the net is compiled already", location=location, way_out=way_out)
        setattr(settings, self._name, bool(value))
