"""Nets that are exported in tests, as the files that the command line reads."""

SMALL = """
from latte import *

def net(batch_size=4):
    net = Net(batch_size, seed=3)
    image, label = MemoryDataLayer(net, (3, 9, 7), name="image"), MemoryDataLayer(net, (1,), name="label")
    layer = ReLULayer(net, BatchNormLayer(net, ConvLayer(net, image, 20, kernel=3, pad=1)))
    layer = DropoutLayer(net, MaxPoolingLayer(net, layer, ceil_mode=False, clamp=False))
    scores = FullyConnectedLayer(net, layer, 5, name="scores")
    SoftmaxLossLayer(net, scores, label)
    AccuracyLayer(net, scores, label)
    return net
"""
"""An odd size, dropout, a loss and an accuracy, which inference does not need, running statistics."""
OF_SMALL = ("--layer", "scores", "--layer", "relu1")

WORDS = """
from latte import *

def net(batch_size=3):
    net = Net(batch_size, seed=5)
    words = MemoryDataLayer(net, 6, dtype="int32", below=11, name="words")
    extra, label = MemoryDataLayer(net, (4,), name="extra"), MemoryDataLayer(net, (1,), name="label")
    states = LSTMLayer(net, EmbeddingLayer(net, words, 11, 5), 7, name="states")
    hidden = TanhLayer(net, FullyConnectedLayer(net, states, 9))
    both = ConcatLayer(net, [hidden, extra], name="both")
    scores = FullyConnectedLayer(net, both, 3, name="scores")
    net.keep(both)
    SoftmaxLossLayer(net, scores, label)
    return net
"""
"""Whole numbers that are subscripts, two inputs, and a layer in between that is kept."""

OF_BATCHES = """
from latte import *
from latte.ensemble import Ensemble

class Shifted(Ensemble):
    def forward(self, inputs, value):
        N, C = inputs.shape
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] + (inputs[n - 1, c] if n > 0 else 0.0)

def net(batch_size=4):
    net = Net(batch_size, seed=1)
    data = MemoryDataLayer(net, (3,), name="data")
    net.add_one_to_one_connections(data, net.add_ensemble(Shifted(shape=(3,), name="shifted")))
    return net
"""
"""Each item depends on the one before: whole batches only."""

COUNTING = """
import numpy as np
from latte import *
from latte.ensemble import Ensemble
from latte.neuron import State, zeros

FACTORS = np.array([2.0, 3.0, 5.0], dtype=np.float32)

class Counting(Ensemble):
    runs = State("c", init=zeros)

    def __init__(self, shape, name):
        super().__init__(shape=shape, dims=("c",), name=name)

    def forward(self, inputs, value, runs):
        N, C = inputs.shape
        for c in range(C):
            runs[c] = runs[c] + 1.0
        for n in range(N):
            for c in range(C):
                value[n, c] = inputs[n, c] * FACTORS[c] + runs[c] / N

def net(batch_size=4):
    net = Net(batch_size, seed=1)
    data = MemoryDataLayer(net, (3,), name="data")
    net.add_one_to_one_connections(data, net.add_ensemble(Counting((3,), "counting")))
    return net
"""
"""A state that inference changes, an array that a body reads, and a number of items."""
