"""Parsers of arguments that the programs share. Decides nothing about them."""

import argparse


def positive(kind, below=10_000):
    """A parser of an argument that must be a number above 0 and below another."""

    def parse(word):
        value = kind(word)
        if not 0 < value < below:
            raise argparse.ArgumentTypeError(f"{word} is not between 0 and {below}")
        return value

    return parse
