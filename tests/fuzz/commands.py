"""Random commands with arguments that name things of the program."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from swirl.ir.nest import Program, loop_of
from swirl.ir.paths import loops, walk
from swirl.transforms.rewrites.loops.tile_sizes import combination
from swirl.transforms.rewrites.sites import loop_names
from tests.fuzz.chains import CHAIN
from tests.fuzz.programs import BETWEEN, PRIVATE, Pick

Command = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A command's name, its arguments, its options."""

RECIPES: tuple[tuple[str, ...], ...] = (
    (),
    (),
    (),
    (),
    (),
    (),
    ("flatten", "vectorize", "stream"),
    ("interchange", "vectorize", "unroll_and_jam", "scalar_replace"),
    ("tile_loop", "reorder", "vectorize", "parallelize"),
    ("moments", "vectorize", "parallelize"),
    ("moments", "distribute", "interchange", "fuse", "vectorize"),
    ("shift_mean", "vectorize", "unroll", "parallelize"),
    ("canonicalise", "shift_mean", "flatten", "vectorize"),
    ("partial_sums", "vectorize"),
    ("set_padding", "vectorize"),
    ("pack", "vectorize", "prefetch"),
    ("reindex", "interchange", "vectorize"),
    ("tile", "tile_loop", "vectorize", "unroll_and_jam", "scalar_replace"),
    ("transpose", "interchange", "vectorize"),
    ("split", "unroll", "vectorize"),
    ("distribute", "reorder", "fuse", "vectorize"),
    ("if_convert", "vectorize", "stream"),
    ("locate", "parallelize", "vectorize"),
    ("interchange", "locate", "scalar_replace", "unroll"),
    ("scalar_expand", "distribute", "vectorize"),
    ("store_local", "distribute", "distribute", "vectorize"),
    ("privatize", "parallelize", "vectorize"),
    ("reverse", "privatize", "vectorize"),
    ("scalar_replace", "privatize", "unroll"),
    ("factor", "hoist", "vectorize"),
    ("canonicalise", "moments", "parallelize", "vectorize"),
    ("fuse_layers", "vectorize", "parallelize"),
    ("inline", "fuse_layers", "vectorize"),
    ("fuse", "contract", "vectorize", "scalar_replace"),
    ("tile", "fuse_layers", "contract", "vectorize"),
    ("set_padding", "fuse_layers", "inline"),
    ("set_padding", "set_padding", "fuse_layers", "contract"),
    ("set_padding", "contract", "vectorize"),
    ("tile", "transpose", "fuse_layers", "contract", "vectorize"),
    ("tile", "tile", "inline", "fuse_layers"),
    ("reindex", "fuse_layers", "parallelize"),
    ("tile_loop", "fuse", "contract", "unroll_and_jam"),
    ("split", "fuse_layers", "contract", "vectorize"),
    ("vectorize", "unroll_and_jam", "parallelize"),
    ("vectorize", "scalar_replace", "unroll"),
)
"""Names of commands that go well together; further ones are drawn."""

NESTS = {
    "flatten": "whole",
    "moments": "statistics",
    "shift_mean": "statistics",
    "canonicalise": "statistics",
    "partial_sums": "product",
    "set_padding": "window",
    "reindex": "scatter",
    "pack": "whole",
    "if_convert": "map",
    "locate": "places",
    "privatize": "scatter",
    "reverse": "counts",
    "scalar_replace": "counts",
    "vectorize": "winner",
}
"""The first command of a recipe → nests that it is for, see :data:`tests.fuzz.shapes.SHAPES`."""
JOINING = {"fuse_layers", "inline", "contract"}
"""Commands for neighbouring nests."""

FACTORS = (2, 3, 4, 1, 5, 8)


def local_names(program: Program) -> list[str]:
    """Every local of the program."""
    nodes = (node for nest in program.nests for _, node in walk(nest.body))
    return sorted({ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)})


class CommandMaker:
    """Makes commands for one program as it is now."""

    def __init__(self, program: Program, pick: Pick[Any]):
        self.program, self.pick = program, pick
        self.names = loop_names(program) or ["i"]
        self.buffers = [name for name in program.buffers if any(name in nest.arguments for nest in program.nests)]

    def make(self, name: str | None = None) -> Command:
        """A command of that name, or any."""
        name = name or self.pick(tuple(COMMAND_MAKERS))
        arguments, options = COMMAND_MAKERS[name](self)
        return name, arguments, options

    @staticmethod
    def shape(recipe: tuple[str, ...]) -> str | None:
        """The nests that commands are for; None for any."""
        return CHAIN if JOINING & set(recipe) else NESTS.get(recipe[0]) if recipe else None

    # --- parts of arguments
    def loop(self) -> str:
        """A loop; an innermost one half of the time."""
        return self.pick(self.innermost() or self.names) if self.pick((False, True)) else self.pick(self.names)

    def innermost(self) -> list[str]:
        nodes = (node for nest in self.program.nests for _, node in loops(nest.body))
        return list(dict.fromkeys(loop_of(n).var for n in nodes if not any(isinstance(s, ast.For) for s in n.body)))

    def extent(self, var: str) -> int:
        heads = (loop_of(node) for nest in self.program.nests for _, node in loops(nest.body))
        return min((head.extent for head in heads if head.var == var and head.extent), default=3)

    def buffer(self) -> str:
        """A buffer; half of the time one that only the program needs, if there is one."""
        own = [name for name in self.buffers if name in PRIVATE]
        return self.pick(own) if own and self.pick((False, True)) else self.pick(self.buffers or ["x"])

    def stored(self, lanes: bool = False) -> list[str]:
        """Buffers that are assigned; only those that vector loops assign where there are any."""
        trees: list[ast.AST] = [
            node
            for nest in self.program.nests
            for _, node in loops(nest.body)
            if not lanes or loop_of(node).kind == "vector"
        ]
        found = [
            target
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.AugAssign))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        names = [name for name in dict.fromkeys(ast.unparse(t).split("[")[0] for t in found) if name in self.buffers]
        return names or (self.stored() if lanes else ["y"])

    def maybe_loop(self) -> tuple[Any, ...]:
        return () if self.pick((True, False)) else (self.pick(self.names),)

    def several(self) -> list[str]:
        return [self.pick(self.names) for _ in range(self.pick((2, 2, 3)))]

    def factors(self, var: str) -> Any:
        """A factor, or factors of consecutive parts that cover the loop."""
        if self.pick((False, False, True)):
            return combination(self.extent(var), self.pick((2, 3, 4, 6)))
        return self.pick(FACTORS)

    # --- the commands
    def looped(self) -> Any:
        return (self.loop(),), {}

    def nothing(self) -> Any:
        return (), {}

    def optional(self) -> Any:
        return self.maybe_loop(), {}

    def ordered(self) -> Any:
        return (self.several(),), {}

    def outer(self) -> Any:
        """A loop that holds others, where there is one."""
        nodes = [node for nest in self.program.nests for _, node in loops(nest.body)]
        outer = [loop_of(n).var for n in nodes if any(isinstance(s, ast.For) for s in n.body)]
        return (self.pick(outer or self.names),), {}

    def nested(self) -> Any:
        """Two loops, directly nested for the most part."""
        pairs = [
            (loop_of(node).var, loop_of(inner).var)
            for nest in self.program.nests
            for _, node in loops(nest.body)
            for inner in node.body
            if isinstance(inner, ast.For)
        ]
        if pairs and self.pick((True, True, True, False)):
            return (list(self.pick(pairs)),), {}
        return ([self.pick(self.names), self.pick(self.names)],), {}

    def vectorize(self) -> Any:
        return (self.loop(), self.pick((4, 2, 8, 16))), {} if self.pick((True, False)) else {"strided": "gather"}

    def unroll(self) -> Any:
        var = self.loop()
        return (var, self.factors(var)), {"unroll_type": self.pick((0, 0, 1))}

    def tile_loop(self) -> Any:
        var = self.loop()
        factors = self.factors(var)
        return (var, factors), {} if isinstance(factors, list) else {"tail": self.pick(("min", "mask", "peel"))}

    def parallelize(self) -> Any:
        loops_ = self.pick(self.names) if self.pick((True, True, False)) else self.several()
        options = {} if self.pick((True, True, False)) else {"schedule": self.pick(("static", "dynamic,1"))}
        return (loops_,), options | self.pick(({}, {}, {}, {"occurrence": self.pick((0, -1))}))

    def fuse(self) -> Any:
        names = (self.pick(self.names), *(() if self.pick((True, True, False)) else (self.pick(self.names),)))
        return names, self.pick(({}, {}, {"guard": True}, {"shift": self.pick((1, 2))}))

    def split(self) -> Any:
        return (self.loop(), self.pick(([1], [2], [1, 2], [1, 3], [4], [-1]))), {}

    def tile(self) -> Any:
        name = self.buffer()
        return (name, self.pick(range(len(self.program.buffers[name].shape))), self.pick((2, 3, 4, 8, 16))), {}

    def stream(self) -> Any:
        return (self.pick(self.stored(lanes=True)),), {}

    def prefetch(self) -> Any:
        return (self.buffer(), self.pick(self.names), self.pick((1, 2, 9)), self.pick((1, 0))), {}

    def privatize(self) -> Any:
        return (self.pick(self.stored()), self.pick(self.names)), {"copies": self.pick((2, 3, 8))}

    def reindex(self) -> Any:
        forms = (
            "{a} + {b}",
            "2 * {a} + {b}",
            "{a} - {b} + 1",
            "3 - {a}",
            "3 * {a} - {b}",
            "{a} + 2 * {b}",
            "{a} + {b} - 1",
        )
        form = self.pick(forms).format(a=self.pick(self.names), b=self.pick(self.names))
        return self.maybe_loop() if self.pick((False, False, True)) else (), {"r": form}

    def pack(self) -> Any:
        name = self.buffer()
        at, order = self.pick(self.names), list(range(self.rank(name)))[::-1]
        inner = [*order, *(-1 for _ in range(self.program.buffers[name].batch_dims))]
        options = ({}, {"at": at}, {"order": order}, {"at": at, "order": inner}, {"order": inner})
        return (name,), self.pick((*options, {"at": at, "zeros": True}))

    def rank(self, name: str) -> int:
        """The dimensions of a buffer that layouts may change."""
        buffer = self.program.buffers[name]
        return len(buffer.shape) - buffer.batch_dims

    def set_padding(self) -> Any:
        name = self.buffer()
        return (name, *(self.pick(((1, 1), 0, (0, 2), 2, 1, (2, 0))) for _ in range(self.rank(name)))), {}

    def untile(self) -> Any:
        return (self.buffer(),), {}

    def transpose(self) -> Any:
        name = self.buffer()
        dims = range(max(2, self.rank(name)))
        if self.pick((False, True)):
            return (name,), {"order": list(dims)[::-1]}
        return (name, self.pick(dims), self.pick(dims)), {}

    def scalar_replace(self) -> Any:
        return () if self.pick((True, False)) else (self.buffer(),), {}

    def locate(self) -> Any:
        """A loop whose variable is compared with something, where there is one."""
        tests = [node for nest in self.program.nests for s in nest.body for node in ast.walk(s)]
        sides = [side for node in tests if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)]
        compared = sorted({side.id for side in sides if isinstance(side, ast.Name)} & set(self.names))
        return (self.pick(compared or self.names),), {}

    def scalar_expand(self) -> Any:
        options = {} if self.pick((True, False)) else {"loop_var": self.pick(self.names)}
        return (self.pick(local_names(self.program) or ["t0"]),), options

    def store_local(self) -> Any:
        return (self.pick(local_names(self.program) or ["t0"]),), {}

    def private(self) -> Any:
        """A buffer that only the program needs."""
        return (self.pick([name for name in self.buffers if name in PRIVATE] or [BETWEEN]),), {}

    def inline(self) -> Any:
        return self.private()[0], {"local": self.pick((True, False))}

    def fuse_layers(self) -> Any:
        (kept,), _ = self.private()
        options = {"keep": [kept]} if kept in self.buffers and self.pick((False, False, True)) else {}
        return (), options | ({"required": False} if self.pick((False, True)) else {})

    def moments(self) -> Any:
        how = self.pick(({}, {"inner": self.loop()}, {"once": True}))
        return (self.loop(),), how | self.pick(({}, {"apart": True}))

    def distribute(self) -> Any:
        return (self.loop(),), self.pick(({}, {"recompute": True}))

    def shift_mean(self) -> Any:
        return (self.loop(),), self.pick(({}, {"occurrence": self.pick((0, 0, -1, 1))}))

    def rename(self) -> Any:
        return (self.loop(), self.pick(("r", "s", self.loop()))), self.pick(({}, {"occurrence": self.pick((0, -1, 1))}))

    def factor(self) -> Any:
        return (self.loop(),), {"keep_differences": self.pick((False, True))}


COMMAND_MAKERS: dict[str, Callable[[CommandMaker], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "vectorize": CommandMaker.vectorize,
    "unroll": CommandMaker.unroll,
    "unroll_and_jam": CommandMaker.unroll,
    "tile_loop": CommandMaker.tile_loop,
    "parallelize": CommandMaker.parallelize,
    "interchange": CommandMaker.nested,
    "fuse": CommandMaker.fuse,
    "distribute": CommandMaker.distribute,
    "scalar_replace": CommandMaker.scalar_replace,
    "hoist": CommandMaker.optional,
    "split": CommandMaker.split,
    "reorder": CommandMaker.ordered,
    "tile": CommandMaker.tile,
    "untile": CommandMaker.untile,
    "stream": CommandMaker.stream,
    "prefetch": CommandMaker.prefetch,
    "reset_prefetch": CommandMaker.nothing,
    "privatize": CommandMaker.privatize,
    "reindex": CommandMaker.reindex,
    "pack": CommandMaker.pack,
    "flatten": CommandMaker.nested,
    "canonicalise": CommandMaker.nothing,
    "tidy": CommandMaker.nothing,
    "whole_vectors": CommandMaker.nothing,
    "long_sums": CommandMaker.nothing,
    "reverse": CommandMaker.looped,
    "scalar_expand": CommandMaker.scalar_expand,
    "if_convert": CommandMaker.optional,
    "locate": CommandMaker.locate,
    "factor": CommandMaker.factor,
    "moments": CommandMaker.moments,
    "shift_mean": CommandMaker.shift_mean,
    "rename": CommandMaker.rename,
    "partial_sums": CommandMaker.outer,
    "set_padding": CommandMaker.set_padding,
    "transpose": CommandMaker.transpose,
    "fuse_layers": CommandMaker.fuse_layers,
    "contract": CommandMaker.private,
    "store_local": CommandMaker.store_local,
    "inline": CommandMaker.inline,
}
"""What makes the arguments of each command and pass; a test compares it with the commands that there are."""
