"""Archives whose bytes depend on nothing but their files: tar and ar, packed by gzip.

Keeps no owner, no time of its own and no order of the disk.
"""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass


@dataclass
class File:
    content: bytes
    is_program: bool = False


def tarred(files, epoch, before=""):
    """Files by their places, with the folders on the way to them."""
    written = io.BytesIO()
    folders = {parent for place in files for parent in parents(before + place)}
    with tarfile.open(fileobj=written, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in sorted(folders):
            tar.addfile(entry(folder, epoch, 0o755, tarfile.DIRTYPE))
        for place, file in sorted(files.items()):
            head = entry(before + place, epoch, 0o755 if file.is_program else 0o644, tarfile.REGTYPE)
            head.size = len(file.content)
            tar.addfile(head, io.BytesIO(file.content))
    return written.getvalue()


def parents(place):
    parts = place.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def entry(name, epoch, mode, kind):
    head = tarfile.TarInfo(name)
    head.mtime, head.mode, head.type = epoch, mode, kind
    head.uname = head.gname = "root"
    return head


def gzipped(content):
    return gzip.compress(content, compresslevel=9, mtime=0)


def tarball(path, name, files, epoch):
    path.write_bytes(gzipped(tarred(files, epoch, before=f"{name}/")))
    return path


def ar(members, epoch):
    written = bytearray(b"!<arch>\n")
    for name, content in members:
        written += f"{name:<16}{epoch:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        written += content + b"\n" * (len(content) % 2)
    return bytes(written)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
