"""Digests of content: of JSON values, Arrow data and tensors, not of the files that hold them.

A digest of Arrow data depends on the columns' names, logical types and values alone: not on
chunks, slices, batch sizes, offset widths, dictionaries, buffer padding, the presence of a null
bitmap without nulls, nor the version of pyarrow. Schema metadata stands outside.

Everything is SHA-256. Buffers are little-endian, as Arrow keeps them on all machines we run on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def canonical_json(value: Any) -> bytes:
    """One spelling for each JSON value: sorted keys, no spaces, UTF-8; NaN is refused.

    Tuples count as lists, any mapping as an object. 1 and 1.0 differ: types come from the config.
    """
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=_plain,
    ).encode()


def json_digest(value: Any) -> str:
    """SHA-256 (hex) of `canonical_json`."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def table_digest(data: pa.Table | pa.RecordBatch) -> str:
    """The digest of a whole table or batch; see `TableDigest`."""
    return TableDigest(data.schema).update(data).hexdigest()


class TableDigest:
    """A streaming digest of Arrow data: the same for any cut into batches.

    For each column three hashes run side by side, so that batch borders leave no trace: values,
    lengths (of strings and lists) and positions of nulls (what lies under a null counts as zero).
    """

    def __init__(self, schema: pa.Schema) -> None:
        if sys.byteorder != "little":  # pragma: no cover
            raise NotImplementedError("digests are defined on little-endian machines")
        self._schema = schema
        self._columns = [_Column(field.type) for field in schema]
        self._rows = 0

    def update(self, data: pa.Table | pa.RecordBatch) -> TableDigest:
        """Add rows. Raises ValueError when names or types are not those of the schema."""
        if not data.schema.equals(self._schema):
            raise ValueError(f"columns changed within one digest: {self._schema} -> {data.schema}")
        for column, values in zip(self._columns, data.columns, strict=True):
            for chunk in getattr(values, "chunks", [values]):
                column.update(chunk)
        self._rows += data.num_rows
        return self

    def hexdigest(self) -> str:
        """The digest of all rows so far."""
        names = [field.name for field in self._schema]
        columns = [c.summary() for c in self._columns]
        return json_digest({"rows": self._rows, "columns": list(zip(names, columns, strict=True))})


def tensors_digest(tensors: Mapping[str, tuple[str, Iterable[int], Any]]) -> str:
    """The digest of named tensors: name -> (dtype name, shape, contiguous little-endian buffer).

    The order of the mapping does not count.
    """
    rows = []
    for name in sorted(tensors):
        dtype, shape, buffer = tensors[name]
        rows.append([name, dtype, list(shape), hashlib.sha256(buffer).hexdigest()])
    return json_digest(rows)


class _Column:
    """Running hashes of one column, and of its children."""

    def __init__(self, dtype: pa.DataType) -> None:
        import pyarrow as pa

        self._pa = pa
        self._type = _logical(dtype)
        self._values = hashlib.sha256()
        self._lengths = hashlib.sha256()
        self._nulls = hashlib.sha256()
        self._rows = 0
        self._children = [_Column(child) for child in _children(self._type)]

    def update(self, array: pa.Array) -> None:
        pa, dtype = self._pa, self._type
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        self._add_nulls(array)
        self._rows += len(array)
        if pa.types.is_null(dtype) or len(array) == 0:
            return
        if pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
            self._add_lengths(array)
            self._children[0].update(array.flatten())
        elif pa.types.is_struct(dtype):
            for child, values in zip(self._children, array.flatten(), strict=True):
                child.update(values)
        elif pa.types.is_large_string(dtype) or pa.types.is_large_binary(dtype):
            self._add_bytes(array.cast(dtype))
        elif pa.types.is_boolean(dtype):
            filled = array.fill_null(False) if array.null_count else array
            self._values.update(filled.cast(pa.uint8()).to_numpy(zero_copy_only=False).tobytes())
        else:
            self._add_fixed(array)

    def summary(self) -> Any:
        """What stands for the column in the digest of the table."""
        hashes = [h.hexdigest() for h in (self._values, self._lengths, self._nulls)]
        return [
            _type_name(self._type),
            self._rows,
            *hashes,
            [child.summary() for child in self._children],
        ]

    def _add_nulls(self, array: pa.Array) -> None:
        import numpy as np

        if array.null_count:
            positions = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            self._nulls.update((positions.astype("<i8") + self._rows).tobytes())

    def _add_lengths(self, array: pa.Array) -> None:
        import pyarrow.compute as pc

        lengths = pc.list_value_length(array)
        filled = lengths.fill_null(0) if lengths.null_count else lengths
        self._lengths.update(filled.cast(self._pa.int64()).to_numpy())

    def _add_bytes(self, array: pa.Array) -> None:
        import numpy as np

        if array.null_count:
            array = array.fill_null("" if self._pa.types.is_large_string(self._type) else b"")
        _, offsets, data = array.buffers()
        window = np.frombuffer(offsets, "<i8", len(array) + 1, array.offset * 8)
        self._lengths.update(np.diff(window).tobytes())
        if data is not None:
            self._values.update(data.slice(int(window[0]), int(window[-1] - window[0])))

    def _add_fixed(self, array: pa.Array) -> None:
        import numpy as np

        width = array.type.byte_width
        data = array.buffers()[1].slice(array.offset * width, len(array) * width)
        if array.null_count:
            rows = np.frombuffer(data, np.uint8).reshape(len(array), width).copy()
            rows[array.is_null().to_numpy(zero_copy_only=False)] = 0
            self._values.update(rows.data)
        else:
            self._values.update(data)


def _logical(dtype: pa.DataType) -> pa.DataType:
    """The one physical type that stands for all spellings of a logical one."""
    import pyarrow as pa

    types = pa.types
    if isinstance(dtype, pa.BaseExtensionType):
        return _logical(dtype.storage_type)
    if types.is_dictionary(dtype):
        return _logical(dtype.value_type)
    if types.is_string(dtype) or types.is_string_view(dtype):
        return pa.large_string()
    if types.is_binary(dtype) or types.is_binary_view(dtype):
        return pa.large_binary()
    if types.is_list(dtype) or types.is_large_list(dtype):
        return pa.large_list(_logical(dtype.value_type))
    if types.is_fixed_size_list(dtype):
        return pa.list_(_logical(dtype.value_type), dtype.list_size)
    if types.is_struct(dtype):
        return pa.struct([(f.name, _logical(f.type)) for f in dtype])
    if types.is_union(dtype) or types.is_map(dtype) or types.is_run_end_encoded(dtype):
        raise TypeError(f"no digest is defined for Arrow type {dtype}")
    return dtype


def _children(dtype: pa.DataType) -> list[pa.DataType]:
    import pyarrow as pa

    if pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return [dtype.value_type]
    if pa.types.is_struct(dtype):
        return [field.type for field in dtype]
    return []


def _type_name(dtype: pa.DataType) -> str:
    """A name of our own for a logical type, so that pyarrow may rename its own."""
    import pyarrow as pa

    types = pa.types
    if types.is_large_string(dtype):
        return "string"
    if types.is_large_binary(dtype):
        return "binary"
    if types.is_large_list(dtype):
        return "list"
    if types.is_fixed_size_list(dtype):
        return f"list[{dtype.list_size}]"
    if types.is_struct(dtype):
        return "struct:" + json.dumps([field.name for field in dtype])
    if types.is_fixed_size_binary(dtype):
        return f"binary[{dtype.byte_width}]"
    for kind, test in _PLAIN.items():
        if getattr(types, test)(dtype):
            return kind
    if types.is_timestamp(dtype):
        return f"timestamp[{dtype.unit},{dtype.tz or ''}]"
    if types.is_duration(dtype) or types.is_time(dtype):
        return f"{'duration' if types.is_duration(dtype) else 'time'}[{dtype.unit}]"
    if types.is_decimal(dtype):
        return f"decimal{dtype.bit_width}[{dtype.precision},{dtype.scale}]"
    raise TypeError(f"no digest is defined for Arrow type {dtype}")


_PLAIN = {
    "null": "is_null",
    "bool": "is_boolean",
    **{name: f"is_{name}" for name in ("int8", "int16", "int32", "int64")},
    **{name: f"is_{name}" for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name: f"is_{name}" for name in ("float16", "float32", "float64", "date32", "date64")},
}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON: {value!r}")
