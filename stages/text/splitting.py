"""Work items of the first pass: small files together, large ones in ranges.

They follow from the listing alone, never from the number of CPUs, and content does not depend on
them: any cut gives the same documents.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from stages.text.listing import (
    DETECT,
    DocsListing,
    FileEntry,
    FileListing,
    Format,
    MixedListing,
    Split,
)

PYTHON_SPLIT_BYTES = 2_000_000
LEAST_SPLIT_BYTES = 8_000_000
MOST_SPLIT_BYTES = 64_000_000
SPLITS = 500
"""Aimed at between these sizes: enough for many cores to end together, few enough to keep track."""

RANGED: frozenset[Format] = frozenset({"jsonl", "sentences", "blank_lines"})
"""Formats whose records end at a line or a blank line, whatever stands in them. CSV and TSV are not
among them: a quoted field may hold a newline. How dumps are cut says `dump_ranges`."""

_MULTI_BYTE = frozenset(
    (
        *("utf-8", "utf-8-sig", "gb2312", "gbk", "gb18030", "big5", "big5hkscs", "cp950"),
        *("cp932", "shift_jis", "shift_jis_2004", "shift_jisx0213", "euc_jp", "euc_jis_2004"),
        *("euc_jisx0213", "euc_kr", "cp949", "johab"),
    )
)
"""No byte of a longer character is white space in these."""


def splits(
    listing: FileListing | MixedListing | DocsListing, target_bytes: int | None = None
) -> list[Split]:
    """Cut a listing into work items of about `target_bytes` of stored bytes, in a fixed order.

    Small files of one format share an item. A file of lines, or a dump, of more than two items'
    size is cut into ranges; another large file is an item of its own.
    """
    if isinstance(listing, DocsListing):
        return _modules(listing, target_bytes or PYTHON_SPLIT_BYTES)
    sources = listing.sources if isinstance(listing, MixedListing) else (listing,)
    if target_bytes is None:
        total = sum(e.size for source in sources for e in source.entries)
        target_bytes = min(MOST_SPLIT_BYTES, max(LEAST_SPLIT_BYTES, total // SPLITS))
    return [split for source in sources for split in _files(source, target_bytes)]


def _modules(listing: DocsListing, target: int) -> list[Split]:
    options = _options(listing)
    return [
        Split(d.name, d.root, tuple(path for path, _ in group), "python", "", size, **options)
        for d in listing.distributions
        for group, size in _groups(d.modules, target)
    ]


def _files(listing: FileListing, target: int) -> Iterator[Split]:
    options = _options(listing)
    kinds: dict[tuple[Format, str], list[tuple[str, int]]] = {}
    for e in listing.entries:
        if not in_ranges(e, listing.source.encoding, target):
            kinds.setdefault((e.format, e.compression), []).append((e.path, e.size))
            continue
        count = -(-e.size // target)
        cuts = [e.size * i // count for i in range(count + 1)]
        for start, end in itertools.pairwise(cuts):
            yield Split(
                *("", listing.root, (e.path,), e.format, e.compression, end - start, start, end),
                **options,
            )
    for (kind, compression), files in sorted(kinds.items()):
        for group, size in _groups(files, target):
            paths = tuple(path for path, _ in group)
            yield Split("", listing.root, paths, kind, compression, size, **options)


def in_ranges(entry: FileEntry, encoding: str, target: int) -> bool:
    """Whether a file is read in ranges: large, and a cut can be found without reading before it."""
    if entry.size <= 2 * target:
        return False
    if entry.format == "mediawiki":
        return entry.compression in ("", "bz2")
    return (
        entry.format in RANGED
        and not entry.compression
        and (encoding == DETECT or ascii_white_space(encoding))
    )


def ascii_white_space(encoding: str) -> bool:
    """Whether the bytes of ASCII white space are white space in an encoding, and nothing else."""
    name = codecs.lookup(encoding).name
    if name in _MULTI_BYTE or name.startswith(("iso2022", "hz")):
        return name in _MULTI_BYTE
    try:
        decoded = [bytes([i]).decode(encoding) for i in b"\t\n\v\f\r "]
        single = len("a".encode(encoding)) == 1
        everything = bytes(range(256)).decode(encoding, "replace")
    except (UnicodeError, LookupError):
        return False
    return single and len(everything) == 256 and decoded == list("\t\n\v\f\r ")


def _options(listing: FileListing | DocsListing) -> dict[str, Any]:
    options = asdict(listing.source)
    del options["format"]
    return options


def _groups(
    files: Iterable[tuple[str, int]], target: int
) -> Iterator[tuple[list[tuple[str, int]], int]]:
    group: list[tuple[str, int]] = []
    total = 0
    for item in files:
        if group and total + item[1] > target:
            yield group, total
            group, total = [], 0
        group.append(item)
        total += item[1]
    if group:
        yield group, total
