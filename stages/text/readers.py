"""Reading raw input: a work item in, batches of documents out, and a count of what is none.

Nothing is lost without a reason: documents plus rejects are all records that were found.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from stages.text.columns import arrow_records, parquet_records
from stages.text.delimited import csv_records, tsv_records
from stages.text.encodings import file_encoding
from stages.text.extracted import extractor_records, wikitext_records
from stages.text.listing import DETECT, Split, printable, provenance
from stages.text.mediawiki import mediawiki_records
from stages.text.python_docs import (
    Unparsable,
    module_docstrings,
    module_name,
    no_cycle_collection,
)
from stages.text.ranges import own_range
from stages.text.records import (
    ReadOptions,
    Record,
    Reject,
    blank_line_records,
    json_records,
    sentence_records,
    snippet,
    text_records,
)
from stages.text.streams import DamagedFile
from stages.text.uris import is_remote, join_uri

DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)

UNREADABLE = frozenset(
    {
        "undecodable",
        "not_text",
        "malformed_json",
        "malformed_csv",
        "malformed_doc",
        "missing_field",
        "unparsable",
        "unreadable",
        "truncated",
        "damaged",
        "too_large",
    }
)
"""Reasons that speak of damage; "empty" does not. A stage fails when these are too many."""

PART = 1000
"""Characters of each part of a quarantined example."""

RECORD_BYTES = 100
"""What a record holds in memory beside its text, so that a batch of many small ones is full too."""

EXAMPLES = 3
"""Quarantined examples kept of each reason in a batch."""

CONTROL_SHARE = 0.05
"""With more control characters than this, a record is binary data and no text."""

_TEXT_BYTES = bytes(sorted(({*range(256)} - {*range(32), 127}) | {*b"\t\n\v\f\r"}))

FORMATS: Mapping[str, Callable[[str, str, ReadOptions], Iterator[Record | Reject]]] = {
    "text": text_records,
    "sentences": sentence_records,
    "blank_lines": blank_line_records,
    "jsonl": json_records,
    "csv": csv_records,
    "tsv": tsv_records,
    "parquet": parquet_records,
    "arrow": arrow_records,
    "mediawiki": mediawiki_records,
    "wikiextractor": extractor_records,
    "wikitext": wikitext_records,
}
"""A format is a function from (path, compression, options) to records and rejects."""

LARGEST: Mapping[str, int] = {"text": 256_000_000, "mediawiki": 16_000_000}
"""Bytes of the largest record of a format: what fits into a worker of 1.5 GiB. A wiki lets no page
have more than 2 MB; its markup takes twenty times that while it is read."""

LARGEST_OTHER = 64_000_000
"""The same for formats whose parsers hold a record several times, four bytes a character."""

ENCODED = frozenset(FORMATS) - {"parquet", "arrow", "mediawiki"}
"""Formats whose text is in an encoding that the file does not tell."""


@dataclass(frozen=True)
class Example:
    """A quarantined record: why, where (file or module, and place in it), what it looks like."""

    reason: str
    source: str
    where: str
    detail: str
    snippet: str


@dataclass(frozen=True)
class Batch:
    """Some documents of a work item.

    Attributes:
        documents: `DOCUMENT_SCHEMA`: where each came from, its id there, and its text.
        rejects: reason -> number of records left out.
        examples: a few of these.
        bytes: raw text in `documents`.
        encodings: encoding -> number of files begun in this batch whose content was found to be in
            it; empty unless the encoding is to be detected.
    """

    documents: pa.RecordBatch
    rejects: Mapping[str, int]
    examples: tuple[Example, ...]
    bytes: int
    encodings: Mapping[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Records found: documents and rejects."""
        return int(self.documents.num_rows) + sum(self.rejects.values())


def read(split: Split, options: ReadOptions | None = None) -> Iterator[Batch]:
    """Read a work item in batches of about `options.batch_bytes`, `RECORD_BYTES` a record counted.

    A bad record or file is counted, never raised.

    Raises:
        RemoteFailure: the filesystem of a URI fails: no fault of the file.
        LookupError: Python does not know `options.encoding`.
    """
    options = options or ReadOptions()
    largest = min(options.max_record_bytes, LARGEST.get(split.format, LARGEST_OTHER))
    options = dataclasses.replace(options, max_record_bytes=largest)
    gathered = _Gathered()
    for file in split.files:
        # A name that is not UTF-8 cannot stand in a column of strings as it is.
        source = provenance(split.name, printable(file))
        path = join_uri(split.root, file) if is_remote(split.root) else str(Path(split.root) / file)
        if split.format == "python":
            records, source = _module_record(path, file), split.source
        else:
            own = options
            if options.encoding == DETECT and split.format in ENCODED:
                own = dataclasses.replace(options, encoding=file_encoding(path, split.compression))
                gathered.encodings[own.encoding] += split.start == 0
            records = _file_records(path, split, own)
        for record in records:
            if isinstance(record, Record):
                gathered.add(source, record)
            else:
                gathered.reject(source, record)
            # A record may be all that memory holds: it is there once while it is worked on.
            del record
            if gathered.size >= options.batch_bytes:
                yield gathered.batch()
                gathered = _Gathered()
    if gathered.texts or gathered.rejects or gathered.encodings:
        yield gathered.batch()


def _file_records(path: str, split: Split, options: ReadOptions) -> Iterator[Record | Reject]:
    if split.end is None:
        yield from FORMATS[split.format](path, split.compression, options)
        return
    if split.format == "mediawiki":
        own = dataclasses.replace(options, start=split.start, end=split.end)
        yield from FORMATS[split.format](path, split.compression, own)
        return
    blank_lines = split.format != "jsonl"
    try:
        first, last, encoding = own_range(
            path, split.start, split.end, options.encoding, blank_lines
        )
    except DamagedFile as damage:
        # Each range of the file says so.
        yield Reject(damage.reason, f"byte {split.start}", str(damage))
        return
    if first < last:
        own = dataclasses.replace(options, encoding=encoding, start=first, end=last)
        yield from FORMATS[split.format](path, "", own)


def _module_record(path: str, file: str) -> Iterator[Record | Reject]:
    name = module_name(file)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        yield Reject("unreadable", name, error.strerror or str(error))
        return
    try:
        with no_cycle_collection():
            text = module_docstrings(source)
        # Escapes in a docstring can make half of a surrogate pair.
        yield Record(name, text.encode())
    except Unparsable as error:
        yield Reject("unparsable", name, str(error), snippet(source))
    except UnicodeEncodeError as error:
        yield Reject("undecodable", name, str(error), snippet(source))


@dataclass
class _Gathered:
    """Records on their way to a batch."""

    sources: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    size: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    examples: list[Example] = field(default_factory=list)
    encodings: Counter[str] = field(default_factory=Counter)

    def add(self, source: str, record: Record) -> None:
        if not record.text.strip():
            self.reject(source, Reject("empty", record.id, "no text"))
            return
        self.sources.append(record.source or source)
        self.ids.append(record.id)
        self.texts.append(record.text)
        self.size += len(record.text) + RECORD_BYTES

    def reject(self, source: str, reject: Reject) -> None:
        self.rejects[reject.reason] += 1
        if self.rejects[reject.reason] <= EXAMPLES:
            clean = [part[:PART].encode("utf-8", "backslashreplace").decode() for part in reject]
            reason, where, detail, start = clean
            self.examples.append(Example(reason, source, where, detail, start))

    def batch(self) -> Batch:
        good = [i for i, text in enumerate(self.texts) if self._is_text(i, text)]
        texts = pa.array([self.texts[i] for i in good], pa.binary())
        try:
            texts = texts.cast(pa.string())
        except pa.ArrowInvalid:
            good = [i for i in good if self._is_utf8(i)]
            texts = pa.array([self.texts[i] for i in good], pa.binary()).cast(pa.string())
        columns = [
            pa.array([self.sources[i] for i in good], pa.string()),
            pa.array([self.ids[i] for i in good], pa.string()),
            texts,
        ]
        documents = pa.RecordBatch.from_arrays(columns, schema=DOCUMENT_SCHEMA)
        size = sum(len(self.texts[i]) for i in good)
        self.texts.clear()
        return Batch(
            documents, dict(self.rejects), tuple(self.examples), size, dict(self.encodings)
        )

    def _is_text(self, i: int, text: bytes) -> bool:
        controls = len(text.translate(None, _TEXT_BYTES))
        if controls <= CONTROL_SHARE * len(text):
            return True
        detail = f"{controls} of {len(text)} bytes are control characters"
        self.reject(self.sources[i], Reject("not_text", self.ids[i], detail, snippet(text)))
        return False

    def _is_utf8(self, i: int) -> bool:
        text = self.texts[i]
        try:
            text.decode()
        except UnicodeDecodeError as error:
            start = text[max(0, error.start - 40) : error.start + 40]
            detail = f"not UTF-8 at byte {error.start}: {error.reason}; set corpus.encoding"
            reject = Reject("undecodable", self.ids[i], detail, snippet(start))
            self.reject(self.sources[i], reject)
            return False
        return True
