"""A plugin of pytest for the congruence tests of qdrant-client: their clients of a server reach that of magray, over REST.

Changes no test. Every test has a seed of its own, so that it can be repeated.
"""

import os
import random

import numpy
from qdrant_client import QdrantClient
from qdrant_client.conversions import common_types

PORT, SEED = int(os.environ["MAGRAY_PORT"]), os.environ.get("MAGRAY_TEST_SEED", "1")
construct = QdrantClient.__init__
# An annotation of the tests names it, and newer clients lack it.
common_types.NamedVector = common_types.__dict__.get("NamedVector", list)


def construct_over_rest(self, *positional, **given):
    if "host" in given:
        given |= {"port": PORT, "prefer_grpc": False}
    construct(self, *positional, **given)


QdrantClient.__init__ = construct_over_rest


def pytest_runtest_setup(item):
    random.seed(f"{SEED} {item.nodeid}")
    numpy.random.seed(random.randrange(2**32))
