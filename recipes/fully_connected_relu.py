"""Fully connected and ReLU: an output is rectified before it is stored; what follows is as without."""

chain = ("fully_connected", "relu")


def forward(s, target):
    s.fuse_layers("forward")
    s.recipe("fully_connected", "forward")
