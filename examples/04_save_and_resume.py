"""Training that is killed goes on from where it was saved, to the last bit.

The net of the first example is trained twice: once without a stop; once by programs of which the first is killed in the
middle. What the last one has learned equals the first run, momentum and the order of images included.

    python 04_save_and_resume.py             # all of it
    python 04_save_and_resume.py out/net.safetensors  # what the killed programs run
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from latte import *
from latte.solver import SGD, CosineDecay

EPOCHS, KILLED_AFTER = 8, 3

digits = load_digits()
images, labels = digits.images[:1500, None] / 16, digits.target[:1500]
test_images, test_labels = digits.images[1500:, None] / 16, digits.target[1500:]


def declare():
    """The net, compiled, and its solver."""
    net = Net(batch_size=60, seed=0)
    layer, label = MemoryDataLayer(net, (1, 8, 8)), MemoryDataLayer(net, (1,))
    for filters in (16, 32):
        layer = MaxPoolingLayer(net, ReLULayer(net, BatchNormLayer(net, ConvLayer(net, layer, num_filters=filters))))
    scores = FullyConnectedLayer(net, DropoutLayer(net, layer, 0.2), 10)
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    net.compile()
    return net, SGD(net, CosineDecay(0.05, steps=EPOCHS * 25), momentum=0.9, weight_decay=0.001)


def train_and_save(path: Path, kill: bool) -> None:
    """Train up to the last epoch, saving after each; die in the middle if asked to."""
    net, solver = declare()
    if path.exists():
        net.load(path, solver)

    def after_epoch(run):
        run.save(path)
        if kill and run.epoch + 1 == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)

    done = solver.step_number // 25  # steps in an epoch
    net.fit(images, labels, solver=solver, epochs=EPOCHS - done, callbacks=[after_epoch], progress=False)


if len(sys.argv) > 1:
    train_and_save(Path(sys.argv[1]), kill="--kill" in sys.argv)
    sys.exit()

net, solver = declare()
history = net.fit(images, labels, solver=solver, epochs=EPOCHS)
test, report = net.evaluate(test_images, test_labels), net.report

path = Path("out/resumed.safetensors")
path.parent.mkdir(exist_ok=True)
path.unlink(missing_ok=True)
killed = subprocess.run([sys.executable, __file__, str(path), "--kill"])
print(f"the first program ended by signal {-killed.returncode}, after {KILLED_AFTER} of {EPOCHS} epochs")
subprocess.run([sys.executable, __file__, str(path)], check=True)

resumed, _ = declare()
resumed.load(path)
equal = all(np.array_equal(array, resumed.state_dict()[name]) for name, array in net.state_dict().items())
print(f"test accuracy {test.accuracy:.2%}; the resumed net is equal to the last bit: {equal}")
