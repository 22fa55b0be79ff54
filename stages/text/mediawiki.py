"""Articles of a MediaWiki XML dump (`pages-articles.xml`, multistream .bz2 too), page by page.

A dump is cut at `<page>` and `</page>`: inside its text these are escaped. Each page is parsed by
itself, so that a damaged one costs itself, memory is that of a page, and entities that a file
declares at its head are never expanded.
"""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stages.text.dump_ranges import page_pieces
from stages.text.records import (
    ReadOptions,
    Record,
    Reject,
    record_id,
    snippet,
    too_large,
)
from stages.text.streams import DamagedFile, read_pieces
from stages.text.wikicode import HIDDEN_NAMESPACES, UnparsableMarkup, plain_text

_ROOT, _END = b"<mediawiki", b"</mediawiki>"
_OPEN, _CLOSE = b"<page>", b"</page>"
HEAD_BYTES = 1_000_000
"""The first page begins within these (namespaces and names of the wiki stand before it)."""

FILE_NAMESPACES = (b"-2", b"6", b"14")
"""Keys of Media, File and Category."""

_NAMESPACE = re.compile(rb'<namespace key="(-?\d+)"[^<>]*>([^<>]+)</namespace>')
# Old dumps have no <redirect/>.
_REDIRECT = re.compile(r"\s*#REDIRECT\s*:?\s*\[\[", re.IGNORECASE)


class Page(NamedTuple):
    """A page of a dump, with the markup of its last revision ("" for none)."""

    id: str
    title: str
    namespace: str
    redirect: bool
    model: str
    markup: str


def mediawiki_records(
    path: str, compression: str, options: ReadOptions
) -> Iterator[Record | Reject]:
    """Articles (namespace 0) without their markup; ids are the wiki's page ids.

    Titles stand outside of the text, as in WikiExtractor's output. Redirects are counted as
    `redirect`, pages of other namespaces as `not_an_article`. `options.encoding` says nothing
    here: dumps are UTF-8.
    """
    if options.end is None:
        pieces = read_pieces(path, compression)
    else:
        pieces = page_pieces(path, compression, options.start, options.end)
    hidden = HIDDEN_NAMESPACES
    number = 0
    try:
        for kind, content in _cut(pieces, options.max_record_bytes):
            if kind == "head":
                hidden = hidden | _file_namespaces(content)
                continue
            if kind == "between":
                yield Reject("damaged", f"after page {number}", "no <page>", snippet(content))
                continue
            *broken, last = content.split(_OPEN)
            for part in broken:
                number += 1
                yield Reject("damaged", f"page {number}", "no </page>", snippet(part))
            number += 1
            if kind == "too_large":
                yield too_large(f"page {number}", options)
            else:
                yield _page_record(_OPEN + last + _CLOSE, f"page {number}", hidden, options)
    except DamagedFile as damage:
        yield Reject(damage.reason, f"after page {number}", str(damage))


def _file_namespaces(head: bytes) -> frozenset[str]:
    """Names of the namespaces of files and categories in the language of the wiki."""
    found = _NAMESPACE.findall(head)
    return frozenset(
        html.unescape(name.decode("utf-8", "replace")).lower()
        for key, name in found
        if key in FILE_NAMESPACES
    )


def _page_record(
    content: bytes, where: str, hidden: frozenset[str], options: ReadOptions
) -> Record | Reject:
    try:
        page = parse_page(content)
    except ET.ParseError as error:
        return Reject("damaged", where, f"not well-formed XML: {error}", snippet(content))
    where = record_id(page.id, where)
    if page.redirect or _REDIRECT.match(page.markup):
        return Reject("redirect", where, page.title, snippet(page.markup.encode()))
    if page.namespace != "0" or page.model != "wikitext":
        detail = f"{page.title}: namespace {page.namespace}, {page.model}"
        return Reject("not_an_article", where, detail)
    try:
        return Record(where, plain_text(page.markup, hidden).encode())
    except UnparsableMarkup as error:
        return Reject("unparsable", where, f"{page.title}: {error}", snippet(page.markup.encode()))


def parse_page(content: bytes) -> Page:
    """Read `<page>...</page>`.

    Raises:
        xml.etree.ElementTree.ParseError: it is not well-formed.
    """
    page = ET.fromstring(content)
    revisions = page.findall("revision")
    last = revisions[-1] if revisions else page
    return Page(
        id=page.findtext("id", ""),
        title=page.findtext("title", ""),
        namespace=page.findtext("ns", "0"),
        redirect=page.find("redirect") is not None,
        model=last.findtext("model") or "wikitext",
        markup=last.findtext("text") or "",
    )


def _cut(pieces: Iterable[bytes], max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Cut a dump.

    Yields "head" (what names the wiki), "page" and "too_large" (what stands between `<page>` and
    `</page>`, of a large one its start), and "between" (what stands astray between pages).

    Raises:
        DamagedFile: it is no dump or ends too early; or as `pieces` raises.
    """
    stream = _Stream(pieces)
    began = rooted = False
    while True:
        between, _, more = stream.until(_OPEN, HEAD_BYTES)
        if _ROOT in between:
            rooted = True
            yield "head", between
        elif between.replace(_END, b"").strip():
            if not began:
                raise DamagedFile("unreadable", f"no MediaWiki export: no {_ROOT.decode()} ...>")
            yield "between", between
        if not more:
            if rooted and _END not in between:
                raise DamagedFile("damaged", f"the file ends without {_END.decode()}")
            return
        content, size, more = stream.until(_CLOSE, max_bytes)
        if not more:
            raise DamagedFile("damaged", "the file ends inside a page")
        yield ("too_large" if size > max_bytes else "page"), content
        began = True


class _Stream:
    """Bytes up to a mark, again and again."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = bytearray()

    def until(self, mark: bytes, limit: int) -> tuple[bytes, int, bool]:
        """Take what stands before the next `mark`, and the mark.

        Returns:
            What stood there (its start only, where it is longer than `limit`), its length, and
            whether the mark came before the end.
        """
        held = self._held
        start = b""
        dropped = looked = 0
        while True:
            at = held.find(mark, looked)
            if at >= 0:
                content = start or bytes(held[:at])
                del held[: at + len(mark)]
                return content, dropped + at, True
            looked = max(0, len(held) - len(mark) + 1)
            if dropped + len(held) > limit:
                start = start or bytes(held[:limit])
                del held[:looked]
                dropped, looked = dropped + looked, 0
            piece = next(self._pieces, None)
            if piece is None:
                content = start or bytes(held)
                size = dropped + len(held)
                held.clear()
                return content, size, False
            held += piece
