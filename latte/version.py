"""The version of Latte that is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("latte-swirl")
except PackageNotFoundError:  # a checkout that is not installed
    VERSION = "0+unknown"
