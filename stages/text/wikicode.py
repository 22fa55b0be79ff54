"""Wiki markup to plain text: mwparserfromhell reads it, this decides what of it is text.

Kept: paragraphs, headings (without `=`, as paragraphs of their own, if text follows before the next
of their rank), indented lines, the words of links, and what stands in quotations, `<nowiki>`,
`<sub>` and other visible tags. Left out: bulleted and numbered lists, and tables (as in BERT's own
data: Devlin et al. 2019, section 3.1), comments, references, templates, files with their captions,
categories, links to other languages, formulas, listings, galleries, maps, scores.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Collection, Iterable

import mwparserfromhell
from mwparserfromhell import nodes

HIDDEN_NAMESPACES = frozenset({"file", "image", "media", "category"})
"""Links into these show no text: pictures and what an article is filed under."""

_HIDDEN_TAGS = frozenset(
    {"table", "tr", "td", "th", "caption", "ref", "references", "gallery", "imagemap", "math"}
    | {"chem", "ce", "timeline", "score", "graph", "hiero", "mapframe", "maplink", "indicator"}
    | {"inputbox", "categorytree", "templatedata", "templatestyles", "section", "includeonly"}
    | {"syntaxhighlight", "source", "pre", "style", "script"}
)
_BLOCK_TAGS = frozenset({"blockquote", "poem", "div", "p", "center", "li", "dt", "dd"})

_CHARACTERS = {
    "ndash": "–", "mdash": "—", "snd": " – ", "spnd": " – ", "spaced ndash": " – ",
    "nbsp": " ", "·": " · ", "dot": " · ", "•": " • ", "bull": " • ", "'": "'", "=": "=", "!": "|",
    "'s": "'s", "snds": " – ",
}  # fmt: skip
"""Templates that stand for a character: without it, two words would become one."""

# Comments and references are cut as MediaWiki's preprocessor does, before anything else is read.
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_REFERENCE = re.compile(r"<ref(?:\s[^<>]*)?>", re.IGNORECASE)
_REFERENCE_END = re.compile(r"</ref\s*>", re.IGNORECASE)
_QUOTES = re.compile(r"'{2,}")
_QUOTED_LINE = re.compile(r"^.*?''.*$", re.MULTILINE)
_SWITCH = re.compile(r"__[A-Z]{3,}__")
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?|simple")
# What is left where markup was not well formed.
_TABLE_LINE = re.compile(r"^[ \t:]*(?:\{\||\|).*$", re.MULTILINE)
_BRACKETS = re.compile(r"\[\[(?:[^\[\]|]*\|)?|\]\]|\{\{|\}\}")
_BLANKS = re.compile(r"[ \t\u00a0]+")
_EMPTY_PARENTHESES = re.compile(r" ?\((?:[\s,;:–]|\bor\b)*\)")
_LOOSE_START = re.compile(r"\((?:\s*[,;:])+\s*")
_LOOSE_END = re.compile(r"(?<![,;:\s])\s*[,;:][,;:\s]*\)")
_SPACE_BEFORE = re.compile(r" +([,.;)])")


MAX_STEPS_LOST = 10_000_000
"""The parser reads 1 to 5 million of these a second: a page that would take longer is left out."""

_CLOSED_BY = {"{{": "}}", "[[": "]]", "{|": "|}", "[": "]"}
_MARKS = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|\[(?=\w+:)|\]"
    r"|<(?P<end>/?)(?P<tag>[a-z][a-z0-9]*)(?P<rest>[^<>]*)(?P<whole>>?)",
    re.IGNORECASE,
)
_SINGLE_TAGS = frozenset({"br", "wbr", "hr", "meta", "link", "img"} | {"li", "dt", "dd"})


class UnparsableMarkup(Exception):  # noqa: N818 - says what the page is
    """The parser gave up on a page."""


def plain_text(markup: str, hidden: Collection[str] = HIDDEN_NAMESPACES) -> str:
    r"""The text of a page: paragraphs, with `\n` where the page has a line end, or a blank line.

    Args:
        markup: of one page.
        hidden: lower-case names of the namespaces of files and categories.

    Raises:
        UnparsableMarkup: the parser cannot read it.
    """
    markup = _without_references(_COMMENT.sub("", markup))
    if (steps := steps_lost(markup)) > MAX_STEPS_LOST:
        raise UnparsableMarkup(f"too much markup that nothing closes ({steps:,} steps)")
    try:
        # Bold and italics nest badly in real pages: their marks are taken out afterwards.
        code = mwparserfromhell.parse(markup, skip_style_tags=True)
        pieces: list[str] = []
        _Writer(pieces, hidden).write(code.nodes)
    except (mwparserfromhell.parser.ParserError, RecursionError) as error:
        raise UnparsableMarkup(str(error) or type(error).__name__) from error
    text = _paragraphs(_tidy("".join(pieces)))
    # Blanks, empty parentheses and marks of lists may have stood between two halves too.
    whole = _without_pairs(text)
    if whole != text:
        text = _paragraphs(_BLANKS.sub(" ", whole))
    return text.translate(_UNSHIELD)


def _without_references(markup: str) -> str:
    kept: list[str] = []
    at = 0
    while opened := _REFERENCE.search(markup, at):
        kept.append(markup[at : opened.start()])
        at = opened.end()
        if not opened[0].endswith("/>"):
            closed = _REFERENCE_END.search(markup, at)
            if closed is None:
                break
            at = closed.end()
    return "".join(kept) + markup[at:]


def steps_lost(markup: str) -> int:
    """Characters that the parser reads in vain: from each mark that nothing closes to the end."""
    opened: list[tuple[str, int]] = []
    waiting: Counter[str] = Counter()
    lost = 0
    for match in _MARKS.finditer(markup):
        mark = match[0]
        if mark in _CLOSED_BY:
            closer, opens = _CLOSED_BY[mark], True
        elif mark[0] != "<":
            closer, opens = mark, False
        else:
            closer, opens = match["tag"].lower(), not match["end"]
            if closer in _SINGLE_TAGS or match["rest"].endswith("/"):
                continue
            if not match["whole"]:
                lost += len(markup) - match.start()
                continue
        if opens:
            opened.append((closer, match.start()))
            waiting[closer] += 1
        elif waiting[closer]:
            while opened[-1][0] != closer:
                crossed, start = opened.pop()
                waiting[crossed] -= 1
                lost += len(markup) - start
            opened.pop()
            waiting[closer] -= 1
    return lost + sum(len(markup) - start for _, start in opened)


# These begin the lines of headings, by level, and of list items: no page holds such characters.
_HEADING_MARKS = "\x01\x02\x03\x04\x05\x06"
_ITEM_MARK = "\x07"
# What stands in <nowiki> is not tidied.
_SHIELD = dict(zip(map(ord, "'[]{}|_"), range(0x0E, 0x15), strict=True))
_UNSHIELD = {shield: character for character, shield in _SHIELD.items()}
_LINE_STARTS = ("", "\n", _ITEM_MARK)
_LINE_MARKS = {"*": _ITEM_MARK, "#": _ITEM_MARK, ";": "", ":": ""}


class _Writer:
    """Writes the text of nodes to `out`."""

    def __init__(self, out: list[str], hidden: Collection[str]) -> None:
        self._out = out
        self._hidden = hidden

    def write(self, found: Iterable[nodes.Node]) -> None:
        out = self._out
        for node in found:
            if isinstance(node, nodes.Text):
                out.append(node.value)
            elif isinstance(node, nodes.Wikilink):
                self._link(node)
            elif isinstance(node, nodes.Tag):
                self._tag(node)
            elif isinstance(node, nodes.Template):
                out.append(_CHARACTERS.get(str(node.name).strip().lower(), ""))
            elif isinstance(node, nodes.HTMLEntity):
                out.append(html.unescape(str(node)))
            elif isinstance(node, nodes.Heading):
                out.append(f"\n\n{_HEADING_MARKS[node.level - 1]}")
                self.write(node.title.nodes)
                out.append("\n\n")
            elif isinstance(node, nodes.ExternalLink):
                if node.title is not None:
                    self.write(node.title.nodes)
                elif not node.brackets:
                    out.append(str(node.url))

    def _link(self, node: nodes.Wikilink) -> None:
        title = str(node.title).strip()
        prefix = title.partition(":")[0].strip().lower().replace("_", " ") if ":" in title else ""
        if prefix in self._hidden or (prefix and _LANGUAGE.fullmatch(prefix)):
            return
        if node.text is not None:
            self.write(node.text.nodes)
        else:
            self.write(node.title.nodes if title[:1] != ":" else [nodes.Text(title[1:])])

    def _tag(self, node: nodes.Tag) -> None:
        name = str(node.tag).strip().lower()
        if node.wiki_markup in _LINE_MARKS:
            mark = _LINE_MARKS[node.wiki_markup]
            if node.wiki_markup == ":" and self._out and self._out[-1][-1:] not in _LINE_STARTS:
                mark = ": "
            self._out.append(mark)
            return
        if name in ("br", "hr"):
            self._out.append("\n")
        if name in _HIDDEN_TAGS or node.contents is None:
            return
        around = "\n" if name in _BLOCK_TAGS else ""
        self._out.append(around)
        if name == "nowiki":
            self._out.append(html.unescape(str(node.contents)).translate(_SHIELD))
        else:
            self.write(node.contents.nodes)
        self._out.append(around)


def _tidy(text: str) -> str:
    text = _QUOTED_LINE.sub(_without_quotes, _SWITCH.sub("", text))
    text = _without_pairs(_BRACKETS.sub("", _TABLE_LINE.sub("", text)))
    text = _BLANKS.sub(" ", text)
    for pattern, instead in (
        (_EMPTY_PARENTHESES, ""),
        (_LOOSE_START, "("),
        (_LOOSE_END, ")"),
        (_SPACE_BEFORE, r"\1"),
    ):
        text = pattern.sub(instead, text)
    return text


def _without_pairs(text: str) -> str:
    """Without those marks that came to stand together when others between them were taken out."""
    if not any(bracket * 2 in text for bracket in "[]{}"):
        return text
    kept: list[str] = []
    for character in text:
        if character in "[]{}" and kept and kept[-1] == character:
            kept.pop()
        else:
            kept.append(character)
    return "".join(kept)


def _without_quotes(line: re.Match[str]) -> str:
    """A line without the marks of italics (two apostrophes), bold (three) and both (five).

    As MediaWiki does it: of other numbers the rest is text, and where neither italics nor bold are
    closed, one mark of bold is an apostrophe before italics ("l'''amour''").
    """
    runs = [min(len(run), 5) for run in _QUOTES.findall(line[0])]
    italics, bold = (sum(n in kinds for n in runs) for kinds in ((2, 5), (3, 4, 5)))
    apostrophe = None
    if italics % 2 and bold % 2:
        bolds = [run.start() for run in _QUOTES.finditer(line[0]) if len(run[0]) == 3]
        after_words = [at for at in bolds if at and not line[0][at - 1].isspace()]
        apostrophe = next(iter(after_words or bolds), None)

    def shown(run: re.Match[str]) -> str:
        count = len(run[0])
        return "'" * (1 if count == 4 or run.start() == apostrophe else max(0, count - 5))

    return _QUOTES.sub(shown, line[0])


def _paragraphs(text: str) -> str:
    """Lines without blanks around them, and without headings that nothing stands under."""
    kept: list[str] = []
    headings: list[tuple[int, str]] = []
    for line in text.split("\n"):
        line = line.strip()
        level = _HEADING_MARKS.find(line[0]) + 1 if line else 0
        if level:
            headings = [h for h in headings if h[0] < level]
            if title := line[1:].strip():
                headings.append((level, title))
        elif line.startswith(_ITEM_MARK):
            continue
        elif line:
            line = line.replace(_ITEM_MARK, "")
            for _, title in headings:
                kept += ["", title, ""]
            headings = []
            kept.append(line)
        elif kept and kept[-1]:
            kept.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")
