"""Interpolation: images of another size."""

from __future__ import annotations

from fractions import Fraction
from math import floor

from latte.ensemble import Ensemble
from latte.errors import DeclarationError
from latte.layers.arguments import choice, flag, positive, source_of
from latte.model.checks import is_integer
from latte.model.source_location import user_location
from latte.net import Net
from latte.neuron import Neuron, float32


class NearestNeuron(Neuron):
    """The element that the mapping names."""

    def forward(self) -> None:
        self.value = self.input


class BilinearEnsemble(Ensemble):
    """Mixes of the two rows and the two columns beside a position ``(scale · y + begin) / unit`` of the source.

    Args:
        shape: of the result.
        position: scale, begin and unit.
        pad: how far results are ahead of positions.
        centred: whether a position before the first element reads that element alone.
        name: of the layer.
    """

    kind = "interpolation"

    def __init__(
        self, shape: tuple[int, ...], position: tuple[int, int, int], pad: int, centred: bool, name: str | None
    ):
        super().__init__(shape=shape, dims=("c", "y", "x"), name=name)
        self.scale, self.begin, self.unit = position
        self.pad_of_result, self.centred = pad, int(centred)

    def forward(self, inputs, value):
        N, C, H, W = inputs.shape
        A, B, D, P, S = self.scale, self.begin, self.unit, self.pad_of_result, self.centred
        for n in range(N):
            for c in range(C):
                for y in range(value.shape[2]):
                    for x in range(value.shape[3]):
                        for i in range(2):
                            for j in range(2):
                                value[n, c, y, x] += (
                                    abs(1.0 - i - float32((A * y + B) % D) / D)
                                    * abs(1.0 - j - float32((A * x + B) % D) / D)
                                    * inputs[
                                        n,
                                        c,
                                        min(max((A * y + B) // D - P + S * i, 0) + (1 - S) * i, H - 1),
                                        min(max((A * x + B) // D - P + S * j, 0) + (1 - S) * j, W - 1),
                                    ]
                                )


def InterpolationLayer(
    net: Net,
    input_ensemble: Ensemble,
    pad: int = 0,
    resize_factor: float = 1.0,
    *,
    mode: str = "bilinear",
    centred: bool = False,
    name: str | None = None,
) -> Ensemble:
    """The source in another size: extents ``floor(in · resize_factor) - pad``.

    Row ``y`` reads the source at ``r = y / resize_factor - pad``, with ``centred`` at ``(y + 0.5) / resize_factor - 0.5
    - pad``; columns likewise. Bilinear: ``(1 - d) · row i + d · row j``, with ``d = r - ⌊r⌋``. With ``centred``, ``i =
    ⌊r⌋`` and ``j = ⌊r⌋ + 1``, each moved to the nearest row of the source. Without it, as in the original Latte, ``i``
    is ``⌊r⌋`` moved to the nearest row, and ``j`` the row after ``i``, or the last: before the source, ``pad`` > 0, the
    first two rows are mixed. Nearest: row ``⌊r⌋``, with ``centred`` ``⌊r + 0.5⌋``, moved to the nearest row.

    Args:
        net: the net.
        input_ensemble: shape (channels, height, width).
        pad: how much smaller the result is; -1 makes it one larger.
        resize_factor: greater than 0, a fraction of numbers up to 1000: 0.125, 2, 1.5, 2/3.
        mode: ``"bilinear"`` or ``"nearest"``.
        centred: whether positions are those of the pixels' centres: bilinear is then PyTorch's
            ``align_corners=False``, nearest its ``nearest-exact``. Without it, nearest is PyTorch's ``nearest``.
        name: of the layer, unique in the net; by default its kind and a number.

    Raises:
        DeclarationError: for arguments that do not fit.
    """
    source = source_of(net, input_ensemble, "InterpolationLayer", 3)
    choice("mode", mode, ("bilinear", "nearest"))
    centred = flag("centred", centred)
    if not is_integer(pad):
        raise DeclarationError(f"pad must be an integer, not {pad!r}", location=user_location())
    channels, *extents = source.shape
    factor = _fraction(resize_factor)
    height, width = (floor(extent * factor) - int(pad) for extent in extents)
    if height < 1 or width < 1:
        raise DeclarationError(
            f"pad {pad} and resize_factor {resize_factor:g} leave nothing of {source!r}: ({height}, {width})",
            location=user_location(),
            way_out="use a greater resize_factor, or less padding",
        )
    shape, p, q = (channels, height, width), factor.numerator, factor.denominator
    if mode == "bilinear":
        position = (2 * q, q - p, 2 * p) if centred else (q, 0, p)
        ensemble = net.add_ensemble(BilinearEnsemble(shape, position, int(pad), centred, name))
        net.add_connections(source, ensemble)
        return ensemble
    scale, begin, unit = (2 * q, q, 2 * p) if centred else (q, 0, p)

    def mapping(c, y, x):
        return c, (scale * y + begin) // unit - pad, (scale * x + begin) // unit - pad

    ensemble = net.add_ensemble(Ensemble(NearestNeuron, shape, ("c", "y", "x"), kind="interpolation", name=name))
    net.add_connections(source, ensemble, mapping, clamp=True)
    return ensemble


def _fraction(resize_factor: float) -> Fraction:
    """The fraction that a factor stands for.

    Raises:
        DeclarationError: it is not a positive number, or not a fraction of small numbers.
    """
    given = positive("resize_factor", resize_factor)
    found = Fraction(given).limit_denominator(1000)
    if found.numerator > 1000 or abs(float(found) - given) > 1e-9 * given:
        raise DeclarationError(
            f"resize_factor must be a fraction of numbers up to 1000, not {resize_factor!r}",
            location=user_location(),
            way_out="0.125, 2, 1.5 or 2 / 3",
        )
    return found
