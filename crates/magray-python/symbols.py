"""Makes a library for Python one that a program without Python can load: what it asks of the interpreter may then be missing.

Changes nothing else of it, and no order of its symbols. Reads 64-bit ELF libraries, the least byte first; refuses others.
"""

import struct

DYNSYM = 11
WEAK = 2
SYMBOL_BYTES = 24


def optional(library, prefixes=(b"Py", b"_Py")):
    """The library, with every symbol of these names that it asks for made weak; and how many these are."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("this is no 64-bit ELF library of a machine with the least byte first")
    changed = bytearray(library)
    (table,) = struct.unpack_from("<Q", library, 0x28)
    size, count = struct.unpack_from("<HH", library, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, table + at * size) for at in range(count)]
    found = 0
    for _, kind, _, _, offset, length, link, _, _, _ in sections:
        if kind != DYNSYM:
            continue
        names = sections[link][4]
        for at in range(offset, offset + length, SYMBOL_BYTES):
            name, about, _, section = struct.unpack_from("<IBBH", library, at)
            is_asked_for = section == 0 and library.startswith(prefixes, names + name)
            if is_asked_for:
                # The upper half says how strong it is, the lower one what it is.
                changed[at + 4] = WEAK << 4 | about & 15
                found += 1
    return bytes(changed), found
