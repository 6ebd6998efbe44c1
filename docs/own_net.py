"""A net with a layer of one's own, which no recipe schedules: docs/recipes.md shows its default schedule."""

from latte import MemoryDataLayer, Net
from latte.tools.bench.own_layers import OWN


def net():
    net = Net(batch_size=16, seed=1)
    net.force_backward = True
    OWN["depthwise"].declare(net, MemoryDataLayer(net, (64, 56, 56)))
    return net
