"""``python -m latte``: the command line."""

from latte.cli import main

main()
