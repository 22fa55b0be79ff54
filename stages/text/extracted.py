"""Records of prepared Wikipedia text: WikiExtractor's `<doc>` files, and WikiText."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import NamedTuple

from stages.text.records import ReadOptions, Record, Reject, record_id, snippet, too_large
from stages.text.streams import DamagedFile, lines, read_pieces, to_utf8

_DOC = re.compile(rb"<doc( .*)>$")
_DOC_END = b"</doc>"
_ID = re.compile(rb' id="([^"]*)"')
# Titles are written as they are, so that quotes may stand in them; the title comes last.
_TITLE = re.compile(rb' title="(.*)"$')


class DocHead(NamedTuple):
    """What the first line of a `<doc>` says; "" for what it does not."""

    id: str
    title: bytes


def doc_head(line: bytes) -> DocHead | None:
    """Read a line `<doc id="12" url="..." title="Anarchism">`; None for any other."""
    match = _DOC.match(line)
    if match is None:
        return None
    own, title = _ID.search(match[1]), _TITLE.search(match[1])
    return DocHead(
        own[1].decode("utf-8", "backslashreplace") if own else "", title[1] if title else b""
    )


def extractor_records(
    path: str, compression: str, options: ReadOptions
) -> Iterator[Record | Reject]:
    """Articles of a file that WikiExtractor wrote: `<doc id= url= title=>`, text, `</doc>`.

    The extractor repeats the title as first line of the text. It is left out, as in the
    extractor's JSON and in what `mediawiki` reads from the dump. It writes `&`, `<` and `>` as
    entities: they are read back. A doc that is not closed is one reject.
    """
    doc: Gathering | None = None
    head = DocHead("", b"")
    astray = False
    try:
        for number, line in _lines(path, compression, options):
            found = doc_head(line) if line and line.startswith(b"<doc ") else None
            if found:
                if doc:
                    yield _unclosed(doc)
                head, doc, astray = found, Gathering(number, options), False
            elif doc and line == _DOC_END:
                yield _unescaped(doc.record(head.id))
                doc = None
            elif doc:
                if number > doc.line + 1 or line != head.title:
                    doc.add(line)
            elif not astray and (line is None or line.strip()):
                # Said once: the lines that follow belong to it.
                astray = True
                detail = "text outside of <doc ...> and </doc>"
                yield Reject("malformed_doc", f"line {number}", detail, snippet(line or b""))
    except DamagedFile as damage:
        yield Reject(damage.reason, "", str(damage))
        return
    if doc:
        yield _unclosed(doc)


def _unescaped(record: Record | Reject) -> Record | Reject:
    if isinstance(record, Reject) or b"&" not in record.text:
        return record
    text = html.unescape(record.text.decode("utf-8", "surrogateescape"))
    return record._replace(text=text.encode("utf-8", "surrogateescape"))


def _unclosed(doc: Gathering) -> Reject:
    detail = "no </doc> closes this <doc ...>"
    return Reject("malformed_doc", f"line {doc.line}", detail, snippet(doc.text()))


class Gathering:
    """Lines of a document, as long as they are not too large."""

    def __init__(self, line: int, options: ReadOptions) -> None:
        self.line = line
        self._options = options
        self._kept: list[bytes] = []
        self._size = 0

    def add(self, line: bytes | None) -> None:
        """A further line; None for one that was too long to be held."""
        limit = self._options.max_record_bytes
        self._size += limit + 1 if line is None else len(line) + 1
        if line is None or self._size > limit:
            self._kept = []
        else:
            self._kept.append(line)

    def text(self) -> bytes:
        """The lines without blank ones at either end."""
        return b"\n".join(self._kept).strip(b"\n")

    def record(self, own: str = "") -> Record | Reject:
        """The document; its id is `own`, or its first line's number."""
        where = f"line {self.line}"
        if self._size > self._options.max_record_bytes:
            return too_large(where, self._options)
        return Record(record_id(own, where), self.text())


def _lines(path: str, compression: str, options: ReadOptions) -> Iterator[tuple[int, bytes | None]]:
    pieces = to_utf8(read_pieces(path, compression), options.encoding)
    for number, line in enumerate(lines(pieces, options.max_record_bytes), start=1):
        yield number, None if line is None else line.removesuffix(b"\r")


_HEADING = re.compile(rb"(=(?: =)*) (.+?) (=(?: =)*)$")
_JOINERS = ((b" @-@ ", b"-"), (b" @,@ ", b","), (b" @.@ ", b"."))


def wikitext_records(
    path: str, compression: str, options: ReadOptions
) -> Iterator[Record | Reject]:
    """Articles of a WikiText file (`wiki.train.tokens`): ` = Title = ` begins one.

    Titles and headings stay as paragraphs, without their `=`. ` @-@ `, ` @,@ ` and ` @.@ ` become
    `-`, `,` and `.` again: they are marks of the corpus that no other text holds. Spaces around
    other punctuation stay (BERT cuts there anyway), and so does `<unk>`, as the characters it is.
    """
    article: Gathering | None = None
    try:
        for number, line, level in _levels(_lines(path, compression, options)):
            if article and level == 1:
                yield article.record()
            if level == 1 or (article is None and line != b""):
                article = Gathering(number, options)
            if article:
                article.add(None if line is None else _natural(line, level))
    except DamagedFile as damage:
        if article:
            yield article.record()
        yield Reject(damage.reason, "", str(damage))
        return
    if article:
        yield article.record()


def _levels(
    numbered: Iterator[tuple[int, bytes | None]],
) -> Iterator[tuple[int, bytes | None, int]]:
    """Lines without white space around them, each with its level: 1 for titles, 0 for text.

    A heading stands between blank lines: what looks like one inside a table or formula does not.
    """
    held: tuple[int, bytes, int] | None = None
    before: bytes | None = b""
    try:
        for number, whole in numbered:
            line = None if whole is None else whole.strip()
            if held:
                yield held if line == b"" else (*held[:2], 0)
                held = None
            match = _HEADING.match(line) if line and before == b"" else None
            if line and match and match[1] == match[3]:
                held = number, line, match[1].count(b"=")
            else:
                yield number, line, 0
            before = line
    except DamagedFile:
        if held:
            yield held
        raise
    if held:
        yield held


def _natural(line: bytes, level: int) -> bytes:
    if level:
        line = line.strip(b"= ")
    for mark, character in _JOINERS:
        line = line.replace(mark, character)
    return line
