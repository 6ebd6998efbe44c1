"""Convolution, batch norm, ReLU. In inference a pixel is normalised and rectified before it is stored; in training,
where the statistics need all pixels first, batch norm and ReLU are compiled together, and the convolution by itself."""

chain = ("conv", "batch_norm", "relu")


def inference(s, target):
    s.fuse_layers("inference")
    s.recipe("conv", "forward", on="inference")
