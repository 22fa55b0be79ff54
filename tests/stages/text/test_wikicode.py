from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.wikicode import HIDDEN_NAMESPACES, UnparsableMarkup, plain_text, steps_lost


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bold''' and ''italics'', '''''both'''''; the boys' l''''oeuvre'''.",
         "Bold and italics, both; the boys' l'oeuvre."),
        ("The ''Iliad'''s heroes.", "The Iliad's heroes."),
        ("l'''amour''.", "l'amour."),
        ("A [[link]], [[page|words]]s, [[:Category:Shown]] and [[#Part]].",
         "A link, wordss, Category:Shown and #Part."),
        ("[[File:a.jpg|thumb|A [[caption]] here]]Text[[Category:Birds|b]][[de:Vogel]].", "Text."),
        ("[[Datei:a.jpg|mini|x]]Text.", "Text."),
        ("One.<ref name=a>Not [[this]].</ref> Two.<ref name=a /> Three.<!-- nor\n\nthis -->",
         "One. Two. Three."),
        ("{{Box|a=[[b]]|c={{d}}}}Was born {{Birth|1900}} (; {{lang|de|x}}) in [http://a.b C D].",
         "Was born in C D."),
        ("1990{{ndash}}1995 and 5&nbsp;km &amp; more&thinsp;&lt;x&gt;",
         "1990–1995 and 5 km & more\u2009<x>"),
        ("Before\n{| class=x\n! head\n|-\n| cell {{t}} || [[File:a.jpg]]\n{| \n| in\n|}\n|}\nAfter",
         "Before\n\nAfter"),
        ("== A ==\ntext\n=== B ===\n* item\n== C ==\n{{t}}\n== D ==\n=== E ===\nmore\n== F ==",
         "A\n\ntext\n\nD\n\nE\n\nmore"),
        ("* item\n# item [[x]]\n: indented\n:* item\n; term: said\ntext * not a list",
         "indented\nterm: said\ntext * not a list"),
        ("H<sub>2</sub>O<br>line <nowiki>''kept'' [[so]] &amp;</nowiki> <math>x^2</math>.",
         "H2O\nline ''kept'' [[so]] &."),
        ("<blockquote>Said.</blockquote>__NOTOC__\n<gallery>\na.jpg|b\n</gallery>End",
         "Said.\n\nEnd"),
        ("Left {{open\nand [[open\nand ''open <ref>open", "Left open\nand open\nand open open"),
        ("a [[|}[[|} b{[{{[{c", "a bc"),
        ("x[()[y\n\n[()[\n\nz", "xy\n\nz"),
        ("[[|}\x07[[|}", ""),
        ("{{only|templates}}\n[[Category:Empty]]\n* list", ""),
    ],
)  # fmt: skip
def test_markup(markup: str, text: str) -> None:
    assert plain_text(markup, HIDDEN_NAMESPACES | {"datei"}) == text


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *("[[", "]]", "{{", "}}", "{|", "|}", "|", "''", "'''", "==", "=", "\n", "*", "#"),
                *(":", ";", "<ref>", "</ref>", "<nowiki>", "</nowiki>", "<!--", "-->", "<div>"),
                *("</div>", "<br>", "&amp;", "http://a.b", "word", "File:", "\x01", "\x07"),
                *("(", ")", "[", "]", "{", "}", " "),
            ]
        ),
        max_size=40,
    )
)
def test_any_markup_is_read(parts: list[str]) -> None:
    text = plain_text("".join(parts))
    assert "\n\n\n" not in text
    assert "<nowiki>" in parts or not any(mark in text for mark in ("{{", "}}", "[[", "]]"))
    assert text == text.strip("\n")


@pytest.mark.parametrize(
    "part",
    ["[[", "{{a|", "{|\n", "<div>", "''", "[[a|", "<ref>", "==", "\n:", "<span x=", "[http://a ",
     "{{a|[[b|<i>", "}}{{a|", "{{a|[[b|}}]]", "<!--", ",;", "( ,", "__A", "<br>", "{{{",
     "<nowiki>"],
)  # fmt: skip
def test_what_never_closes_is_read_or_given_up_in_time(part: str) -> None:
    began = time.monotonic()
    for count in (500, 30_000):
        with contextlib.suppress(UnparsableMarkup):
            plain_text(part * count + "end")
    assert time.monotonic() - began < 20


def test_only_what_nothing_closes_is_lost() -> None:
    assert steps_lost("{{a|[[b]]|[http://a b]}} <i>x</i> {|\n|}<br><b/> ]] }} </u>") == 0
    assert steps_lost("{{a" + " " * 97) == 100
    assert steps_lost("{{a|[[b}}" + " " * 91) == 96
    assert steps_lost("<i " + " " * 97) == 100
    with pytest.raises(UnparsableMarkup, match="closes"):
        plain_text("{{a|" * 10_000)
