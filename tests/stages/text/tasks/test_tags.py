from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.tasks.tags import (
    Entity,
    Scheme,
    convert_tags,
    detect_scheme,
    entities,
    split_tag,
    write_tags,
)

WRITTEN: dict[Scheme, str] = {
    "IO": "I-P I-P O I-L I-L I-L I-L",
    "IOB1": "I-P B-P O I-L I-L I-L B-L",
    "BIO": "B-P B-P O B-L I-L I-L B-L",
    "BIOES": "S-P S-P O B-L I-L E-L S-L",
    "BILOU": "U-P U-P O B-L I-L L-L U-L",
}
ENTITIES = (Entity("P", 0, 1), Entity("P", 1, 2), Entity("L", 3, 6), Entity("L", 6, 7))


@pytest.mark.parametrize("scheme", WRITTEN)
def test_one_sentence_in_every_scheme(scheme: Scheme) -> None:
    tags = tuple(WRITTEN[scheme].split())
    assert write_tags(ENTITIES, 7, scheme) == tags
    assert detect_scheme([tags, ("O",), ()]) == scheme
    for other, written in WRITTEN.items():
        if scheme != "IO":
            assert entities(tags) == ENTITIES
            assert convert_tags(tags, other) == tuple(written.split())
    if scheme == "IO":
        assert entities(tags) == (Entity("P", 0, 2), Entity("L", 3, 7))


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Entity], int]:
    lengths = draw(
        st.lists(st.tuples(st.sampled_from(["P", "L-x", ""]), st.integers(1, 3)), max_size=8)
    )
    found, at = [], 0
    for kind, length in lengths:
        if kind:
            found.append(Entity(kind, at, at + length))
        at += length
    return found, at


@settings(max_examples=40)
@given(sentences(), st.sampled_from(["IOB1", "BIO", "BIOES", "BILOU"]))
def test_entities_come_back(sentence: tuple[list[Entity], int], scheme: Scheme) -> None:
    found, length = sentence
    tags = write_tags(found, length, scheme)
    assert len(tags) == length
    assert list(entities(tags)) == found


@settings(max_examples=40)
@given(sentences(), st.sampled_from(list(WRITTEN)), st.sampled_from(list(WRITTEN)))
def test_conversion_there_and_back(
    sentence: tuple[list[Entity], int], scheme: Scheme, other: Scheme
) -> None:
    tags = write_tags(*sentence, scheme)
    there = convert_tags(tags, other)
    if other != "IO":
        assert convert_tags(there, scheme) == tags
    assert [tag == "O" for tag in there] == [tag == "O" for tag in tags]


def test_faults_in_a_scheme_are_read_as_conlleval_does() -> None:
    assert entities(["O", "I-P", "I-L", "B-L", "E-L", "E-L"]) == (
        Entity("P", 1, 2),
        Entity("L", 2, 3),
        Entity("L", 3, 5),
        Entity("L", 5, 6),
    )
    # One I- without its B- among others does not make it IOB1.
    assert detect_scheme([["B-P", "I-P", "O"], ["I-P", "O"]]) == "BIO"


def test_plain_tags() -> None:
    assert detect_scheme([["DET", "NOUN"], ["B-P"]]) == "plain"
    assert detect_scheme([["O", "O"]]) == "plain"
    assert detect_scheme([["B-P", "L-P", "E-P"]]) == "plain"
    with pytest.raises(ValueError, match="'NOUN' is no tag of an entity"):
        entities(["O", "NOUN"])
    with pytest.raises(ValueError, match="plain tags mark no entities"):
        convert_tags(["O"], "plain")
    with pytest.raises(ValueError, match="overlaps"):
        write_tags([Entity("P", 0, 2), Entity("P", 1, 3)], 3, "BIO")
    assert split_tag("I-B-x") == ("I", "B-x")
