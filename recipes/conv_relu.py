"""Convolution and ReLU: a pixel is rectified before it is stored; what follows is as without."""

chain = ("conv", "relu")


def forward(s, target):
    s.fuse_layers("forward")
    s.recipe("conv", "forward")
