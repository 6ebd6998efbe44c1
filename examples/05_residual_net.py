"""A residual net with data augmentation, validation and early stopping.

Digits are shifted by up to a pixel while they are trained on; a thread makes the batches. The net has two residual
blocks of He et al. (2016) with exact GELU, whose activations are computed inside the convolutions' loops where that is
possible.
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from latte import *
from latte.data import Crop, DataLoader, Normalise
from latte.ensemble import Ensemble
from latte.solver import AdamW, OneCycle
from latte.training import EarlyStopping

EPOCHS, BATCH = 15, 54  # a net is compiled for each size of a batch: 270 are five of 54

digits = load_digits()
images, held_images, labels, held_labels = train_test_split(
    digits.images[:, None], digits.target, test_size=0.3, stratify=digits.target, random_state=0
)
to_check, to_test = slice(0, 270), slice(270, None)  # of the images that are not trained on
scaled = Normalise.of(images)
training = DataLoader(images, labels, batch_size=BATCH, drop_last=True, transforms=[scaled, Crop(8, pad=1)])


def block(net: Net, source: Ensemble, filters: int) -> Ensemble:
    """``gelu(source + norm(conv(gelu(norm(conv(source))))))``; a 1 × 1 convolution where channels change."""
    inner = GELULayer(net, BatchNormLayer(net, ConvLayer(net, source, num_filters=filters)))
    branch = BatchNormLayer(net, ConvLayer(net, inner, num_filters=filters))
    same = source.shape[0] == filters
    shortcut = source if same else ConvLayer(net, source, num_filters=filters, kernel=1, pad=0)
    return GELULayer(net, ResidualSumLayer(net, shortcut, branch))


net = Net(batch_size=BATCH, seed=0)
image, label = MemoryDataLayer(net, (1, 8, 8)), MemoryDataLayer(net, (1,))
layer = MaxPoolingLayer(net, block(net, image, 16))
layer = DropoutLayer(net, GlobalMeanPoolingLayer(net, block(net, layer, 32)), 0.1)
scores = FullyConnectedLayer(net, layer, 10)
SoftmaxLossLayer(net, scores, label, label_smoothing=0.05)
AccuracyLayer(net, scores, label)
net.compile(progress=True)
print(net.summary())

solver = AdamW(net, OneCycle(most=0.01, steps=EPOCHS * len(training)), weight_decay=0.01)
history = net.fit(
    training,
    solver=solver,
    epochs=EPOCHS,
    validation=(scaled(held_images[to_check]), held_labels[to_check]),
    callbacks=[EarlyStopping(patience=6, by="accuracy")],
)
test = net.evaluate(scaled(held_images[to_test]), held_labels[to_test])
report = net.report
print(f"epochs          {len(history.validations)}{'; ' + history.stopped if history.stopped else ''}")
print(f"test accuracy   {test.accuracy:.2%} of {test.items} images")
