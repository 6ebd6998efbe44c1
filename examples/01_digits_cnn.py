"""A convolutional network learns handwritten digits. Run it twice: the second run compiles nothing.

What follows is the first block of README.md, word for word; tests/nets/test_examples.py compares them.
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from latte import *
from latte.solver import SGD

# 1,797 images of 8 × 8 pixels. One in five is kept for the test, as many of each digit.
digits = load_digits()
images, test_images, labels, test_labels = train_test_split(
    digits.images[:, None] / 16, digits.target, test_size=0.2, stratify=digits.target, random_state=0
)

# Declare the net.
net = Net(batch_size=60, seed=0)
image, label = MemoryDataLayer(net, (1, 8, 8)), MemoryDataLayer(net, (1,))
layer = image
for filters in (16, 32):
    layer = ConvLayer(net, layer, num_filters=filters, kernel=3, pad=1)
    layer = BatchNormLayer(net, layer)
    layer = ReLULayer(net, layer)
    layer = MaxPoolingLayer(net, layer)
scores = FullyConnectedLayer(net, layer, 10)
loss = SoftmaxLossLayer(net, scores, label)
accuracy = AccuracyLayer(net, scores, label)

# Compile it to C++, train it, test it.
net.compile(progress=True)
solver = SGD(net, learning_rate=0.05, momentum=0.9, weight_decay=0.001)
history = net.fit(images, labels, solver=solver, epochs=20)
test = net.evaluate(test_images, test_labels)

# Say what happened.
report = net.report
print(f"test accuracy   {test.accuracy:.2%} of {test.items} images")
print(f"training        {history.items_per_second:,.0f} images per second")
print(f"compiled        {report.compiled} kernels, {report.cached} were in the cache")
print(f"compile time    {report.seconds:.1f} s in this run, {report.generating:.1f} s of it making the C++")
print(f"                {report.compiler_seconds:.1f} s in the C++ compiler, when the cache was empty")
print(f"generated code  {report.folder}")

matplotlib.use("Agg")
plt.semilogy(history.losses)
plt.xlabel("step")
plt.ylabel("loss")
Path("out").mkdir(exist_ok=True)
plt.savefig("out/digits_loss.png")
print("loss curve      out/digits_loss.png")
