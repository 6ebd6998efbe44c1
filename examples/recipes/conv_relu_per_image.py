"""Convolution and ReLU: backward with the update, one image at a time. The gradient between the two layers is an array
of one image, private to each thread; the gradients of weights and bias are sums of eight parts of the images.
"""

chain = ("conv", "relu")

PARTS = 8


def backward(s, target):
    s.fuse_layers("backward", "update", keep=["conv_grad"])
    s.distribute("backward", "k")  # what starts the sums is separate from what adds to them
    for nest in s.nests("backward"):
        s.reorder("backward", ["n", "k"], nest=nest, optional=True)
    s.fuse("backward", "n")  # past the nests that start the sums
    s.contract("backward", "conv_grad")
    s.tile_loop("backward", "n", -(-s.extent("backward", "n") // PARTS))
    for sums in ("grad_weights", "grad_bias"):
        if sums in s.buffers("backward"):
            s.privatize("backward", sums, "n_outer", copies=PARTS)
    s.parallelize("backward", "n_outer")
