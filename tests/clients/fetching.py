"""Fetches what the clients' tests need, once, into one folder: packages of Python and of Node, promtool, a repository's tests.

Never asks for rights, and changes nothing outside of that folder. What cannot be had here is told apart from what is wrong.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
PIP = ["-m", "pip", "--disable-pip-version-check"]
FORGET_AFTER_S = 30 * 24 * 3600


class CannotFetch(Exception):
    """This machine lacks what fetches it, or does not reach where it comes from."""


class Broken(Exception):
    """It could be fetched, but does not install: the pins are wrong."""


def user_cache():
    """Where a user's programs keep what they can fetch again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "magray" / "clients"


def environment(name, keep):
    """The interpreter of an environment, made where there is none of these very packages."""
    packages = REQUIREMENTS / name
    pins = [REQUIREMENTS / f"{name}.txt", *sorted(packages.glob("*.json"))]
    told = sys.version.encode() + b"".join(file.read_bytes() for file in pins)
    folder = keep / f"{name}-{hashlib.sha256(told).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    with whole(folder) as is_whole:
        if not is_whole:
            print(f"clients: fetching the packages of {name} (once)", file=sys.stderr)
            forget(keep.glob(f"{name}-*/whole"))
            install_python(python, pins[0])
            if packages.is_dir():
                install_node(folder, packages)
    return python


def promtool(keep):
    """The program that checks metrics: the user's own, or that of the system's package, which is not installed for it."""
    own = shutil.which("promtool")
    if own:
        return Path(own)
    folder = keep / "promtool"
    with whole(folder) as is_whole:
        if not is_whole:
            print("clients: fetching promtool (once)", file=sys.stderr)
            unpack("prometheus", folder)
    return folder / "usr" / "bin" / "promtool"


def repository(url, tag, keep):
    """A repository at a tag."""
    if not shutil.which("git"):
        raise CannotFetch("there is no git")
    folder = keep / f"{url.rsplit('/', 1)[-1]}-{tag}"
    with whole(folder) as is_whole:
        if not is_whole:
            print(f"clients: fetching {url} at {tag} (once)", file=sys.stderr)
            clone = ["git", "clone", "--quiet", "--depth", "1", "--config", "advice.detachedHead=false", "--branch", tag]
            must([*clone, url, str(folder)], ["git", "ls-remote", url, "HEAD"])
    return folder


@contextmanager
def whole(folder):
    """Tells whether a folder was finished once; if not, it is empty, and finished with the block. Others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    mark = folder / "whole"
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if mark.exists():
            mark.touch()
            yield True
            return
        shutil.rmtree(folder, ignore_errors=True)
        yield False
        mark.touch()


def forget(marks):
    """Removes what was made of other pins and was not used for a month."""
    for mark in marks:
        if time.time() - mark.stat().st_mtime > FORGET_AFTER_S:
            shutil.rmtree(mark.parent)


def install_python(python, requirements):
    if sys.version_info < (3, 11) or not runs(sys.executable, "-c", "import pip, venv, ensurepip"):
        raise CannotFetch("this is no Python 3.11 with pip and venv")
    must([sys.executable, "-m", "venv", str(python.parents[1])])
    # Everything is listed, so pip need not look for what fits, which takes minutes.
    install = [str(python), *PIP, "install", "--quiet", "--no-deps", "-r", str(requirements)]
    with tempfile.TemporaryDirectory() as folder:
        # Any package does: either the index is there, or it is not.
        probe = [str(python), *PIP, "download", "--no-deps", "--no-cache-dir", "--retries", "0", "-d", folder, "pip"]
        must(install, probe)


def install_node(folder, packages):
    for file in packages.glob("*.json"):
        shutil.copy(file, folder)
    npm = str(folder / "bin" / "npm")
    install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    must(install, [npm, "view", "npm", "version", "--fetch-retries=0"], cwd=folder)


def unpack(package, folder):
    """Unpacks a package of Debian, or of what is made of it."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise CannotFetch("promtool is not installed, and there is no apt-get to fetch it")
    folder.mkdir(parents=True)
    if not runs("apt-get", "download", package, cwd=folder):
        raise CannotFetch(f"apt-get does not find the package {package}, which has promtool")
    for archive in folder.glob("*.deb"):
        must(["dpkg-deb", "-x", str(archive), str(folder)])
        archive.unlink()


def must(command, probe=None, cwd=None):
    """Runs a command that fetches; where it fails, the probe says whether there is anything to fetch from."""
    if subprocess.run(command, stdout=sys.stderr, cwd=cwd).returncode == 0:
        return
    if probe and not runs(*probe, cwd=cwd):
        raise CannotFetch("where it comes from is not reached from here")
    raise Broken(f"this failed, and its message stands above: {' '.join(command)}")


def runs(*command, cwd=None):
    quiet = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cwd)
    return quiet.returncode == 0
