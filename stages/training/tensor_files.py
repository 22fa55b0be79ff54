"""safetensors files, written tensor by tensor.

`safetensors.torch.save` holds two more copies of everything in memory and the interpreter's lock
while it makes them; a checkpoint is written beside the training. The format is a length, a header
in JSON and the tensors' bytes: https://huggingface.co/docs/safetensors (metadata parsing).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from pyarrow.fs import FileSystem
from safetensors.torch import load as tensors_from_bytes
from torch import Tensor

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_ALIGNMENT = 8


def write_tensors(stream: Any, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write tensors as a safetensors file (metadata format=pt), in the order of the mapping.

    Args:
        stream: binary, open for writing; stays open.
        tensors: by name, on any device; those on CPU and contiguous are not copied.

    Returns:
        {"bytes": length, "sha256": hex} of what was written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    digest = hashlib.sha256()
    written = 0
    for piece in ((len(text)).to_bytes(8, "little"), text):
        stream.write(piece)
        digest.update(piece)
        written += len(piece)
    for tensor in tensors.values():
        content = bytes_of(tensor)
        stream.write(content)
        digest.update(content)
        written += len(content)
    return {"bytes": written, "sha256": digest.hexdigest()}


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; a view of them where it is contiguous and on CPU."""
    # Of numbers without a dimension, too; and NumPy has no bfloat16.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def read_tensors(filesystem: FileSystem, path: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on CPU."""
    with filesystem.open_input_file(path) as source:
        tensors: dict[str, Tensor] = tensors_from_bytes(source.read())
    return tensors
