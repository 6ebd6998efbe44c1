"""Optimisation schemes: the loops of a contraction as a list of atoms, outermost first (Tollenaere, section 3.2).

A scheme is written as in the thesis, in one line of text, with Greek letters or in ASCII::

    [R_j, λ_i[(12, 6), (8, 7)], T_64_k, Uλ_i, U_2_j, V_j]
    [R_j, lambda_i[(12, 6), (8, 7)], T_64_k, Ulambda_i, U_2_j, V_j]

============================  ============================================================================
atom                          meaning
============================  ============================================================================
``R_d``                       a loop over the tiles of ``d`` that fill its extent
``T_4_d``                     a loop of exactly 4 iterations
``U_4_d``                     4 copies of what is inside
``V_d``                       a vector along ``d``; the last atom
``λ_d[(2, 11), (3, 7)]``      a loop of 2 iterations with 11 for ``Uλ_d``, then one of 3 iterations with 7
``Uλ_d``                      as many copies as ``λ_d`` says
``Texct_120_d``               a loop whose tiles cover exactly 120; the last tile may be smaller
``Texctg_120_d``              the same, inside of such a loop: it covers at the most 120
``Tvar_32_d``                 a loop over at the most 32, inside of these
``ExternalCall_12_d[name]``   the micro-kernel of that name, for 12 along ``d``
``ScalP[c, ky]``              elements that do not move with these dimensions stay in registers
``Pack_A``                    a copy of what is inside reads of ``A``
``PackT_A[k, i]``             the same, with its dimensions in this order in memory
``Tpar_4_d``                  as ``T``, iterations in parallel
``Tfused[(d, 4), (e, 2)]``    several loops in parallel, as one
============================  ============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from swirl.errors import CommandError, nearest

_DIMENSION = r"[A-Za-z]\w*"


@dataclass(frozen=True)
class R:
    """A loop over the tiles of a dimension that fill its extent."""

    dimension: str

    def __str__(self) -> str:
        return f"R_{self.dimension}"


@dataclass(frozen=True)
class V:
    """A vector along a dimension."""

    dimension: str

    def __str__(self) -> str:
        return f"V_{self.dimension}"


@dataclass(frozen=True)
class T:
    """A loop of so many iterations."""

    count: int
    dimension: str

    def __str__(self) -> str:
        return f"T_{self.count}_{self.dimension}"


@dataclass(frozen=True)
class U:
    """So many copies."""

    count: int
    dimension: str

    def __str__(self) -> str:
        return f"U_{self.count}_{self.dimension}"


@dataclass(frozen=True)
class ULambda:
    """As many copies as the :class:`LambdaSeq` of the dimension says."""

    dimension: str

    def __str__(self) -> str:
        return f"Uλ_{self.dimension}"


@dataclass(frozen=True)
class LambdaSeq:
    """Loops one after the other.

    Args:
        dimension: of the loops.
        parts: iterations of each loop, and the copies of its :class:`ULambda`.
    """

    dimension: str
    parts: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"λ_{self.dimension}[{', '.join(f'({times}, {copies})' for times, copies in self.parts)}]"


@dataclass(frozen=True)
class Texct:
    """A loop whose tiles cover exactly so much."""

    size: int
    dimension: str

    def __str__(self) -> str:
        return f"Texct_{self.size}_{self.dimension}"


@dataclass(frozen=True)
class Texctg:
    """A loop whose tiles cover what a :class:`Texct` leaves to it, at the most so much."""

    size: int
    dimension: str

    def __str__(self) -> str:
        return f"Texctg_{self.size}_{self.dimension}"


@dataclass(frozen=True)
class Tvar:
    """A loop over what a :class:`Texct` or :class:`Texctg` leaves to it, at the most so much."""

    size: int
    dimension: str

    def __str__(self) -> str:
        return f"Tvar_{self.size}_{self.dimension}"


@dataclass(frozen=True)
class ExternalCall:
    """A micro-kernel.

    Args:
        size: of the call along the dimension.
        dimension: in which the kernel is flexible.
        name: of the kernel: ``i6_j2`` is 6 along ``i`` by two vectors along ``j``.
    """

    size: int
    dimension: str
    name: str

    def __str__(self) -> str:
        return f"ExternalCall_{self.size}_{self.dimension}[{self.name}]"

    @property
    def copies(self) -> tuple[tuple[str, int], ...]:
        """Dimension and copies of the kernel; the last one is that of its vectors.

        Raises:
            CommandError: it is not the name of a kernel.
        """
        found = [re.fullmatch(rf"({_DIMENSION}?)(\d+)", part) for part in self.name.split("_")]
        if not all(found):
            raise CommandError(
                f"{self.name!r} is not a micro-kernel", way_out="i6_j2 is 6 along i by two vectors along j"
            )
        return tuple((each[1], int(each[2])) for each in found if each is not None)


@dataclass(frozen=True)
class ScalP:
    """Elements that do not move with the dimensions stay in registers."""

    dimensions: tuple[str, ...]

    def __str__(self) -> str:
        return f"ScalP[{', '.join(self.dimensions)}]"


@dataclass(frozen=True)
class Pack:
    """A copy of what is inside reads of a tensor."""

    tensor: str

    def __str__(self) -> str:
        return f"Pack_{self.tensor}"


@dataclass(frozen=True)
class PackT:
    """A copy with its dimensions in another order, the last one innermost."""

    tensor: str
    order: tuple[str, ...]

    def __str__(self) -> str:
        return f"PackT_{self.tensor}[{', '.join(self.order)}]"


@dataclass(frozen=True)
class Tpar:
    """A loop of so many iterations, in parallel."""

    count: int
    dimension: str

    def __str__(self) -> str:
        return f"Tpar_{self.count}_{self.dimension}"


@dataclass(frozen=True)
class Tfused:
    """Loops in parallel, as one.

    Args:
        loops: dimension and iterations of each.
    """

    loops: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"Tfused[{', '.join(f'({dimension}, {count})' for dimension, count in self.loops)}]"


Atom = R | V | T | U | ULambda | LambdaSeq | Texct | Texctg | Tvar | ExternalCall | ScalP | Pack | PackT | Tpar | Tfused
Partial = Texct | Texctg | Tvar


@dataclass(frozen=True)
class Level:
    """An atom on one dimension.

    Args:
        place: of the atom in the scheme.
        atom: itself.
        inner: what it goes by along the dimension: the size of what is inside of it. Of ``λ`` and of what is between
            it and its ``Uλ``, that of each part.
        size: what it covers along the dimension: of these, each part.
    """

    place: int
    atom: Atom
    inner: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Scheme:
    """A list of atoms, outermost first."""

    atoms: tuple[Atom, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.atoms))}]"

    @property
    def ascii(self) -> str:
        """The same without Greek letters."""
        return str(self).replace("λ", "lambda")

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Those that have an atom, in order of appearance."""
        return tuple(dict.fromkeys(d for atom in self.atoms for d, _ in iterated(atom)))

    def levels(self, extents: Mapping[str, int], lanes: int) -> dict[str, list[Level]]:
        """The atoms of each dimension, outermost first.

        Args:
            extents: of all dimensions.
            lanes: elements of a vector.

        Raises:
            CommandError: the scheme is not one of these extents; the message says which rule it breaks.
        """
        self._check_order()
        for dimension in self.dimensions:
            if dimension not in extents:
                raise CommandError(
                    f"{self}: there is no dimension {dimension!r}",
                    way_out=f"{nearest(dimension, extents)}the dimensions are {', '.join(extents)}",
                )
        found = {}
        for dimension, extent in extents.items():
            own = [(n, atom) for n, atom in enumerate(self.atoms) if any(d == dimension for d, _ in iterated(atom))]
            try:
                found[dimension] = _levels(dimension, own, extent, lanes)
            except CommandError as error:
                raise CommandError(f"{self}: {error.message}", way_out=error.way_out) from None
        return found

    def _check_order(self) -> None:
        """Raises CommandError where atoms are in places that they cannot have."""
        copies = [n for n, atom in enumerate(self.atoms) if isinstance(atom, (U, ULambda))]
        for n, atom in enumerate(self.atoms):
            last = n == len(self.atoms) - 1
            if isinstance(atom, (V, ExternalCall)) and not last:
                raise CommandError(f"{self}: {atom} must be the last atom")
            if copies and n > copies[0] and not isinstance(atom, (U, ULambda, V)):
                raise CommandError(
                    f"{self}: {atom} is inside of {self.atoms[copies[0]]}", way_out="copies come after all other atoms"
                )
            if isinstance(atom, ExternalCall) and copies:
                raise CommandError(f"{self}: {atom} has copies of its own", way_out="leave out U")


def iterated(atom: Atom) -> tuple[tuple[str, int | None], ...]:
    """The dimensions that an atom iterates along, and how often where it says so."""
    match atom:
        case T(count, dimension) | U(count, dimension) | Tpar(count, dimension):
            return ((dimension, count),)
        case R(dimension) | V(dimension) | ULambda(dimension) | LambdaSeq(dimension, _):
            return ((dimension, None),)
        case Texct(_, dimension) | Texctg(_, dimension) | Tvar(_, dimension):
            return ((dimension, None),)
        case ExternalCall():
            return tuple((dimension, None) for dimension, _ in atom.copies)
        case Tfused(loops):
            return loops
        case _:
            return ()


def _levels(dimension: str, own: Sequence[tuple[int, Atom]], extent: int, lanes: int) -> list[Level]:
    """The levels of one dimension, checked from the innermost one outwards."""
    found: list[Level] = []
    size: tuple[int, ...] = (1,)
    parts = _parts(dimension, [atom for _, atom in own])
    granule = 1
    for number in range(len(own) - 1, -1, -1):
        place, atom = own[number]
        outer = own[number - 1][1] if number else None
        inside = own[number + 1][1] if number + 1 < len(own) else None
        inner = size
        match atom:
            case V():
                size = (lanes,)
            case T() | U() | Tpar() | Tfused():
                counts = [count for d, count in iterated(atom) if d == dimension]
                if len(counts) > 1:
                    raise CommandError(f"{atom} has {dimension} twice")
                size = tuple((counts[0] or 1) * each for each in inner)
            case ULambda():
                size = tuple(copies * inner[0] for _, copies in parts)
            case LambdaSeq():
                size = (sum(times * each for (times, _), each in zip(parts, inner, strict=True)),)
            case ExternalCall():
                size = (_call_size(atom, dimension, lanes),)
            case Texct() | Texctg() | Tvar():
                _check_partial(atom, outer, inside)
                if isinstance(atom, Tvar):
                    granule = inner[0]
                elif isinstance(inside, ExternalCall):
                    granule = 1
                if len(inner) > 1 or atom.size % granule:
                    raise CommandError(
                        f"{atom} is not a multiple of {granule}, the tile inside of its partial ones"
                        if len(inner) == 1
                        else f"{atom} is between λ_{dimension} and Uλ_{dimension}"
                    )
                size = (atom.size,)
            case R():
                if number:
                    raise CommandError(
                        f"{atom} is inside of {own[number - 1][1]}, and is the outermost atom of its dimension, once"
                    )
                if extent % inner[0]:
                    raise CommandError(
                        f"{extent} along {dimension} is not a multiple of {inner[0]}, the tile in {atom}"
                    )
                size = (extent,)
        found.insert(0, Level(place, atom, inner, size))
    if size != (extent,):
        raise CommandError(
            f"its atoms along {dimension} cover {size[0]}, of {extent}", way_out=f"R_{dimension} covers what is left"
        )
    return found


def _parts(dimension: str, atoms: Sequence[Atom]) -> tuple[tuple[int, int], ...]:
    """What ``λ`` says to ``Uλ``."""
    sequences = [n for n, atom in enumerate(atoms) if isinstance(atom, LambdaSeq)]
    copies = [n for n, atom in enumerate(atoms) if isinstance(atom, ULambda)]
    if not sequences and not copies:
        return ()
    if len(sequences) != 1 or len(copies) != 1 or sequences[0] > copies[0]:
        raise CommandError(
            f"λ_{dimension} needs one Uλ_{dimension} inside of it, and Uλ_{dimension} one λ_{dimension} around it"
        )
    found = atoms[sequences[0]]
    assert isinstance(found, LambdaSeq)
    return found.parts


def _call_size(atom: ExternalCall, dimension: str, lanes: int) -> int:
    """What a call covers along a dimension: as much as it says where the kernel is flexible."""
    *_, (vector, _) = atom.copies
    most = {d: copies * (lanes if d == vector else 1) for d, copies in atom.copies}
    if atom.dimension not in most or atom.dimension == vector:
        raise CommandError(
            f"{atom.name} is not flexible along {atom.dimension}",
            way_out=f"it is along {', '.join(d for d in most if d != vector)}",
        )
    if dimension != atom.dimension:
        return most[dimension]
    if atom.size > most[dimension]:
        raise CommandError(f"{atom.name} covers at the most {most[dimension]} along {dimension}, not {atom.size}")
    return atom.size


def _check_partial(atom: Partial, outer: Atom | None, inside: Atom | None) -> None:
    """Section 3.5: what is between a Texct and the loop with a variable bound."""
    if isinstance(atom, (Texct, Texctg)) and not isinstance(inside, (Tvar, Texctg, ExternalCall)):
        raise CommandError(
            f"the next atom along {atom.dimension} inside of {atom} is {inside or 'missing'}",
            way_out="it is Tvar, Texctg or ExternalCall",
        )
    if isinstance(atom, (Texctg, Tvar)) and not isinstance(outer, (Texct, Texctg)):
        raise CommandError(
            f"the next atom along {atom.dimension} around {atom} is {outer or 'missing'}",
            way_out="it is Texct or Texctg",
        )


# --- text ---------------------------------------------------------------------------------------------------
_HEADS = ("R", "V", "T", "U", "Uλ", "λ", "Texct", "Texctg", "Tvar", "ExternalCall", "ScalP", "Pack", "PackT", "Tpar")
_ATOM = re.compile(r"(?P<head>[A-Za-zλ]+?)(?:_(?P<number>\d+))?(?:_(?P<name>[A-Za-z]\w*))?(?:\[(?P<list>[^\]]*)\])?")
_COUNTED: Mapping[str, type[T | U | Tpar | Texct | Texctg | Tvar]] = {
    "T": T,
    "U": U,
    "Tpar": Tpar,
    "Texct": Texct,
    "Texctg": Texctg,
    "Tvar": Tvar,
}
_OTHER_HEADS = {"Text": "Texct", "Textg": "Texctg", "λseq": "λ", "Tfuse": "Tfused"}
"""As other sections of the thesis spell them."""


def parse_scheme(text: str) -> Scheme:
    """The scheme that a text says.

    Raises:
        CommandError: it is not a scheme; the message has the part that is wrong.
    """
    inside = re.fullmatch(r"\s*\[(.*)\]\s*", text.replace("lambda", "λ"), re.DOTALL)
    if inside is None:
        raise CommandError(f"{text!r} is not a scheme", way_out="[R_k, T_4_i, U_2_j, V_j] is one")
    atoms = tuple(_atom(part.strip()) for part in _split(inside[1]))
    if not atoms:
        raise CommandError("a scheme has at least one atom", way_out="[R_i, R_j, R_k]")
    return Scheme(atoms)


def _split(text: str) -> Iterator[str]:
    """The parts between commas and semicolons outside of brackets."""
    depth, start = 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter in ",;" and not depth:
            yield text[start:place]
            start = place + 1
    if text[start:].strip():
        yield text[start:]


def _atom(text: str) -> Atom:
    found = _ATOM.fullmatch(text)
    head = _OTHER_HEADS.get(found["head"], found["head"]) if found is not None else ""
    if found is not None:
        number = int(found["number"]) if found["number"] else None
        name = found["name"]
        try:
            made = _made(head, number, name, found["list"])
        except ValueError:
            made = None
        if made is not None:
            _check_counts(made, text)
            return made
    known = (*_HEADS, "Tfused")
    raise CommandError(
        f"{text!r} is not an atom", way_out=f"{nearest(head or text, known)}atoms are {', '.join(known)}"
    )


def _made(head: str, number: int | None, name: str | None, inside: str | None) -> Atom | None:
    """The atom of these parts; None where it has others."""
    match head, number is not None, name is not None, inside is not None:
        case "R" | "V" | "Uλ", False, True, False:
            plain: dict[str, type[R | V | ULambda]] = {"R": R, "V": V, "Uλ": ULambda}
            return plain[head](str(name))
        case "T" | "U" | "Tpar" | "Texct" | "Texctg" | "Tvar", True, True, False:
            return _COUNTED[head](int(number or 0), str(name))
        case "λ", False, True, True:
            pairs = tuple((int(first), int(second)) for first, second in _pairs(str(inside)))
            return LambdaSeq(str(name), pairs) if pairs else None
        case "ExternalCall", True, True, True:
            return ExternalCall(int(number or 0), str(name), str(inside).strip())
        case "ScalP", False, False, True:
            return ScalP(_names(str(inside)))
        case "Pack" | "PackT", False, True, True:  # the thesis writes Pack with an order, too
            return PackT(str(name), _names(str(inside)))
        case "Pack", False, True, False:
            return Pack(str(name))
        case "Tfused", False, False, True:
            pairs_of = tuple((first, int(second)) for first, second in _pairs(str(inside)))
            return Tfused(pairs_of) if pairs_of else None
    return None


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _pairs(text: str) -> list[tuple[str, str]]:
    """``(2, 11), (3, 7)``; none where it is anything else."""
    pair = r"\(\s*(\w+)\s*,\s*(\w+)\s*\)"
    if not re.fullmatch(rf"\s*{pair}(\s*[,;]\s*{pair})*\s*", text):
        return []
    return re.findall(pair, text)


def _check_counts(atom: Atom, text: str) -> None:
    match atom:
        case T(count, _) | U(count, _) | Tpar(count, _) | Texct(count, _) | Texctg(count, _) | Tvar(count, _):
            counts: Sequence[int] = [count]
        case ExternalCall(count, _, _):
            counts = [count]
            atom.copies  # noqa: B018 (raises)
        case LambdaSeq(_, parts):
            counts = [number for part in parts for number in part]
            if len(parts) < 2:
                raise CommandError(f"{text!r} has one part", way_out="λ has two parts or more; one is T and U")
        case Tfused(loops):
            counts = [count for _, count in loops]
        case _:
            counts = []
    if min(counts, default=1) < 1:
        raise CommandError(f"{text!r} has {min(counts)} iterations", way_out="a number is 1 or more")
