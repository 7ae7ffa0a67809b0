"""The newest version of glibc that a program asks for, by the versions that its symbols need.

Reads 64-bit ELF files, the least byte first; refuses others.
"""

import re
import struct

VERNEED = 0x6FFFFFFE


def newest(program):
    """Such as `2.28`; `0` for a program that asks for none."""
    wanted = [name.removeprefix("GLIBC_") for name in needed(program) if re.fullmatch(r"GLIBC_[0-9.]+", name)]
    return max(wanted, key=parts, default="0")


def parts(version):
    return [int(part) for part in version.split(".")]


def needed(program):
    """The names of all versions that a program needs of its libraries."""
    if program[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no 64-bit ELF program of a machine with the least byte first")
    (table,) = struct.unpack_from("<Q", program, 0x28)
    size, count = struct.unpack_from("<HH", program, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", program, table + at * size) for at in range(count)]
    for _, kind, _, _, offset, _, link, files, _, _ in sections:
        if kind != VERNEED:
            continue
        names = sections[link][4]
        at = offset
        for _ in range(files):
            _, versions, _, first, following = struct.unpack_from("<HHIII", program, at)
            own = at + first
            for _ in range(versions):
                _, _, _, name, after = struct.unpack_from("<IHHII", program, own)
                yield program[names + name : program.index(b"\0", names + name)].decode()
                own += after
            at += following
