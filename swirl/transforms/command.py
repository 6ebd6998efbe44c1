"""What a command is: declared once, found by name; checks, errors and signature come from its parameters."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Concatenate, Generic, Literal, ParamSpec, Union, get_args, get_origin

from swirl.errors import CommandError, nearest
from swirl.ir.nest import Program
from swirl.ir.types import explicit
from swirl.transforms.arguments import Argument, LoopOccurrence, Selection

P = ParamSpec("P")

SELECTED = "loop_var"
"""The parameter whose loops ``occurrence`` chooses one of."""
_OCCURRENCE = "only one of the loops that are meant, counted from 0 in order of appearance (-1 is the last)."
OCCURRENCE = inspect.Parameter(
    "occurrence", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=LoopOccurrence | None
)
_KINDS = {str: "a string", int: "a whole number", bool: "True or False", type(None): "None"}
_WORDS = {str, bool, type(None)}


@dataclass(frozen=True)
class Assumption:
    """What a command assumes of a program's numbers; ``explain`` repeats it wherever the command changed something.

    Args:
        text: a sentence, after "assumes that".
        option: the switch that has to be on for it; None is always.
    """

    text: str
    option: str | None = None


@dataclass(frozen=True)
class Parameter:
    """One parameter of a command.

    Args:
        name: of the parameter.
        kinds: the types that it takes, as far as they are plain ones.
        arguments: the checks that are attached to its type.
    """

    name: str
    kinds: tuple[type, ...]
    arguments: tuple[Argument, ...]

    @staticmethod
    def of(parameter: inspect.Parameter) -> Parameter:
        """What the annotation says; for ``*pairs`` and ``**new``, of each value."""
        kinds, arguments = _parts(parameter.annotation)
        return Parameter(parameter.name, kinds, arguments)

    def checked(self, value: Any) -> Any:
        """The value that the command gets.

        Raises:
            CommandError: it is of another kind.
        """
        if self._simple and not any(
            isinstance(value, kind) and (kind is bool) == isinstance(value, bool) for kind in self.kinds
        ):
            raise CommandError(f"{self.name} must be {' or '.join(_KINDS[k] for k in self.kinds)}, not {value!r}")
        for argument in self._arguments(value):
            value = value if argument.alone is None else argument.alone(value, self.name)
        return value

    def check_within(self, program: Program, given: Mapping[str, Any]) -> None:
        """Raises CommandError where the value names, or numbers, nothing in the program."""
        value = given[self.name]
        for argument in self._arguments(value):
            if argument.within is not None:
                argument.within(program, value, given)

    def _arguments(self, value: Any) -> tuple[Argument, ...]:
        return () if value is None and type(None) in self.kinds else self.arguments

    @property
    def _simple(self) -> bool:
        """Whether a value of another kind is refused here: words, switches, and types marked ``simple``. Numbers and
        lists are left to their checks."""
        return set(self.kinds) <= _WORDS or any(argument.simple for argument in self.arguments)


def _parts(annotation: Any) -> tuple[tuple[type, ...], tuple[Argument, ...]]:
    """The types in an annotation, and the checks."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        kinds, arguments = _parts(inner)
        return kinds, (*arguments, *(note for note in notes if isinstance(note, Argument)))
    if get_origin(annotation) is Literal:
        return tuple(dict.fromkeys(type(value) for value in get_args(annotation))), ()
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_parts(member) for member in get_args(annotation)]
        return tuple(kind for kinds, _ in parts for kind in kinds), tuple(a for _, found in parts for a in found)
    return (annotation,), ()


def with_occurrence(
    parameters: Sequence[inspect.Parameter], occurrence: inspect.Parameter = OCCURRENCE
) -> list[inspect.Parameter]:
    """Parameters of a command that is about the loops of a name, with ``occurrence`` before ``nest``."""
    place = next(number for number, each in enumerate(parameters) if each.name == "nest")
    return [*parameters[:place], occurrence, *parameters[place:]]


@dataclass(frozen=True)
class Command(Generic[P]):
    """A pure function program → program that raises :class:`swirl.errors.Refused` where it would change the meaning.

    Args:
        name: of the command, its function and its module.
        function: what is called with checked arguments.
        assumes: what it assumes of the data.
        lays_out: whether it changes a buffer's layout: it takes no phase then, and acts on all.
    """

    name: str
    function: Callable[Concatenate[Program, P], Program]
    assumes: Assumption | None = None
    lays_out: bool = False

    def __call__(self, program: Program, *arguments: P.args, **options: P.kwargs) -> Program:
        """The program after the command. The command gets the program with every conversion of types spelled out, so
        that an update of a whole number by a fraction, which loses something at each step, is not a sum whose order may
        change.

        Raises:
            CommandError, Refused, LayoutError: as the command says.
        """
        program = explicit(program)
        bound = self.bound(arguments, options)
        for parameter in self._parameters.values():
            if parameter.name in bound.arguments:
                parameter.check_within(program, bound.arguments)
        return self.function(program, *bound.args, **bound.kwargs)

    def bound(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> inspect.BoundArguments:
        """The arguments by the names of their parameters, each checked separately.

        Raises:
            CommandError: a wrong argument; the message says what the command takes.
        """
        try:
            bound = self.signature.bind(*arguments, **options)
        except TypeError as error:
            unknown = next((key for key in options if key not in self.signature.parameters), None)
            hint = nearest(unknown, list(self.signature.parameters)) if unknown is not None else ""
            raise CommandError(str(error), way_out=f"{hint}it is {self.usage}") from None
        for name, value in bound.arguments.items():
            parameter = self._parameters.get(name)
            if parameter is not None:
                several = self.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
                checked = tuple(map(parameter.checked, value)) if several else parameter.checked(value)
                bound.arguments[name] = checked
        return self._selected(bound) if self.selects else bound

    def _selected(self, bound: inspect.BoundArguments) -> inspect.BoundArguments:
        """The arguments of its function, of which ``occurrence`` is a part of the loop's name."""
        given = dict(bound.arguments)
        occurrence, names = given.pop(OCCURRENCE.name, None), given.get(SELECTED)
        if occurrence is not None:
            several = [names] if isinstance(names, str) else names
            if several is None or any(Selection.of(name).occurrence is not None for name in several):
                raise CommandError(
                    f"occurrence={occurrence} is one of the loops of a name", way_out=f"{SELECTED}=… names them"
                )
            numbered = [f"{name}[{occurrence}]" for name in several]
            given[SELECTED] = numbered[0] if isinstance(names, str) else numbered
        return inspect.BoundArguments(self._own_signature, given)

    @cached_property
    def signature(self) -> inspect.Signature:
        """What it takes after the program: what its function does, and ``occurrence`` where it is about loops."""
        whole = self._own_signature
        return whole.replace(parameters=with_occurrence(list(whole.parameters.values()))) if self.selects else whole

    @cached_property
    def _own_signature(self) -> inspect.Signature:
        """What its function takes after the program."""
        whole = inspect.signature(self.function, eval_str=True)
        return whole.replace(parameters=list(whole.parameters.values())[1:])

    @cached_property
    def selects(self) -> bool:
        """Whether it is about the loops of a name, of which ``occurrence`` chooses one."""
        return SELECTED in self._own_signature.parameters

    @cached_property
    def usage(self) -> str:
        """As a recipe calls it: ``split(phase, loop_var, at, *, nest=None)``."""
        takes = [parameter.replace(annotation=parameter.empty) for parameter in self.signature.parameters.values()]
        if not self.lays_out:
            takes.insert(0, inspect.Parameter("phase", inspect.Parameter.POSITIONAL_OR_KEYWORD))
        return f"{self.name}{self.signature.replace(parameters=takes, return_annotation=inspect.Signature.empty)}"

    @property
    def documentation(self) -> str:
        """The docstring of its function, with ``occurrence``."""
        text = inspect.getdoc(self.function) or ""
        if not self.selects:
            return text
        before, after = re.split(r"(?m)^(?=    nest: )", text, maxsplit=1)
        return f"{before}    occurrence: {_OCCURRENCE}\n{after}"

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        """The parameters whose arguments are checked; the command checks ``**new`` itself."""
        found = self.signature.parameters.values()
        return {each.name: Parameter.of(each) for each in found if each.kind is not inspect.Parameter.VAR_KEYWORD}


COMMANDS: dict[str, Command[...]] = {}
"""Every command by name, and by the names that older recipes use."""


def command(
    *, assumes: Assumption | None = None, lays_out: bool = False
) -> Callable[[Callable[Concatenate[Program, P], Program]], Command[P]]:
    """Makes a function a command, found by its name.

    Args:
        assumes: what it assumes of the data.
        lays_out: whether it changes a buffer's layout.
    """

    def register(function: Callable[Concatenate[Program, P], Program]) -> Command[P]:
        made = Command(function.__name__, function, assumes, lays_out)
        COMMANDS[made.name] = made
        return made

    return register
