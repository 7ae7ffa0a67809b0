"""Where things are: the program that came with the package, the store of models, caches. Looks only; makes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess

from magray._magray import MagrayError, find_model
from magray.program import PLACE as PROGRAM

DEFAULT_MODEL = "all-MiniLM-L6-v2"


def program() -> str | None:
    """The program `magray`: the one of MAGRAY_BIN, the one of this package, or one in the search path."""
    named = os.environ.get("MAGRAY_BIN")
    if named:
        return named
    if os.access(PROGRAM, os.X_OK):
        return PROGRAM
    return shutil.which("magray")


def store_folder() -> str:
    """The folder of models and collections, as the program has it by default."""
    home = os.environ.get("MAGRAY_HOME")
    if home:
        return home
    base = os.environ.get("XDG_DATA_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(base, "magray")


def cache_folder() -> str:
    """The folder of what can be made again: compiled kernels, measured speeds."""
    base = os.environ.get("XDG_CACHE_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "magray")


def find(name: str, pull: bool) -> str:
    """The folder or file of a model; one that is not in the store is pulled by the program if that is wanted."""
    # A model that is named by a path is its folder, or a GGUF file.
    if os.path.isdir(name) or (name.lower().endswith(".gguf") and os.path.isfile(name)):
        return os.path.abspath(name)
    store = store_folder()
    found = find_model(store, name)
    if found is not None:
        return str(found)
    if not pull:
        raise MagrayError(f"the model '{name}' is not in the store {store}: pull it, or let pull=True do it")
    return _pulled(name, store)


def _pulled(name: str, store: str) -> str:
    magray = program()
    if magray is None:
        raise MagrayError(f"the model '{name}' is to be pulled, and the program magray was not found: set MAGRAY_BIN")
    done = subprocess.run(
        [magray, "pull", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"MAGRAY_HOME": store},
    )
    found = find_model(store, name) if done.returncode == 0 else None
    if found is None:
        last = done.stderr.strip().splitlines()[-1:] or ["it ended without a message"]
        raise MagrayError(f"the model '{name}' could not be pulled: {last[0]}")
    return str(found)
