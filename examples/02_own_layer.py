"""A new layer: declared forwards, differentiated by the compiler, checked, trained.

*Gated local contrast* compares every pixel with a weighted mean of its neighbourhood, and moves it away from
that mean where the difference is large. Edges become sharper; noise below a threshold stays small. Weights,
strength and threshold are learned, one set for each channel.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from latte import *
from latte import Ensemble, Neuron, Param
from latte.neuron import constant, eachindex
from latte.solver import SGD

# 1,797 images of 8 × 8 pixels; one in five is kept for the test.
digits = load_digits()
images, test_images, labels, test_labels = train_test_split(
    digits.images[:, None] / 16, digits.target, test_size=0.2, stratify=digits.target, random_state=0
)


class GatedContrastNeuron(Neuron):
    """One pixel of one channel; ``inputs`` is its neighbourhood, 1 × 3 × 3."""

    surround = Param("c", shape=(1, 3, 3), init=constant(1 / 9))
    strength = Param("c", shape=(1,), init=constant(0.5))
    threshold = Param("c", shape=(1,), init=constant(0.3))

    def forward(self) -> None:
        mean = 0.0
        for i in eachindex(self.inputs):
            mean += self.surround[i] * self.inputs[i]
        contrast = self.inputs[0, 1, 1] - mean
        gate = contrast * contrast / (contrast * contrast + self.threshold[0] * self.threshold[0] + 1e-6)
        self.value = self.inputs[0, 1, 1] + self.strength[0] * gate * contrast


def GatedContrastLayer(net: Net, source: Ensemble) -> Ensemble:
    """Gated local contrast of images (channels, height, width)."""

    def mapping(c, y, x):  # type: ignore[no-untyped-def]
        return range(c, c + 1), range(y, y + 3), range(x, x + 3)

    ensemble = net.add_ensemble(Ensemble(GatedContrastNeuron, source.shape, dims=("c", "y", "x")))
    net.add_connections(source, ensemble, mapping, padding=(0, 1, 1))
    return ensemble


def check_gradient() -> float:
    """The largest relative difference between the derived gradient and differences of the forward phase.

    For each array p: (f(p + h·d) - f(p - h·d)) / 2h against Σ gradient · d, for a random direction d, where f
    is the sum of the layer's values, each times a random weight.
    """
    generator = np.random.default_rng(0)
    net = Net(batch_size=3, seed=0)
    net.force_backward = True  # the gradient of the data too
    data = MemoryDataLayer(net, (2, 6, 7))
    layer = GatedContrastLayer(net, data)
    net.compile()
    data.set_value(generator.random((3, 2, 6, 7)))
    weights = generator.standard_normal((3, 2, 6, 7))
    net.forward()
    layer.set_grad(weights)
    net.backward()
    checks = {
        "inputs": (data.get_value(), data.set_value, layer.get_grad_inputs()),
        "surround": (layer.get_surround(), layer.set_surround, layer.get_grad_surround()),
        "strength": (layer.get_strength(), layer.set_strength, layer.get_grad_strength()),
        "threshold": (layer.get_threshold(), layer.set_threshold, layer.get_grad_threshold()),
    }
    worst, step = 0.0, 1e-3
    for values, set_values, gradient in checks.values():
        direction = generator.standard_normal(values.shape)
        sums = []
        for sign in (1, -1):
            set_values(values + sign * step * direction)
            net.forward()
            sums.append(np.sum(layer.get_value() * weights))
        set_values(values)
        expected = (sums[0] - sums[1]) / (2 * step)
        worst = max(worst, abs(np.sum(gradient * direction) - expected) / abs(expected))
    return worst


def train(with_contrast: bool, seed: int) -> float:
    """The test accuracy of a small net, with the layer or without it."""
    net = Net(batch_size=60, seed=seed)
    image, label = MemoryDataLayer(net, (1, 8, 8)), MemoryDataLayer(net, (1,))
    layer = GatedContrastLayer(net, image) if with_contrast else image
    layer = ReLULayer(net, ConvLayer(net, layer, num_filters=8, kernel=3, pad=1))
    layer = GatedContrastLayer(net, layer) if with_contrast else layer
    scores = FullyConnectedLayer(net, MaxPoolingLayer(net, layer), 10)
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    net.compile()
    solver = SGD(net, learning_rate=0.05, momentum=0.9, weight_decay=0.001)
    net.fit(images, labels, solver=solver, epochs=20, progress=False)
    return net.evaluate(test_images, test_labels).accuracy


if __name__ == "__main__":
    worst = check_gradient()
    print(f"derived gradient and differences agree to {worst:.1e}")
    assert worst < 1e-2

    print(f"of {len(test_images)} test images, three seeds each:")
    for name, with_contrast in (("without gated contrast", False), ("with gated contrast", True)):
        found = [train(with_contrast, seed) for seed in (0, 1, 2)]
        print(f"{name:24}{', '.join(f'{a:.2%}' for a in found)}  mean {np.mean(found):.2%}")
