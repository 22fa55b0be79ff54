"""What a corpus consists of, and the work items that it is cut into.

`plan` fingerprints these listings, so this module uses the standard library alone. Files are listed
by `find_files.list_files`, distributions by `python_docs.list_python_docs`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Format = Literal[
    "text",
    "blank_lines",
    "sentences",
    "jsonl",
    "csv",
    "tsv",
    "parquet",
    "arrow",
    "wikiextractor",
    "mediawiki",
    "wikitext",
    "python",
]

ENDINGS: Mapping[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".xml": "mediawiki",
    ".tokens": "wikitext",
}
"""Endings that `auto` reads. `.json` is read as JSON lines."""

NAMES: Mapping[str, Format] = {
    r"wiki_\d{2,}": "wikiextractor",
    r".*\.xml-p\d+p\d+": "mediawiki",
    r"wiki\.(?:train|valid|test)\.raw": "wikitext",
}
"""Names (all of one, lower-case, without a compression's ending) that tell `auto` a format."""

TEXT_FORMATS: frozenset[str] = frozenset({"sentences", "blank_lines", "wikitext", "wikiextractor"})
"""Formats whose files may end as plain text."""

DETECT = "detect"
"""An encoding that is found out from each file's content."""

MANY_FILES = 10_000
"""A manifest and a plan that hold each of more files by itself would be slow."""

COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
"""Endings that may follow those of `ENDINGS`."""


@dataclass(frozen=True)
class SourceOptions:
    """How the records of one source of a corpus are read, and how much of them counts.

    Attributes:
        name: of the source, in reports and provenance; "" where a corpus is one source.
        format: "auto" or a format.
        text_field: column or key that holds the text.
        id_field: column or key of an id; "" for none.
        source_field: column or key that names where a record came from; "": its file does.
        encoding: of text formats, or "detect".
        sample: share of documents kept, 0 < sample <= 1, chosen by a keyed hash of their content.
            A document that several sources hold is kept when one of them keeps it.
        repeat: copies of each training document, 1 or more, made after deduplication. Of a document
            that several sources hold, the largest counts.
    """

    name: str = ""
    format: str = "auto"
    text_field: str = "text"
    id_field: str = "id"
    source_field: str = ""
    encoding: str = "utf-8"
    sample: float = 1.0
    repeat: int = 1


class InputNotFound(ValueError):  # noqa: N818 - "not found" says that it is an error
    """The corpus is not there or holds nothing readable; the message says what to do."""


class FileEntry(NamedTuple):
    """A file of the corpus.

    Attributes:
        path: relative to the corpus root, with `/`.
        size: bytes as stored (compressed).
        mtime_ns: time of last change.
        format: how its content is read.
        compression: "gzip", "bz2", "xz", "zstd" or "" for none.
        etag: stands for the content where there is no time of change.
    """

    path: str
    size: int
    mtime_ns: int
    format: Format
    compression: str
    etag: str = ""


class Skipped(NamedTuple):
    """Something in a folder that is not read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class FileListing:
    """Files of one source in the order of their paths; `root` is absolute, not fingerprinted."""

    root: str
    entries: tuple[FileEntry, ...]
    skipped: tuple[Skipped, ...]
    source: SourceOptions = SourceOptions()

    def fingerprint_entries(self) -> list[Any]:
        """JSON that stands for the content: path, size and mtime of each file.

        Of more than `MANY_FILES` it is one item a folder, with a digest of these.
        """
        items = [
            {
                "path": provenance(self.source.name, e.path),
                "size": e.size,
                "mtime_ns": e.mtime_ns,
                "format": e.format,
                **({"etag": e.etag} if e.etag else {}),
            }
            for e in self.entries
        ]
        return items if len(items) <= MANY_FILES else _by_folder(items)

    def description(self) -> str:
        """One line for a person."""
        size = sum(e.size for e in self.entries)
        return f"{len(self.entries)} files, {size / 1e6:.1f} MB in {shown(self.root)}"


def _by_folder(items: list[dict[str, Any]]) -> list[Any]:
    folders: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        folders.setdefault(item["path"].rpartition("/")[0], []).append(item)
    return [
        {
            "path": f"{folder or '.'}/",
            "files": len(files),
            "size": sum(file["size"] for file in files),
            "digest": hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest(),
        }
        for folder, files in sorted(folders.items())
    ]


@dataclass(frozen=True)
class MixedListing:
    """Files of a corpus, source by source."""

    sources: tuple[FileListing, ...]

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What is not read in any source; paths begin with the source's name."""
        return tuple(
            Skipped(provenance(listing.source.name, item.path), item.reason)
            for listing in self.sources
            for item in listing.skipped
        )

    def fingerprint_entries(self) -> list[Any]:
        """Those of each source."""
        return [entry for listing in self.sources for entry in listing.fingerprint_entries()]

    def description(self) -> str:
        """One line for a person."""
        return "; ".join(
            f"{listing.source.name}: {listing.description()}"
            if listing.source.name
            else listing.description()
            for listing in self.sources
        )


def printable(path: str) -> str:
    """A path that can be printed and stored, whatever bytes its names have."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def shown(root: str) -> str:
    """A path for a person: without the keys and options that a URI can hold."""
    root = printable(root)
    scheme, separator, rest = root.partition("://")
    return scheme + separator + re.sub(r"^[^/?]*@|\?.*", "", rest) if separator else root


def provenance(source: str, path: str) -> str:
    """Where something came from, for a person: the file, after the name of its source."""
    path = printable(path)
    return f"{source}/{path}" if source else path


@dataclass(frozen=True)
class Distribution:
    """An installed distribution whose modules are read.

    Attributes:
        name: as given; `python` is the standard library.
        version: of the distribution, or of Python ("3.12.4").
        record: SHA-256 over path, hash and size of the modules in RECORD (over path and size for
            the standard library). Lines of scripts and compiled files stay out: they differ
            between installers.
        root: folder that `modules` are relative to; not fingerprinted.
        modules: (path with `/`, bytes of source), sorted by path.
    """

    name: str
    version: str
    record: str
    root: str
    modules: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class DocsListing:
    """Distributions that are read, and those of the list that cannot be (with the reason)."""

    distributions: tuple[Distribution, ...]
    missing: tuple[Skipped, ...]
    source: SourceOptions = SourceOptions()

    def fingerprint_entries(self) -> list[Any]:
        """JSON that stands for the content: name, version and RECORD hash of each."""
        return [
            {"name": d.name, "version": d.version, "record": d.record} for d in self.distributions
        ]

    def description(self) -> str:
        """One line for a person."""
        names = ", ".join(f"{d.name} {d.version}" for d in self.distributions)
        count = sum(len(d.modules) for d in self.distributions)
        absent = ", ".join(f"{m.path} ({m.reason})" for m in self.missing)
        return f"{count} modules of {names}" + (f"; left out: {absent}" if absent else "")


@dataclass(frozen=True)
class Split:
    """A work item of the first pass: files that one task reads. JSON-able with `to_json`.

    Attributes:
        source: name of the distribution; "" for files (their source is their path).
        root: folder that `files` are relative to.
        bytes: stored size of all files (or of the range), for progress and balance.
        start: the first byte of a range; records that begin in it are read.
        end: the byte after a range; None: all of each file is read.
        name, text_field, id_field, source_field, encoding, sample, repeat: as `SourceOptions`.
    """

    source: str
    root: str
    files: tuple[str, ...]
    format: Format
    compression: str
    bytes: int
    start: int = 0
    end: int | None = None
    name: str = ""
    text_field: str = "text"
    id_field: str = "id"
    source_field: str = ""
    encoding: str = "utf-8"
    sample: float = 1.0
    repeat: int = 1

    def to_json(self) -> dict[str, Any]:
        """A plain dict that `from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Split:
        """The split that `to_json` was called on."""
        return cls(**{**value, "files": tuple(value["files"])})


def file_format(name: str, wanted: str = "auto") -> tuple[Format | None, str]:
    """Format and compression of a file by its name; None where the name tells no known one.

    With a format named (`wanted` is not "auto"), a file without a known ending has that format, and
    one whose ending belongs to another format has None.
    """
    name = name.lower().rpartition("/")[2]
    stem, dot, ending = name.rpartition(".")
    compression = COMPRESSIONS.get(dot + ending, "") if stem else ""
    if compression:
        name = stem
        stem, dot, ending = name.rpartition(".")
    known = ENDINGS.get(dot + ending) if stem else None
    if wanted == "auto":
        if known is None:
            known = next((kind for names, kind in NAMES.items() if re.fullmatch(names, name)), None)
        return known, compression
    belongs = known is None or known == wanted or (known == "text" and wanted in TEXT_FORMATS)
    return (wanted if belongs else None), compression  # type: ignore[return-value]


def is_dump_index(name: str) -> bool:
    """Whether a file holds the offsets of a multistream dump: it ends as text and is none."""
    return re.search(r"-multistream-index\d*\.txt(-p\d+p\d+)?\.", name + ".") is not None


def relative_path(file: str, root: str) -> str:
    """`file` relative to `root`, with `/` on every system."""
    folder = root.rstrip(os.sep) + os.sep
    inside = file[len(folder) :] if file.startswith(folder) else os.path.relpath(file, root)
    return inside.replace(os.sep, "/")
