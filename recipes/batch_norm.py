"""Batch norm: a channel, or a block of channels, for each thread; two passes over its images each way.

Lanes run along the pixels of an image; after a source in blocks of channels, and for vectors, along the channels. Long
sums are made of short ones, over a few images each, so that they keep their digits."""

from swirl.schedule.recipe import Schedule
from swirl.target import Target

LARGE = 2**22  # elements from which on a result is stored past the caches
FEW = 400  # elements of a row below which many of its cache lines are not whole: it is stored in the caches
NEAR = 1024  # up to which rows in the caches are too short alone; those that pass by memory are not
NEIGHBOURS = 12288  # elements of short rows, of channels beside each other, that a thread takes at once
PIECE = 1024  # fewer are not worth it
MOST = 512  # channels of a group: their sums are on a thread's stack
SHAPED = {
    **dict.fromkeys(("forward", "inference"), ("inputs", "value")),
    "backward": ("inputs", "grad", "grad_inputs"),
    "update": ("inputs", "grad"),
}
SHORT = {"hw": 2048, "c": 128, "c_inner": 128}  # least number of terms of a short sum, by what lanes run along


def _extent(s: Schedule, phase: str, loop: str) -> int:
    return s.extent(phase, loop) if loop in s.loops(phase) else 1


def _lanes(s: Schedule, phase: str) -> str | None:
    """The loop that becomes lanes; None where arrays are laid out in another way."""
    names = SHAPED[phase]
    if phase == "update" and "batch_norm_grad" in s.buffers(phase):  # of a chain that has left backward
        names = ("inputs", "batch_norm_grad")
    blocks = [s.blocks(name) for name in names]
    if s.rearranged(phase) or any(other != blocks[0] for other in blocks) or not set(blocks[0]) <= {0}:
        return None
    return "c_inner" if blocks[0] else "hw" if _extent(s, phase, "hw") > 1 else "c"


def _few_images(s: Schedule, phase: str, lanes: str) -> str:
    """The loop of which each iteration makes short sums: of as few images as have enough terms; if none have, of the
    largest equal parts of the batch."""
    batch, pixels = s.extent(phase, "n"), _extent(s, phase, "hw")
    parts = [images for images in range(1, batch) if batch % images == 0]
    few = next((images for images in parts if images * pixels >= SHORT[lanes]), max(parts, default=1))
    if few == 1:
        return "n"
    s.tile_loop(phase, "n", few)
    return "n_outer"


def rows(s: Schedule, phase: str) -> str | None:
    """The pixels of an image as one loop; what becomes lanes."""
    lanes = _lanes(s, phase)
    if lanes and "h" in s.loops(phase):
        s.flatten(phase, ["h", "w"])
        lanes = _lanes(s, phase)
    return lanes


def passes(s: Schedule, phase: str) -> None:
    """Forward in two passes over the images; arrays have the source's layout."""
    for dim, factor in s.blocks("inputs").items():
        s.tile("value", dim, factor)
        s.tile("grad", dim, factor)
    lanes = rows(s, phase)
    if lanes:
        s.factor(phase, "n", keep_differences=True)
        s.moments(phase, _few_images(s, phase, lanes))


def _side_by_side(s: Schedule, phase: str, channel: str, row: int) -> tuple[str, int]:
    """The loop over groups of channels, or of their blocks, where each pass over the images takes whole groups: what it
    reads of an image is one piece of memory then, which the processor fetches ahead; one row is too short for that.
    Where no such group divides the channels: their loop, and how many of them share cache lines."""
    channels, inner = s.extent(phase, channel), f"{channel}_inner"
    limits = (NEIGHBOURS // row, MOST // s.blocks("inputs").get(0, 1), channels // 16)  # sixteen groups for the threads
    most = max(1, min(limits))
    group = max(size for size in range(1, most + 1) if channels % size == 0)
    if group * row < PIECE:
        return channel, most
    s.tile_loop(phase, channel, group)
    for images in ("n", "n_outer", "n_inner"):
        if images in s.loops(phase):
            if names := s.locals(phase, inner):
                s.scalar_expand(phase, list(names), inner)
            s.distribute(phase, inner)
            s.interchange(phase, [inner, images])
    return f"{channel}_outer", 1


def _partial_sums(s: Schedule, phase: str, loops: tuple[str, ...]) -> None:
    if phase != "forward" and ("n_outer" in loops or "hw" in loops):
        s.partial_sums(phase, "n_outer" if "n_outer" in loops else "n")


def schedule(s: Schedule, target: Target, phase: str, stored: str | None = None) -> None:
    """Vectors, four at a time; the second pass begins with what the first one has left in the caches; a large result
    is stored past them."""
    lanes, loops = _lanes(s, phase), s.loops(phase)
    channel = "c_outer" if "c_outer" in loops else "c"
    if lanes is None:
        s.decline("arrays differ in their blocks, or have others than of channels")
    block = s.blocks("inputs").get(0, 1)
    elements, ragged = block, s.shape("inputs")[0] % block > 0
    for loop in ("n", "n_outer", "n_inner", channel, "hw"):
        elements *= _extent(s, phase, loop)
    inner = [loop for loop in ("hw", "n_inner") if _extent(s, phase, loop) > 1]
    row = _extent(s, phase, "hw") * block
    whole_lines, near = lanes != "hw" or row >= FEW, row <= NEAR and elements < LARGE and not ragged
    short, together = lanes != "c" and phase != "inference" and (near or not whole_lines), 1
    if short and lanes == "c_inner":
        s.interchange(phase, ["c_outer", "c_inner"])  # groups are of whole blocks
    s.vectorize(phase, lanes, target.simd_width)
    if short:
        _partial_sums(s, phase, loops)
        channel, together = _side_by_side(s, phase, channel, row)
    if inner:
        s.unroll(phase, inner[0], 4)
    if stored and elements >= LARGE and whole_lines:
        s.stream(phase, stored, optional=True)  # not where it adds to what another layer has left
    if phase == "inference":
        s.parallelize(phase, ["n", channel] if inner else "n")
        return
    if not short:
        _partial_sums(s, phase, loops)
    for loop in ("n", "n_outer", "n_inner"):
        if loop in loops and phase != "update":
            s.reverse(phase, loop, occurrence=-1)
    s.parallelize(phase, channel, schedule=f"dynamic,{together}")


def forward(s: Schedule, target: Target) -> None:
    passes(s, "forward")
    schedule(s, target, "forward", "value")


def inference(s: Schedule, target: Target) -> None:
    rows(s, "inference")
    schedule(s, target, "inference", "value")


def backward(s: Schedule, target: Target) -> None:
    s.fuse_layers("backward", "update")
    lanes = rows(s, "backward")
    if lanes:
        s.factor("backward", "n", keep_differences=True)
        for loop in ("n", "hw"):
            if loop in s.loops("backward"):
                s.fuse("backward", loop)
        s.factor("backward", "n", keep_differences=True)
        _few_images(s, "backward", lanes)
    schedule(s, target, "backward", "grad_inputs")


def update(s: Schedule, target: Target) -> None:
    lanes = rows(s, "update")
    if lanes:
        s.factor("update", "n", keep_differences=True)
        _few_images(s, "update", lanes)
    schedule(s, target, "update")
