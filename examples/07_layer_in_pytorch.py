"""A layer of one's own inside of a PyTorch model: declared in a few lines, compiled, differentiated, trained.

The model is ordinary PyTorch: the layer is an nn.Module, with nn.Parameters where it has any.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import latte.torch
from latte import *
from latte import Ensemble, Neuron, Param
from latte.neuron import exp, ones


class Swish(Neuron):
    """x · sigmoid(beta · x), where each channel learns its beta."""

    beta = Param("c", init=ones)

    def forward(self):
        self.value = self.input / (1.0 + exp(-self.beta * self.input))


def SwishLayer(net, source):
    """Swish of images: the dimensions have names, so that a parameter can be one of each channel."""
    layer = net.add_ensemble(Ensemble(Swish, source.shape, dims=("c", "y", "x")))
    net.add_one_to_one_connections(source, layer)
    return layer


def block(net, x):
    """Convolution, batch norm and ReLU of Latte's library, which it compiles into one loop nest."""
    return ReLULayer(net, BatchNormLayer(net, ConvLayer(net, x, num_filters=32, kernel=3, pad=1)))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of handwritten digits, 8 × 8."""
    found = load_digits()
    return torch.tensor(found.images[:, None] / 16, dtype=torch.float32), torch.tensor(found.target)


def main(epochs: int = 10) -> float:
    """Train, and return the share of the last 360 images that the model knows."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        latte.torch.module(SwishLayer, inputs=[(16, 8, 8)]),
        latte.torch.module(block, inputs=[(16, 8, 8)]),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    images, labels = digits()
    train, test = slice(0, -360), slice(-360, None)
    loss_of, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        losses = []
        model.train()
        for chosen in torch.randperm(len(images[train])).split(64):
            optimizer.zero_grad()
            loss = loss_of(model(images[train][chosen]), labels[train][chosen])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, accuracy {right:.1%}")
    return right


if __name__ == "__main__":
    main()
