"""Reads and writes `.npy` tables of f16 and f32 with the standard library. Refuses every other kind of array."""

import ast
import struct

MAGIC = b"\x93NUMPY\x01\x00"


def read_rows(path):
    """The rows of a two-dimensional f16 or f32 table, as lists of floats."""
    data = path.read_bytes()
    if data[:8] != MAGIC:
        raise ValueError(f"{path.name} is not an .npy file of version 1")
    (size,) = struct.unpack_from("<H", data, 8)
    header = ast.literal_eval(data[10 : 10 + size].decode("latin-1"))
    letter = {"<f2": "e", "<f4": "f"}.get(header["descr"])
    if letter is None or header["fortran_order"] or len(header["shape"]) != 2:
        raise ValueError(f"{path.name} must hold rows of little-endian f16 or f32, not {header}")
    rows, columns = header["shape"]
    width = struct.calcsize(letter) * columns
    start = 10 + size
    if len(data) != start + rows * width:
        raise ValueError(f"{path.name} is cut short or too long for {rows} rows of {columns}")
    return [struct.unpack_from(f"<{columns}{letter}", data, start + row * width) for row in range(rows)]


def write_f16_rows(path, rows):
    """Writes rows as little-endian f16."""
    header = repr({"descr": "<f2", "fortran_order": False, "shape": (len(rows), len(rows[0]))})
    # The format wants the data to begin at a multiple of 64 bytes.
    padding = -(len(MAGIC) + 2 + len(header) + 1) % 64
    header = header.encode() + b" " * padding + b"\n"
    body = b"".join(struct.pack(f"<{len(row)}e", *row) for row in rows)
    path.write_bytes(MAGIC + struct.pack("<H", len(header)) + header + body)
