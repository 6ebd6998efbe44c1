"""Names beyond ASCII: users write ``ν`` or ``größe`` as Python lets them, and so do nests; isl and C++ get ASCII."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_WORD = re.compile(r"(?:\w|[^\x00-\x7f])+")  # \w lacks some signs of names, as the vowels of Devanagari
_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER .*?(\w+)$")
_LETTERS = {"ß": "ss", "æ": "ae", "ø": "o", "œ": "oe", "ł": "l", "đ": "d", "ı": "i"}


def normalised(name: str) -> str:
    """A name as Python's parser has it (NFKC): ``ﬁ`` is ``fi``, the sign µ is the letter μ. Names in sources have this
    form already; those that users give as strings must get it, or they would not be found there."""
    return name if name.isascii() else unicodedata.normalize("NFKC", name)


def as_in_sources(value: Any) -> Any:
    """An argument with all strings in it :func:`normalised`, as names in it must be and expressions may."""
    if isinstance(value, str):
        return normalised(value)
    if type(value) in (list, tuple):
        return type(value)(map(as_in_sources, value))
    if type(value) is dict:
        return {as_in_sources(key): as_in_sources(item) for key, item in value.items()}
    return value


def in_ascii(name: str) -> str:
    """A name that resembles this one, in letters, digits and ``_``: ``nu``, ``grosse``. Different names may have the
    same: who asks makes it a new one (:func:`text_in_ascii`, :meth:`swirl.codegen.context.Context.fresh`)."""
    return re.sub(r"\W", "_", name if name.isascii() else "".join(map(_letters, name)), flags=re.ASCII)


def text_in_ascii(text: str) -> str:
    """A text with every word in ASCII, different words of the text differently."""
    if text.isascii():
        return text
    taken = {word for word in _WORD.findall(text) if word.isascii()}
    spelt: dict[str, str] = {}

    def spell(found: re.Match[str]) -> str:
        word = found[0]
        if not word.isascii() and word not in spelt:
            new = in_ascii(word)
            while new in taken:
                new += "_"
            taken.add(new)
            spelt[word] = new
        return spelt.get(word, word)

    return _WORD.sub(spell, text)


def _letters(character: str) -> str:
    if character.isascii():
        return character
    parts = unicodedata.normalize("NFKD", character)
    greek = _GREEK.match(unicodedata.name(parts[0], ""))
    if greek is not None:
        return greek[2].lower() if greek[1] == "SMALL" else greek[2].capitalize()
    plain = "".join(part for part in parts if part.isascii() and part.isalnum())
    return plain or _LETTERS.get(character.lower(), f"u{ord(character):x}")
