"""``python -m latte``: the command line."""

from latte.tools.cli import main

main()
