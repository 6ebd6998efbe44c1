"""Random nets, as the fuzzer once drew them: what it draws now may differ."""

from tests.fuzz.net_cases import Layer, NetCase

RANDOM_NETS: dict[int, NetCase] = {
    3: NetCase(
        batch=4,
        shape=(5, 6, 13),
        layers=(
            Layer("conv", (0,), {"num_filters": 16, "kernel": 3, "stride": 1, "pad": (2, 2), "dilation": (1, 3)}),
            Layer("permute", (1,), {}),
            Layer("turned", (2,), {}),
            Layer("depthwise", (3,), {}),
            Layer("flatten", (4,), {}),
        ),
        recipes={
            (1,): """def forward(s, target):
    s.tile("grad_inputs", 2, 3, optional=True)
    s.transpose("weights", 0, 0, optional=True)
"""
        },
        keep="all",
        force=True,
        smaller=0,
        seed=3,
    ),
    8: NetCase(
        batch=4,
        shape=(17, 7, 2),
        layers=(
            Layer("batch_norm", (0,), {}),
            Layer("relu", (1,), {}),
            Layer("conv", (2,), {"num_filters": 16, "kernel": (2, 2), "stride": (3, 1), "pad": (1, 1), "dilation": 1}),
            Layer(
                "max_pooling", (3,), {"kernel": (2, 3), "stride": 2, "pad": (1, 0), "ceil_mode": True, "clamp": False}
            ),
            Layer("conv", (4,), {"num_filters": 32, "kernel": 2, "stride": 3, "pad": 2, "dilation": 2}),
            Layer("batch_norm", (5,), {}),
        ),
        recipes={
            (4,): """
def forward(s, target):
    s.tile("value", 0, 16)
    s.tile("grad", 0, 16)
    s.default("forward")
""",
            (5, 6): """chain = ('conv', 'batch_norm')

def forward(s, target):
    s.fuse_layers("forward", optional=True)
    s.contract("forward", "conv_value", optional=True)
""",
        },
        keep="all",
        force=False,
        smaller=0,
        seed=8,
    ),
    11: NetCase(
        batch=9,
        shape=(32, 8, 9),
        layers=(
            Layer("max_pooling", (0,), {"kernel": 1, "stride": 2, "pad": 1, "ceil_mode": True, "clamp": True}),
            Layer("fully_connected", (1,), {"num_outputs": 17}),
            Layer("conv", (0,), {"num_filters": 32, "kernel": 2, "stride": 1, "pad": (0, 1), "dilation": 3}),
        ),
        recipes={
            (1,): """def forward(s, target):
    s.tile("value", 0, 3)
    s.tile("grad", 0, 3)
"""
        },
        force=True,
        smaller=0,
        seed=11,
    ),
    17: NetCase(
        batch=8,
        shape=(16, 6, 4),
        layers=(
            Layer("tanh", (0,), {}),
            Layer("split", (1,), {}),
            Layer("flatten", (2,), {}),
            Layer("doubled", (3,), {}),
            Layer("fully_connected", (0,), {"num_outputs": 1}),
            Layer("relu", (5,), {}),
        ),
        recipes={
            (2,): """def forward(s, target):
    s.scalar_replace("forward", optional=True)
    s.hoist("forward", optional=True)
    s.parallelize("forward", s.loops("forward")[0 % len(s.loops("forward"))], optional=True)

def backward(s, target):
    s.unroll("backward", s.loops("backward")[0 % len(s.loops("backward"))], 2, optional=True)
    s.partial_sums("backward", s.loops("backward")[-2 % len(s.loops("backward"))], optional=True)
    s.vectorize("backward", s.loops("backward")[-2 % len(s.loops("backward"))], target.simd_width or 4, optional=True)

def update(s, target):
    s.unroll("update", s.loops("update")[-2 % len(s.loops("update"))], 2, optional=True)
    s.partial_sums("update", s.loops("update")[-2 % len(s.loops("update"))], optional=True)
    s.tile_loop("update", s.loops("update")[0 % len(s.loops("update"))], 16, tail="peel", optional=True)
    s.parallelize("update", s.loops("update")[0 % len(s.loops("update"))], optional=True)
""",
            (3,): """def forward(s, target):
    s.tile("value", 0, 4)
    s.tile("grad", 0, 4)
""",
            (5,): """def forward(s, target):
    s.tile("value", 0, 16)
    s.tile("grad", 0, 16)
""",
        },
        force=True,
        smaller=7,
        seed=17,
    ),
    24: NetCase(
        batch=8,
        shape=(7, 3, 2),
        layers=(
            Layer("conv", (0,), {"num_filters": 33, "kernel": 3, "stride": 2, "pad": (1, 1), "dilation": 1}),
            Layer("relu", (1,), {}),
        ),
        force=False,
        smaller=0,
        seed=24,
    ),
    40: NetCase(
        batch=9,
        shape=(33, 5, 3),
        layers=(
            Layer("rms_norm", (0,), {}),
            Layer("doubled", (1,), {}),
            Layer("conv", (2,), {"num_filters": 17, "kernel": 3, "stride": 3, "pad": (1, 0), "dilation": 1}),
            Layer("batch_norm", (3,), {}),
            Layer("blur", (4,), {}),
        ),
        force=False,
        smaller=0,
        seed=40,
    ),
}
