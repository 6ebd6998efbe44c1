"""Recipe files of entries: what is written can be read, what people have written stays, and bad files are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from latte.tools.tune.files import NewEntry, shortest, with_entry, without_entries, write_entries
from swirl.errors import LatteError, RecipeError
from swirl.schedule.command_log import Recorded
from swirl.schedule.files import read_recipe
from swirl.target.targets import TARGETS
from swirl.tune.candidates import Subject
from tests.support import program


def command(name: str, *arguments: object, of: str = "") -> Recorded:
    return Recorded(name, arguments, (), None, of=of)


ENTRY = NewEntry(
    kinds=("conv", "relu"),
    phase="forward",
    target="avx2",
    threads=2,
    nests="0123456789ab",
    form="ba9876543210",
    sizes={"value": (2, 8, 6, 6)},
    ms={"tuned": 1.0, "recipe": 1.25},
    told=("1 ms, 80% of the machine's limit.",),
    commands=((command("tile", "weights", 0, 8, of="conv"), ""), (command("parallelize", "forward", "n"), "new")),
)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    (path,) = write_entries(tmp_path, [ENTRY])
    recipe = read_recipe(path)
    assert path.name == "conv_relu.py" and recipe.chain == ("conv", "relu")
    (found,) = recipe.entries
    assert (found.name, found.phase, found.target, found.threads) == ("forward_1", "forward", "avx2", 2)
    assert (found.nests, found.form, found.sizes) == (ENTRY.nests, ENTRY.form, ENTRY.sizes)
    assert found.ms == {"tuned": 1.0, "recipe": 1.25}
    text = path.read_text()
    assert '    s.tile("weights", 0, 8, of="conv")\n    s.parallelize("forward", "n")  # new\n' in text
    assert "    # 1 ms, 80% of the machine's limit.\n" in text


def test_entries_are_added_and_replaced(tmp_path: Path) -> None:
    others = [replace(ENTRY, nests="1" * 12), replace(ENTRY, target="avx512"), replace(ENTRY, phase="backward")]
    write_entries(tmp_path, [ENTRY, *others])
    (path,) = write_entries(tmp_path, [replace(ENTRY, told=("again",), commands=())])
    names = [entry.name for entry in read_recipe(path).entries]
    assert sorted(names) == ["backward_1", "forward_1", "forward_2", "forward_3"]
    text = path.read_text()
    assert text.count("# again") == 1 and text.count("1 ms, 80%") == 3
    assert len([entry for entry in read_recipe(path).entries if entry.nests == ENTRY.nests]) == 3


def test_what_people_write_stays(tmp_path: Path) -> None:
    (path,) = write_entries(tmp_path, [ENTRY])
    text = path.read_text().replace(
        "\n\nentries", "\n\n# A note of mine.\ndef forward(s, target):\n    pass\n\n\nentries"
    )
    path.write_text(text + "\n\nSIZE = 3  # below\n")
    write_entries(tmp_path, [replace(ENTRY, nests="1" * 12)])
    after = path.read_text()
    assert "# A note of mine.\ndef forward(s, target):\n    pass\n" in after and "SIZE = 3  # below\n" in after
    assert set(read_recipe(path).functions) == {"forward"} and len(read_recipe(path).entries) == 2


def test_what_people_write_in_the_table_stays(tmp_path: Path) -> None:
    (path,) = write_entries(tmp_path, [ENTRY, replace(ENTRY, nests="1" * 12)])
    head, _, rows = path.read_text().partition("entries = (\n")
    rows = rows.replace("    Entry(", "    # slower on the old machine\n    Entry(", 1)
    rows = rows.replace("        forward_2,\n", "        forward_2,  # mine\n").replace(
        "    ),\n)", "    ),  # the last\n)"
    )
    path.write_text(f"{head}# All that was found.\nentries = (  # by shape\n{rows}")
    write_entries(tmp_path, [ENTRY, replace(ENTRY, nests="2" * 12)])
    after = path.read_text()
    assert "# All that was found.\nentries = (  # by shape\n    # slower on the old machine\n    Entry(\n" in after
    assert "        forward_2,  # mine\n" in after and "    ),  # the last\n" in after
    assert [each.nests for each in read_recipe(path).entries] == [ENTRY.nests, "1" * 12, "2" * 12]
    path.write_text(without_entries(after, ["forward_1", "forward_2"], path))
    rest = path.read_text()
    assert "entries = (  # by shape\n    # slower on the old machine\n" in rest and "# the last" in rest
    assert [each.nests for each in read_recipe(path).entries] == ["2" * 12]


@pytest.mark.parametrize(
    "table",
    [
        "()",
        "[]",
        "(one,)",
        "[one]",
        "(one, two)",
        "[one,\n  two  # é, ünd\n]",
        "(\n\tone,\n\ttwo,\n)",
        "(one, # 1\n two)",
    ],
)
def test_tables_as_people_write_them(tmp_path: Path, table: str) -> None:
    calls = {
        name: f'Entry(forward_{name}, target="avx2", nests="{name}", form="", sizes={{}})' for name in ("one", "two")
    }
    functions = "".join(f"def forward_{name}(s, target):\n    pass\n\n\n" for name in calls if name in table)
    for name, call in calls.items():
        table = table.replace(name, call)
    path = tmp_path / "conv_relu.py"
    path.write_text(
        'from swirl.schedule.entries import Entry\n\nchain = ("conv", "relu")\n\n\n'
        f"{functions}entries = {table}\nX = 1\n"
    )
    known = [entry.nests for entry in read_recipe(path).entries]
    text = path.read_text()
    path.write_text(with_entry(text, ENTRY, path))
    assert [entry.nests for entry in read_recipe(path).entries] == [*known, ENTRY.nests]
    for name in known:
        path.write_text(without_entries(text, [f"forward_{name}"], path))
        assert [entry.nests for entry in read_recipe(path).entries] == [each for each in known if each != name]
        assert path.read_text().endswith("\nX = 1\n") and f"forward_{name}" not in path.read_text()


def test_a_table_without_brackets_is_told(tmp_path: Path) -> None:
    text = "def forward_1(s, target):\n    pass\n\n\nentries = Entry(forward_1),\n"
    with pytest.raises(RecipeError, match="entries has no brackets around it"):
        with_entry(text, ENTRY, tmp_path / "a.py")


def test_an_edited_function_is_not_replaced_without_a_copy(tmp_path: Path) -> None:
    told: list[str] = []
    (path,) = write_entries(tmp_path, [ENTRY])
    for _ in range(2):  # as it was written
        write_entries(tmp_path, [replace(ENTRY, told=("again",))], told.append)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    write_entries(tmp_path, [ENTRY], told.append)
    assert not told and list(tmp_path.iterdir()) == [path]
    for number, more in enumerate(("  # mine", "\n    s.unroll('forward', 'k', 2)")):
        text = path.read_text().replace('s.parallelize("forward", "n")  # new', f's.parallelize("forward", "n"){more}')
        path.write_text(text)
        write_entries(tmp_path, [ENTRY], told.append)
        kept = path.with_name(f"conv_relu.py.before{'.2' if number else ''}")
        assert kept.read_text() == text and more not in path.read_text()
        assert told[number] == f"{path}: forward_1, which was edited, is replaced; {kept} is the file as it was"


def test_entries_are_taken_out(tmp_path: Path) -> None:
    (path,) = write_entries(tmp_path, [ENTRY, replace(ENTRY, nests="1" * 12)])
    path.write_text(without_entries(path.read_text(), ["forward_1"], path))
    assert [entry.name for entry in read_recipe(path).entries] == ["forward_2"]
    path.write_text(without_entries(path.read_text(), ["forward_2"], path))
    assert read_recipe(path).entries == () and "def " not in path.read_text()
    write_entries(tmp_path, [ENTRY])
    assert len(read_recipe(path).entries) == 1


@pytest.mark.parametrize("text", ["def forward(s, target):\n    pass\n", "entries = made()\n", "def forward(s:\n"])
def test_other_files_are_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "conv_relu.py"
    path.write_text(text)
    with pytest.raises(RecipeError):
        write_entries(tmp_path, [ENTRY])
    assert path.read_text() == text and list(tmp_path.iterdir()) == [path]


def test_commands_that_make_another_program_are_not_written() -> None:
    text = "for n in range(8):\n for k in range(16):\n  y[n, k] = x[n, k]"
    subject = Subject.alone(program(text, x=(8, 16), y=(8, 16)), "forward", (), TARGETS["avx2"])
    made = subject.after([command("tile_loop", "forward", "k", 4)])
    with pytest.raises(LatteError, match="given again, make another program"):
        shortest(subject, replace(made, commands=()))


def test_only_commands_that_matter_are_written() -> None:
    text = "for n in range(8):\n for k in range(16):\n  y[n, k] = x[n, k]"
    subject = Subject.alone(program(text, x=(8, 16), y=(8, 16)), "forward", (), TARGETS["avx2"])
    given = [
        command("interchange", "forward", "n", "k"),
        command("interchange", "forward", "k", "n"),
        command("parallelize", "forward", "n"),
    ]
    candidate = subject.after(given)
    assert [each.text for each in shortest(subject, candidate).commands] == ["parallelize('forward', 'n')"]


def test_commands_that_change_nothing_are_not_written() -> None:
    text = "for n in range(8):\n for k in range(16):\n  y[n, k] = x[n, k]"
    subject = Subject.alone(program(text, x=(8, 16), y=(8, 16)), "forward", (), TARGETS["avx2"])
    order, lanes = command("reorder", "forward", ["n", "k"]), command("vectorize", "forward", "k", 8)
    both, alone = subject.after([order, lanes]), subject.after([lanes])
    assert len(both.commands) == 2 and both.key == alone.key  # a search measures one of them
    assert shortest(subject, both).commands == alone.commands


def test_text_of_an_empty_table_is_found(tmp_path: Path) -> None:
    text = with_entry("from swirl.schedule.entries import Entry\n\nentries = ()\n", ENTRY, tmp_path / "a.py")
    assert text.count("Entry(") == 1 and text.index("def forward_1") < text.index("entries = (")


def test_line_ends_form_feeds_and_decorators_of_a_text(tmp_path: Path) -> None:
    (path,) = write_entries(tmp_path, [ENTRY, replace(ENTRY, nests="1" * 12)])
    text = path.read_text().replace("def forward_1", "\x0c\n@(lambda function: function)\ndef forward_1")
    path.write_bytes(f"{text}\n# é\u2028 below\n".replace("\n", "\r\n").encode())
    assert len(read_recipe(path).entries) == 2
    write_entries(tmp_path, [replace(ENTRY, told=("again",))])
    after = path.read_bytes().decode()
    assert after.count("# again") == 1 and "# é\u2028 below\r\n" in after and "lambda" not in after
    assert len(read_recipe(path).entries) == 2


def test_a_text_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    path = tmp_path / "conv_relu.py"
    path.write_bytes("# coding: latin-1\n# é\nentries = ()\n".encode("latin-1"))
    with pytest.raises(RecipeError, match="is not UTF-8"):
        write_entries(tmp_path, [ENTRY])
