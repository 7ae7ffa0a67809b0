"""The program `magray`, as a script of the environment starts it: this process becomes the program."""

import os
import sys

# Beside the library that it runs.
PLACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "magray")


def main() -> None:
    """Does not return."""
    if not os.access(PLACE, os.X_OK):
        sys.exit(f"magray: {PLACE} is missing: this package was installed without the program")
    os.execv(PLACE, ["magray", *sys.argv[1:]])
