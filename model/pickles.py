"""Telling pickled weights by their first bytes, whatever their name. Nothing is unpickled."""

from __future__ import annotations

from pathlib import Path

ZIP = b"PK\x03\x04"
"""What `torch.save` writes is a zip file with a pickle in it."""

PROTOCOL = 0x80
"""A pickle of protocol 2 to 5 begins with this byte and the protocol's number."""


def is_pickle(path: Path) -> bool:
    """Whether a file that should be safetensors begins as `torch.save` or `pickle` write.

    A safetensors file begins with the length of its head, 8 bytes, little-endian, at most
    100,000,000: its second half is then nearly nothing. So a head of 640 bytes (0x0280) is told
    from a pickle of protocol 2.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError:
        return False  # who reads it says why it cannot be read
    if start.startswith(ZIP):
        return True
    pickled = start[:1] == bytes([PROTOCOL]) and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return pickled and (len(start) < 8 or any(start[4:]))


def pickle_message(path: Path) -> str:
    """What to say of such a file."""
    return (
        f"{path} is a pickle under the name of safetensors. Pickled weights are not read, because "
        "reading them can run code: load the model with transformers and save it again with "
        "save_pretrained, which writes safetensors"
    )
