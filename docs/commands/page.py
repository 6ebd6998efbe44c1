"""The commands as Markdown: docstrings, examples as they run, refusals as they are printed."""

from __future__ import annotations

import re
from inspect import cleandoc

from docs.commands import Example, applied, examples, nests, refused
from latte.tools.bench.report import replaced
from swirl.ir.nest import Program
from swirl.schedule.recipe import Schedule
from swirl.target.targets import TARGETS
from swirl.transforms import COMMANDS

SECTIONS = ("rewrite", "Args", "Raises", "Source")

NEST = ("nest", "only in this nest (index or label).")  # described once, on top

# Of the original, with the order of their arguments.
OLDER = (
    "ens.tile(field, dim, factor)",
    "ens.transpose(field, dim1, dim2)",
    "ens.privatize(buffer)",
    "ens.vectorize(phase, loop_var, factor)",
    "ens.simd(phase, loop_var)",
    "ens.parallelize(phase, loop_var)",
    "ens.unroll(phase, loop_var, factor, unroll_type=0)",
    "ens.unroll_no_jam(phase, loop_var, factor, unroll_type=0)",
    "ens.unroll_and_jam(phase, loop_var, factor, unroll_type=0)",
    "ens.swap_loops(phase, loop_vars)",
    "ens.scalar_expand(phase, scalar_vars)",
    "ens.if_convert(phase)",
    "ens.reset_prefetch(phase)",
)

ASKED = nests(
    """
    for n in range(8):
        for k in range(20):
            for y in range(28):
                for c in range(32):
                    for ky in range(max(0, 1 - y), min(3, 29 - y)):
                        value[n, k, y] += inputs[n, c, y + ky - 1] * weights[k, c, ky]
    """,
    value=(8, 20, 28),
    inputs=(8, 32, 28),
    weights=(20, 32, 3),
)
ASKED = COMMANDS["tile"](ASKED, "inputs", 0, 16)
QUERIES = (
    ('s.loops("forward")', "the names of the loops as they are now; none where the layer has no such phase"),
    ('s.extent("forward", "k")', "iterations of a loop; `None` where its bounds are not constant"),
    ('s.interior("forward", "y")', "the part of its range in which nothing is clipped"),
    ('s.borders("forward", "y")', "where to `split` a loop, so that what is clipped is separate"),
    ('s.strides("forward", "y")', "elements in memory from one iteration to the next, for each access in the loop"),
    ('s.dependence("forward", "ky")', '`"parallel"`, `"reduction"` (sums, maxima) or `"recurrence"`'),
    (
        's.footprint("forward", "k")',
        "bytes that an iteration touches: compare with `target.l1_bytes`, `target.l2_bytes`",
    ),
    (
        's.touched("forward", "y", "lines", 2)',
        "cache lines of each array, or bytes, elements, that two neighbouring iterations touch; or 1, or all",
    ),
    ('s.subscripts("forward", "inputs")', "the subscripts with which a buffer is updated, or else read: for `reindex`"),
    ('s.blocked("forward")', "whether an array of the phase is blocked"),
    ('s.rearranged("forward")', "whether an array of the phase has zeros around it, or another order of dimensions"),
    ('s.locals("forward", "n")', "the locals that the body of a loop declares: for `scalar_expand`"),
    (
        's.loops("forward", "value")',
        "those around statements that write a buffer: in a chain there are loops of other layers",
    ),
    (
        's.perfect("forward", ["n", "k"])',
        "whether loops are directly inside of each other, with nothing between: `parallelize` of several needs it",
    ),
    ('s.nests("forward")', "the labels of the nests, in order of execution: for `nest=`, as their numbers are"),
    ('s.buffers("forward")', "the buffers that the nests touch"),
    ('s.sets("forward", "value")', "whether a buffer gets its first values there, and is not only added to"),
    ('s.blocks("inputs")', "dimension → elements in a block, counted as in `tile`; empty where there are none"),
    ('s.shape("inputs")', "the extents of a buffer, counted as in `tile`"),
    ('s.owns("inputs")', "whether it belongs to the layers that are scheduled, not to those that they read"),
    ("s.combination(17, 6)", "tile sizes that sum to an extent, for `unroll_and_jam`, `unroll` and `tile_loop`"),
)


def commands() -> str:
    """The table of commands, and a section for each."""
    names = list(dict.fromkeys(example.command for example in examples()))
    rows = [f"| [`{name}`](#{name}) | {_first_sentence(name)} |" for name in names]
    table = "\n".join(["| command | in short |", "| --- | --- |", *rows])
    return "\n\n".join([table, *map(section, names)])


def queries() -> str:
    """What ``s`` answers about a nest."""
    schedule = Schedule.alone({"forward": ASKED}, TARGETS["avx512"])
    rows = [f"| `{query}` | `{eval(query, {'s': schedule})!r}` | {words} |" for query, words in QUERIES]
    table = "\n".join(["| query | answer | what it is |", "| --- | --- | --- |", *rows])
    return f"```python\n{body(ASKED)}\n```\n\n{table}"


def older() -> str:
    """The names in older recipes, and the commands that they stand for."""
    rows = []
    for call in OLDER:
        name = call.split(".")[1].split("(")[0]
        now = COMMANDS[name].name
        rows.append(f"| `{call}` | [`{now}`](#{now}) |")
    return "\n".join(["| older | command |", "| --- | --- |", *rows])


PARTS = {"queries": queries, "commands": commands, "older": older}


def filled(text: str) -> str:
    """The page with what is between ``<!-- part -->`` and ``<!-- end -->`` updated."""
    for name, make in PARTS.items():
        text = replaced(text, name, make())
    return text


def section(name: str) -> str:
    """One command: its sentence, its arguments, its examples."""
    aliases = [f"`{other}`" for other in sorted(COMMANDS) if COMMANDS[other] is COMMANDS[name] and other != name]
    summary, rest = _text(name)
    parts = [f"### {name}", " ".join([summary, *([f"Also called {', '.join(aliases)}."] if aliases else [])])]
    parts.append(f"`s.{COMMANDS[name].usage}`")
    parts += [rest] if rest else []
    arguments = _section(name, "Args")
    if arguments:
        pairs = [pair for pair in _arguments(arguments) if pair != NEST]
        parts += ["\n".join(f"- `{argument}`: {words}" for argument, words in pairs)] if pairs else []
    return "\n\n".join([*parts, *(shown(example) for example in examples() if example.command == name)])


def shown(example: Example) -> str:
    """Before → after, a refusal and the way out."""
    parts = [_words(example.words)] if example.words else []
    parts.append(_before_after(example.program, example.recipe))
    if example.refusal is not None:
        program = example.refusal.program or example.program
        parts.append(f"Refused:\n\n```text\n{refused(program, example.refusal.recipe)}\n```")
        parts.append(_words(example.refusal.words))
        parts.append(_code(example.refusal.way_out, applied(program, example.refusal.way_out)))
    return "\n\n".join(parts)


# --- nests ----------------------------------------------------------------------------------------------
def body(program: Program) -> str:
    """The statements of the nests, and the shapes in memory that differ from the logical ones."""
    texts = [nest.body_text for nest in program.nests]
    lines = [
        f"# {name}{list(buffer.shape)} is stored as {list(buffer.physical_shape)}"
        for name, buffer in program.buffers.items()
        if buffer.physical_shape != buffer.shape
    ]
    return "\n".join([*texts, *lines])


def _before_after(program: Program, recipe: str) -> str:
    after = applied(program, recipe)
    return f"```python\n{body(program)}\n```\n\n{_code(recipe, after)}"


def _code(recipe: str, after: Program) -> str:
    commands = "\n".join(f"# {line}" for line in recipe.splitlines())
    return f"```python\n{commands}\n{body(after)}\n```"


# --- docstrings -----------------------------------------------------------------------------------------
def _doc(name: str) -> str:
    return COMMANDS[name].documentation


def _text(name: str) -> tuple[str, str]:
    """The first paragraph, and the others outside of sections."""
    paragraphs = re.split(r"\n\n(?=\S)", _doc(name))
    plain = [" ".join(p.split()) for p in paragraphs if not p.startswith(SECTIONS)]
    return _markdown(plain[0]), _markdown("\n\n".join(plain[1:]))


def _first_sentence(name: str) -> str:
    return re.split(r"(?<=[.:;])\s", _text(name)[0])[0].rstrip(".:;") + "."


def _section(name: str, title: str) -> str:
    found = re.search(rf"^{title}:\n((?:(?:    .*)?\n?)*)", _doc(name), re.MULTILINE)
    return cleandoc(found[1]) if found else ""


def _arguments(text: str) -> list[tuple[str, str]]:
    entries = re.split(r"\n(?=\S)", text)
    pairs = (entry.split(": ", 1) for entry in entries)
    return [(name, _markdown(" ".join(words.split()))) for name, words in pairs]


def _words(text: str) -> str:
    return " ".join(text.split())


def _markdown(text: str) -> str:
    return text.replace("``", "`")
