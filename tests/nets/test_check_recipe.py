"""``latte.testing.check_recipe``: recipes that are right pass, and whatever is not checked or differs is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from latte import (
    AddLayer,
    BatchNormLayer,
    ConvLayer,
    ConvLayerNoBias,
    FullyConnectedLayer,
    GroupNormLayer,
    LeakyReLULayer,
    MemoryDataLayer,
    Net,
    ReLULayer,
    SoftmaxLossLayer,
)
from latte.ensemble import Ensemble
from latte.testing import RecipeDiffers, TargetLeftOut, check_recipe
from swirl.errors import CommandError, DeclarationError, RecipeError, Refused, TargetError
from tests.support import running_targets

RECIPES = Path(__file__).parents[2] / "recipes"
RELU = """
def forward(s, target):
    s.vectorize("forward", "x", target.simd_width)
    s.parallelize("forward", "n")


def backward(s, target):
    s.parallelize("backward", "n")
"""

SMALL = [(2, (2, 4, 4))]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(RELU)
    return path


def relu(net: Net, source: Ensemble) -> Ensemble:
    return ReLULayer(net, source)


def conv(net: Net, source: Ensemble) -> Ensemble:
    return ConvLayer(net, source, num_filters=9, kernel=3, stride=1, pad=1)


# --- what passes ----------------------------------------------------------------------------------------------
def test_three_sizes_on_every_target(recipe: Path) -> None:
    found = check_recipe(relu, recipe, (2, 4, 6))
    assert found.sizes == ((8, (2, 4, 6)), (7, (2, 3, 5)), (1, (2, 4, 6)))
    assert list(found.targets) == running_targets()
    assert found.arrays == 3 * len(found.targets) * 3  # two values and a gradient
    assert str(found).startswith(f"mine.py: {found.arrays} arrays are equal within rounding, for ")
    assert str(found).splitlines()[0].endswith("8 items of (2, 4, 6); 7 items of (2, 3, 5); 1 item of (2, 4, 6)")


def test_the_shipped_recipe_of_batch_norm() -> None:
    sizes = [(5, (17, 3, 5)), (1, (16, 2, 2))]
    found = check_recipe(BatchNormLayer, RECIPES / "batch_norm.py", sizes=sizes)
    assert found.arrays == 2 * len(found.targets) * 7  # mean and variance among them


def test_the_shipped_recipe_of_convolution() -> None:
    found = check_recipe(conv, RECIPES / "conv.py", targets=running_targets()[:1], sizes=[(3, (9, 13, 14))])
    assert found.arrays == 5


def test_a_chain(recipe: Path) -> None:
    """The gradient of the bias is zero in real numbers: rounding alone is left of it."""

    def layers(net: Net, source: Ensemble) -> Ensemble:
        return BatchNormLayer(net, FullyConnectedLayer(net, source, 5))

    recipe.write_text(
        'chain = ("fully_connected", "batch_norm")\n\ndef forward(s, target):\n    s.fuse_layers("forward")\n'
    )
    found = check_recipe(layers, recipe, targets=["portable"], sizes=[(11, (7,))])
    assert found.arrays == 9


def test_several_sources_and_labels(recipe: Path) -> None:
    recipe.write_text("def forward(s, target):\n    s.parallelize('forward', 'i0')\n")
    added = check_recipe(lambda net, x, y: AddLayer(net, [x, y]), recipe, (3, 4, 4), (3, 4, 4), targets=["portable"])
    assert added.sizes[1] == (7, (3, 3, 3), (3, 3, 3))

    def loss(net: Net, x: Ensemble) -> Ensemble:
        return SoftmaxLossLayer(net, x, MemoryDataLayer(net, (1,)))

    recipe.write_text("def backward(s, target):\n    s.parallelize('backward', 'n')\n")
    check_recipe(loss, recipe, sizes=[(5, (5,))], targets=["portable"])


# --- what does not --------------------------------------------------------------------------------------------
def test_a_refused_command(recipe: Path) -> None:
    recipe.write_text(
        "def forward(s, target):\n    s.parallelize('forward', 'c')\n    s.vectorize('forward', 'ky', 8)\n"
    )
    with pytest.raises(
        Refused, match=r"mine.py:2: 8 items of \(4, 6, 6\), for portable: parallelize\('forward', 'c'\)"
    ):
        check_recipe(conv, recipe, (4, 6, 6), targets=["portable"])


def test_a_command_that_one_size_refuses(recipe: Path) -> None:
    recipe.write_text("def forward(s, target):\n    s.split('forward', 'x', [5])\n")
    with pytest.raises(CommandError, match=r"mine.py:2: 7 items of \(2, 3, 3\), for portable: split"):
        check_recipe(relu, recipe, sizes=[(8, (2, 6, 6)), (7, (2, 3, 3))], targets=["portable"])


def test_a_skipped_command(recipe: Path) -> None:
    recipe.write_text("def forward(s, target):\n    s.flatten('forward', ['y', 'c'], optional=True)\n")
    with pytest.raises(RecipeDiffers) as caught:
        check_recipe(relu, recipe, sizes=SMALL, targets=["portable"])
    assert "for portable: skipped flatten('forward', ['y', 'c'], optional=True): " in str(caught.value)
    assert str(caught.value).startswith(f"{recipe}:2: ") and isinstance(caught.value, AssertionError)
    assert caught.value.way_out == "may_skip=['flatten'] if it is meant to"
    check_recipe(relu, recipe, sizes=SMALL, targets=["portable"], may_skip=["flatten"])


def test_a_declined_phase(recipe: Path) -> None:
    recipe.write_text("def forward(s, target):\n    s.decline('too small')\n")
    with pytest.raises(RecipeDiffers, match="forward is not scheduled by the recipe: too small"):
        check_recipe(relu, recipe, sizes=SMALL, targets=["portable"])
    check_recipe(relu, recipe, sizes=SMALL, targets=["portable"], may_decline=["forward"])
    recipe.write_text(
        'chain = ("fully_connected", "relu")\n\ndef backward(s, target):\n    s.decline("not today")\n' + "\n"
        'def forward(s, target):\n    s.fuse_layers("forward")\n'
    )
    with pytest.raises(RecipeDiffers, match=r"backward is not scheduled by the recipe: .*not today"):
        check_recipe(
            lambda net, x: ReLULayer(net, FullyConnectedLayer(net, x, 5)),
            recipe,
            sizes=[(3, (7,))],
            targets=["portable"],
        )


def test_another_layer(recipe: Path) -> None:
    """A recipe cannot change what is computed; so the layer itself is another one the second time."""
    slopes = iter([0.25, 0.2500001, 0.25, 0.26])

    def layer(net: Net, source: Ensemble) -> Ensemble:
        return LeakyReLULayer(net, source, next(slopes))

    sizes = [(4, (2, 3, 5))]
    assert check_recipe(layer, recipe, sizes=sizes, targets=["portable"]).arrays == 3  # within a rounding or two
    with pytest.raises(RecipeDiffers) as caught:
        check_recipe(layer, recipe, sizes=sizes, targets=["portable"])
    message = str(caught.value)
    assert (
        message.startswith(f"{recipe}: 4 items of (2, 3, 5), for portable: leaky_relu1.value[")
        and "allowed: " in message
    )
    assert "of 120 elements differ, by up to 0.0" in message and "latte bisect" in message


def test_a_layer_with_more_fields(recipe: Path) -> None:
    bias = iter([True, False])

    def layer(net: Net, source: Ensemble) -> Ensemble:
        declare = ConvLayer if next(bias) else ConvLayerNoBias
        return declare(net, source, num_filters=2, kernel=1, pad=0)

    recipe.write_text("def forward(s, target):\n    s.parallelize('forward', 'n')\n")
    with pytest.raises(RecipeDiffers, match=r"only one of the two nets has conv1\.grad_bias"):
        check_recipe(layer, recipe, sizes=[(2, (3, 4, 4))], targets=["portable"])


def test_a_recipe_that_nothing_uses(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe.write_text('chain = ("fully_connected", "relu")\n\ndef forward(s, target):\n    s.fuse_layers("forward")\n')
    with pytest.raises(CommandError, match="no ensemble or kind named 'fully_connected_relu'"):
        check_recipe(relu, recipe, (2, 4, 4))

    def kept(net: Net, source: Ensemble) -> Ensemble:
        first = FullyConnectedLayer(net, source, 5)
        net.keep(first)
        return ReLULayer(net, first)

    with pytest.raises(
        RecipeDiffers,
        match=r"no layer gets the recipe\n  not compiled as fully_connected1_relu1: fully_connected1 is kept",
    ):
        check_recipe(kept, recipe, sizes=[(3, (7,))], targets=["portable"])
    monkeypatch.setenv("LATTE_SCHEDULE", "0")
    recipe.write_text(RELU)
    with pytest.raises(RecipeDiffers, match="no layer gets the recipe\n  LATTE_SCHEDULE=0"):
        check_recipe(relu, recipe, (2, 4, 4), targets=["portable"])


# --- targets and sizes ----------------------------------------------------------------------------------------
def test_targets_are_not_left_out_silently(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIRL_HIDE", "avx512,avx2")
    with pytest.warns(TargetLeftOut) as given:
        found = check_recipe(relu, recipe, sizes=[(2, (2, 3, 5))])
    assert found.targets == ("portable",) and list(found.left_out) == ["avx512", "avx2"]
    assert [str(each.message).split(": ")[0] for each in given] == [
        "mine.py is not checked for avx512",
        "mine.py is not checked for avx2",
    ]
    assert Path(given[0].filename).name == Path(__file__).name
    assert "not checked for avx2: " in str(found)
    with pytest.raises(TargetError, match="avx2 was asked for: "):
        check_recipe(relu, recipe, (2, 3, 5), targets=["avx2"])
    with pytest.raises(TargetError, match="no target 'avx'\n  did you mean 'avx2'"):
        check_recipe(relu, recipe, (2, 3, 5), targets=["avx"])
    with pytest.raises(CommandError, match="there is no target to check"):
        check_recipe(relu, recipe, (2, 3, 5), targets=[])


def test_what_the_layer_does_not_take(recipe: Path) -> None:
    recipe.write_text("def forward(s, target):\n    s.parallelize('forward', 'n')\n")
    with pytest.raises(DeclarationError, match=r"check_recipe\(…, sizes=\[\(8, \(16, 14, 14\)\), …\]\)"):
        check_recipe(lambda net, x: GroupNormLayer(net, x, 4), recipe, (4, 6, 6), targets=["portable"])


def test_wrong_calls(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CommandError, match=r"a shape is a tuple, not 16\n  check_recipe\(layer, recipe, \(16, 14, 14\)\)"
    ):
        check_recipe(relu, recipe, 16, 14, 14)  # type: ignore[arg-type]
    for wrong in ([], [(2, (3, 4, 4))], [((3, 4, 4),)]):
        with pytest.raises(CommandError, match=r"sizes are tuples \(items, shape, …\), in place of the shapes"):
            check_recipe(relu, recipe, *([(3, 4, 4)] if wrong == [(2, (3, 4, 4))] else []), sizes=wrong)
    with pytest.raises(RecipeError, match="cannot be read"):
        check_recipe(relu, tmp_path / "nowhere.py", (2, 3, 5))
    with pytest.raises(CommandError, match="layer returns the layer that it has declared, not None"):
        check_recipe(lambda net, x: None, recipe, (2, 3, 5))  # type: ignore[arg-type, return-value]
