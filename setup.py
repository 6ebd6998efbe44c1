"""Packaging: the language (latte, with its layers and recipes) and the compiler (swirl)."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

# latte/layers, latte/recipes and latte/tools/bench/published_nets are symbolic links to folders at the top, which are
# followed here.
packages = find_namespace_packages(
    include=["latte", "latte.*", "swirl", "swirl.*"],
    exclude=["*.__pycache__", "*.__pycache__.*"],
)

readme = Path(__file__).parent / "README.md"

setup(
    name="latte-swirl",
    version="0.1.0",
    description="Layers of deep networks as arrays of neurons, compiled to AVX-512 OpenMP C++ by recipes",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    license="BSD-2-Clause",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=packages,
    # The runner's C++ and the frames of translation units; the pages of explanations and profiles in notebooks; the
    # sources of exported nets.
    package_data={
        "latte": ["py.typed"],
        "swirl.codegen.templates": ["*"],
        "latte.explain.templates": ["*"],
        "latte.profiling.templates": ["*"],
        "latte.tools.export.templates": ["*"],
        "swirl.tune.polydl": ["rankers/*.json"],
        "swirl.tune.ttile": ["tables/*.json"],
    },
    entry_points={"console_scripts": ["latte = latte.tools.cli:main"]},
    install_requires=[
        "numpy>=2",  # buffers; older ones promote float32 scalars to double
        "islpy",  # integer sets: dependences between iterations
        "ctree==0.1.9",  # the C++ tree and its printer; pinned, as ctree_compat.py is made for it
        "jinja2",  # the frame of a translation unit
        "rich",  # progress bars and tables
        "click",  # the command line
        "archspec",  # the processor's name and features, for the key of remembered probes
        "platformdirs",  # where the user's cache is
        "filelock",  # two processes compiling the same kernel
        "safetensors",  # checkpoints
        "cloudpickle",  # pickles of nets: layers are mostly classes inside of functions
    ],
    extras_require={
        "examples": [
            "scikit-learn",  # ships the handwritten digits
            "matplotlib>=3.7",  # loss curves, and the roofline of net.profile
        ],
        "tune": [
            "scikit-learn",  # boosted trees: the choice of schedules that latte tune --method automcl reads
            "matplotlib>=3.7",  # latte tune --plot
        ],
        "torch": ["torch>=2.6"],  # latte.torch: layers as modules of PyTorch; latte.distributed: several processes
        "test": [
            "pytest",  # runs the tests
            "pytest-xdist",  # on all cores
            "hypothesis",  # random programs and shapes
            "syrupy",  # snapshots of nests and recipes
            "torch==2.13.0",  # the layers' opposite number; pinned, as its rounding is part of the comparison
            "scikit-learn",  # the examples run in the tests
            "matplotlib>=3.7",
            "ruff",  # style
            "mypy",  # types
        ],
    },
)
