"""A getter's array stays unchanged when the field is set: differences of a net's values rely on it."""

import numpy as np

from latte import MemoryDataLayer, Net, ReLULayer


def test_what_a_getter_returned_does_not_change_with_the_field():
    net = Net(2, seed=0)
    data = MemoryDataLayer(net, (3,))
    ReLULayer(net, data)
    net.compile(target="portable", threads=1)
    data.set_value(np.ones((2, 3)))
    before = data.get_value()
    data.set_value(np.zeros((2, 3)))
    assert (before == 1).all()
