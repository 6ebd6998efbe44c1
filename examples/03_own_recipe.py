"""A layer's recipe, changed: nests, C++ and time before and after; and a recipe that is refused.

The shipped recipe of convolutions serves every shape, and all three phases. Our own, recipes/conv_channels.py beside
this file, has seven commands, and is for layers like this one: lanes along the output channels, and a row of eight
pixels in registers.
"""

from pathlib import Path
from statistics import median

import numpy as np

from latte import *
from latte import Ensemble
from latte.errors import Refused

RECIPES = Path(__file__).parent / "recipes"


def compiled(recipe: str = "") -> tuple[Net, Ensemble]:
    """A convolution of 64 images, 16 channels to 32, with the shipped recipe or the one of that name."""
    net = Net(batch_size=64, seed=0)
    net.force_backward = True  # the gradient of the images too
    images = MemoryDataLayer(net, (16, 8, 8))
    conv = ConvLayer(net, images, num_filters=32, kernel=3, pad=1)
    if recipe:
        net.use_recipe(conv, RECIPES / f"{recipe}.py")
    net.compile(threads=1)  # alone, a thread never waits for another: steadier times
    images.set_value(np.random.default_rng(0).standard_normal((64, 16, 8, 8)))
    return net, conv


nets = {"shipped": compiled(), "own": compiled("conv_channels")}

# The code. Recipes change how something is computed, never what.
for name, (net, conv) in nets.items():
    forward = net.explain(conv, "forward").phases[0]
    print(f"\n── {name} recipe: the nests that it leaves " + "─" * 40)
    print(forward.after_recipe)
    print(f"\n── {name} recipe: the C++ " + "─" * 57)
    print(forward.listing)
    net.forward()
first, second = (conv.get_value() for _, conv in nets.values())
difference = np.abs(first - second).max()
print(f"the values, up to {np.abs(first).max():.1f}, differ by {difference:.1e} at most")
assert difference < 1e-4  # 144 products and a bias are added in another order

# The time, taken in turns: what disturbs one disturbs the other.
seconds: dict[str, list[float]] = {name: [] for name in nets}
for _ in range(51):
    for name, (net, _) in nets.items():
        seconds[name] += [time for _, _, time in net.executable.run_timed("forward")]
shipped, own = median(seconds["shipped"]), median(seconds["own"])
print(f"shipped {shipped * 1e6:.0f} µs, own {own * 1e6:.0f} µs: {shipped / own:.1f} times as fast")

# A command that would give other results is refused, and nothing is compiled.
try:
    compiled("conv_race")
except Refused as refusal:
    print("\n── a recipe that is refused " + "─" * 55)
    print(refusal)
