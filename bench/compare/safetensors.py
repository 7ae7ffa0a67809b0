"""Turns the f32 tensors of a `.safetensors` file into f16, with the standard library. Refuses a file that is not sound.

The format: eight bytes with the length of a JSON header, the header, the bytes of the tensors.
"""

import array
import json
import struct
import sys

# A weight beyond this is refused rather than made infinite.
F16_MOST = 65504.0
HEADER_MOST_BYTES = 100_000_000


class Unsound(Exception):
    """The file is no safetensors file, or cannot be had in f16; the message says why."""


def halved(data):
    """The bytes of the same file with its f32 tensors in f16; others stay as they are."""
    header, body = split(data)
    made, parts, at = {}, [], 0
    if "__metadata__" in header:
        made["__metadata__"] = header["__metadata__"]
    for name, dtype, shape, (start, end) in tensors_of(header):
        if not 0 <= start <= end <= len(body):
            raise Unsound(f"tensor {name} lies outside of the file")
        values = body[start:end]
        if dtype == "F32":
            values, dtype = f16_of(name, values), "F16"
        made[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(values)]}
        parts.append(values)
        at += len(values)
    return joined(made, parts)


def split(data):
    """The header and the bytes behind it."""
    if len(data) < 8:
        raise Unsound("it is shorter than its own length field")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(HEADER_MOST_BYTES, len(data) - 8):
        raise Unsound("its header is cut short")
    try:
        header = json.loads(data[8 : 8 + size])
    except ValueError:
        raise Unsound("its header is no JSON") from None
    return header, memoryview(data)[8 + size :]


def tensors_of(header):
    """Name, type, shape and place of each tensor, in the order of their places."""
    try:
        tensors = [
            (name, entry["dtype"], entry["shape"], (int(entry["data_offsets"][0]), int(entry["data_offsets"][1])))
            for name, entry in header.items()
            if name != "__metadata__"
        ]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise Unsound("its header does not describe its tensors") from None
    return sorted(tensors, key=lambda tensor: tensor[3])


def joined(header, parts):
    text = json.dumps(header, separators=(",", ":")).encode()
    # Spaces let the data begin at a multiple of eight bytes.
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def f16_of(name, values):
    """Little-endian f32 bytes as f16, rounded to nearest."""
    if len(values) % 4:
        raise Unsound(f"tensor {name} does not hold whole f32 numbers")
    numbers = array.array("f")
    numbers.frombytes(values)
    if sys.byteorder == "big":
        numbers.byteswap()
    if any(not -F16_MOST <= number <= F16_MOST for number in numbers):
        raise Unsound(f"tensor {name} has values that f16 cannot hold")
    return struct.pack(f"<{len(numbers)}e", *numbers)
