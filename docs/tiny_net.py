"""The net that docs/architecture.md follows: convolution, batch norm, ReLU."""

from latte import BatchNormLayer, ConvLayer, MemoryDataLayer, Net, ReLULayer


def net():
    net = Net(batch_size=8, seed=1, keep="all")  # each layer by itself
    data = MemoryDataLayer(net, (3, 16, 16))
    conv = ConvLayer(net, data, num_filters=16, kernel=3, stride=1, pad=1)
    ReLULayer(net, BatchNormLayer(net, conv))
    return net
