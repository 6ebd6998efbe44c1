"""Which module may import which, read from the sources."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from swirl.transforms import COMMANDS

ROOT = Path(__file__).parent.parent

# A module may import its own group and those above it. A new package of swirl needs a place here.
GROUPS = (
    {"errors", "config", "source_text", "older_spellings"},
    {"build", "target"},
    {"ir"},
    {"analysis"},
    {"transforms", "codegen"},
    {"cost"},
    {"schedule"},
    {"run"},
    {"measure"},
    {"dump"},
    {"tune"},
)
RANK = {name: rank for rank, group in enumerate(GROUPS) for name in group}

LATTE = (
    {"config", "core", "errors", "version"},
    {"model"},
    {"math", "solvers", "util"},
    {"ensemble", "neuron"},
    {"frontend"},
    {"autodiff"},
    {"planning"},
    {"runtime"},
    {"explain"},
    {"profiling"},
    {"compiling"},
    {"copied"},
    {"looking"},
    {"net"},
    {"solver", "layers", "training", "data"},
    {"torch", "distributed"},
    {"tools"},
    {"testing"},
    {"__main__"},
)
LATTE_RANK = {name: rank for rank, group in enumerate(LATTE) for name in group}

# Neither of the two needs the other: what they share belongs to ir.
STRANGERS = {("transforms", "codegen"), ("codegen", "transforms")}

# In swirl.transforms, a package may import those before it, and itself; no command needs another one.
TRANSFORMS = ({"arguments"}, {"command"}, {"rewrites"}, {"passes", "commands"}, {"relayout"})
TRANSFORMS_RANK = {name: rank for rank, group in enumerate(TRANSFORMS) for name in group}

ONLY_WHERE_USED = {"torch", "sklearn", "matplotlib", "onnx", "mpi4py"}
OWN_PROCESS = {Path("latte/tools/bench") / name for name in ("peer.py", "peer_nets.py", "published_torch.py")}
"""PyTorch's side of a benchmark, which only a process of its own imports."""

IN_PYTORCH = (Path("latte/torch"), Path("latte/distributed"))
"""What only programs of PyTorch import, and what is imported where somebody asks for several processes."""


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    # Links to folders at the top, whose files are checked there; examples import as users do.
    links = [ROOT / "latte" / name for name in ("layers", "recipes", "tools/bench/published_nets")]
    return [path for path in found if not any(path.is_relative_to(link) for link in links)]


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from at_import_time(child)


def imported(nodes: Iterable[ast.AST], path: Path) -> set[str]:
    """Dotted names of the modules (or of names in them) that the nodes import."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def top(name: str) -> str:
    return name.split(".")[0]


def all_imports(path: Path) -> set[str]:
    """What a module imports anywhere in it, for type checkers too."""
    return imported(ast.walk(ast.parse(path.read_text())), path)


def test_latte_modules_import_only_what_stands_before_them() -> None:
    wrong = []
    for path in [*sources("latte"), *sources("layers")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        own = "layers" if parts[0] == "layers" else parts[1]
        if own == "__init__":
            continue
        assert own in LATTE_RANK, f"latte.{own} has no place in the order of packages: add it to LATTE in {__file__}"
        for name in all_imports(path):
            other = name.split(".")[1:2]
            if top(name) == "latte" and other and LATTE_RANK.get(other[0], -1) > LATTE_RANK[own]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


@pytest.mark.parametrize("folder", ["latte", "swirl"])
def test_no_modules_import_each_other_in_a_circle(folder: str) -> None:
    modules = {}
    for path in sources(folder):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for module, path in modules.items():
        found = {name if name in modules else name.rpartition(".")[0] for name in all_imports(path)}
        graph[module] = (found & set(modules)) - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_every_folder_is_a_package_that_is_kept() -> None:
    """One without ``__init__.py`` would be missing from a wheel; one that Git ignores, from a clone."""
    folders = {path.parent for path in sources("latte", "swirl")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
    inits = [str((folder / "__init__.py").relative_to(ROOT)) for folder in sorted(folders)]
    ignored = subprocess.run(["git", "check-ignore", *inits], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not ignored.stdout


def test_swirl_modules_import_only_what_stands_before_them() -> None:
    wrong = []
    for path in sources("swirl"):
        own = path.relative_to(ROOT / "swirl").with_suffix("").parts[0]
        if own == "__init__":
            continue
        assert own in RANK, f"swirl.{own} has no place in the order of modules: add it to GROUPS in {__file__}"
        for name in all_imports(path):
            parts = name.split(".")
            if parts[0] != "swirl" or len(parts) < 2 or parts[1] not in RANK:
                continue
            if RANK[parts[1]] > RANK[own] or (own, parts[1]) in STRANGERS:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_commands_and_passes_share_only_rewrites() -> None:
    wrong = []
    folder = ROOT / "swirl" / "transforms"
    for path in sources("swirl/transforms"):
        own = path.relative_to(folder).with_suffix("").parts
        if own[-1] == "__init__":
            continue
        assert own[0] in TRANSFORMS_RANK, (
            f"swirl.transforms.{own[0]} has no place in the order of modules: add it to TRANSFORMS in {__file__}"
        )
        for name in all_imports(path):
            if not name.startswith("swirl.transforms."):
                continue
            other = name.split(".")[2]
            before = TRANSFORMS_RANK.get(other, -1) < TRANSFORMS_RANK[own[0]]
            shared = other == own[0] and own[0] not in ("commands", "passes")
            if not (before or shared):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_each_command_has_a_module_of_its_name() -> None:
    found = {path.stem for path in sources("swirl/transforms/commands")} - {"__init__"}
    assert {command.name for command in COMMANDS.values()} == found
    assert all(command.function.__module__.endswith(f".{command.name}") for command in COMMANDS.values())


def test_modules_are_short() -> None:
    """A module of more than 600 lines is probably two subjects. Up to there a length is only a question."""
    lengths = {path: len(path.read_text().splitlines()) for path in sources("latte", "layers", "recipes", "swirl")}
    assert not {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > 600}


def test_swirl_never_imports_latte() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("swirl")
        for name in all_imports(path)
        if top(name) == "latte"
    ]
    assert not wrong


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def test_layers_import_latte_only() -> None:
    allowed = {"latte", *sys.stdlib_module_names}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("layers")
        for name in all_imports(path)
        if top(name) not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("folder", ["latte", "layers", "recipes", "swirl"])
def test_optional_packages_are_imported_only_where_used(folder: str) -> None:
    wrong = []
    for path in sources(folder):
        found = imported(at_import_time(ast.parse(path.read_text())), path)
        if any(path.relative_to(ROOT).is_relative_to(folder) for folder in IN_PYTORCH):
            found = [name for name in found if top(name) != "torch"]
        elif path.relative_to(ROOT) not in OWN_PROCESS:
            assert not {module_name(own) for own in OWN_PROCESS} & set(found), path
            assert not any(name.startswith(tuple(map(module_name, IN_PYTORCH))) for name in found), path
        if path.relative_to(ROOT) not in OWN_PROCESS:
            wrong += [f"{path.relative_to(ROOT)}: {name}" for name in found if top(name) in ONLY_WHERE_USED]
    assert not wrong


def test_one_module_imports_ctree() -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in sources("latte", "layers", "swirl")
        if any(top(name) == "ctree" for name in all_imports(path))
    }
    assert users <= {"swirl/codegen/ctree_compat.py"}


def test_one_module_reads_the_environment() -> None:
    readers = set()
    for path in sources("latte", "layers", "swirl"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {
                "os.environ",
                "os.getenv",
                "os.environb",
            }:
                readers.add(str(path.relative_to(ROOT)))
    assert readers <= {"swirl/config.py"}
