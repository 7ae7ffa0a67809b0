"""Parsers of arguments that the programs share. Decides nothing about them."""

import argparse


def positive(kind):
    """A parser of an argument that must be a number above 0."""

    def parse(word):
        value = kind(word)
        if not 0 < value < 10_000:
            raise argparse.ArgumentTypeError(f"{word} is not between 0 and 10000")
        return value

    return parse
