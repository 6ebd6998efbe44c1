"""The file of weights of an exported net: little-endian, a section for each target.

    bytes   what
    8       MAGIC
    4       ORDER, in the byte order of the file
    4       VERSION
    32      identity of the sources that the file is for
    8       bytes of the file
    4       number of sections
    4       bytes of this header, all that is before the first section but for padding
    32 each of a section: the target's name in 16 bytes, its offset and its bytes, 8 each; equal ones are at one place
    4 each  CRC-32 of each BLOCK of each section, the last of a section shorter
    4       CRC-32 of the header up to here

Sections begin at multiples of 64; in one, arrays are as kernels read them, each at a multiple of 64. So a section is
read at once, and nothing is rearranged.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping

MAGIC = b"LATTE\r\n\x1a"
"""Its end shows a transfer as text."""
ORDER = 0x01020304
VERSION = 1
BLOCK = 2**20
NAME_BYTES = 16
_START = struct.Struct("<8sII32sQII")
_SECTION = struct.Struct(f"<{NAME_BYTES}sQQ")
_NUMBER = struct.Struct("<I")
_ALIGNMENT = 64


def weights_file(sections: Mapping[str, bytes], identity: bytes) -> bytes:
    """A file of weights. Targets with equal weights have one section.

    Args:
        sections: target's name → its weights.
        identity: 32 bytes.
    """
    checksums = [zlib.crc32(each[at : at + BLOCK]) for each in sections.values() for at in range(0, len(each), BLOCK)]
    header_bytes = _START.size + _SECTION.size * len(sections) + _NUMBER.size * (len(checksums) + 1)
    table, at, places = b"", header_bytes, dict[bytes, int]()
    for name, section in sections.items():
        content = hashlib.sha256(section).digest()
        if content not in places:
            at += -at % _ALIGNMENT
            places[content] = at
            at += len(section)
        table += _SECTION.pack(name.encode("ascii"), places[content], len(section))
    header = _START.pack(MAGIC, ORDER, VERSION, identity, at, len(sections), header_bytes) + table
    header += b"".join(_NUMBER.pack(checksum) for checksum in checksums)
    made = bytearray(at)
    made[:header_bytes] = header + _NUMBER.pack(zlib.crc32(header))
    for section in sections.values():
        first = places[hashlib.sha256(section).digest()]
        made[first : first + len(section)] = section
    return bytes(made)
