"""Parts of pages that a program writes: between ``<!-- name -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re


def replaced(text: str, name: str, part: str) -> str:
    """The page with another part of that name.

    Raises:
        ValueError: the page has no such part, or two.
    """
    marks = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)"
    text, count = re.subn(marks, lambda found: f"{found[1]}{part}\n{found[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page has {count} parts <!-- {name} --> … <!-- end -->, not one")
    return text
