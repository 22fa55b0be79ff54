from __future__ import annotations

import random

import pytest

from stages.text.tasks.labels import find_classes, in_order, require_known, require_values
from stages.text.tasks.rows import Read, SequenceRow, TaskFileError, TokenRow, gather


def classified(*labels: str | float | None) -> Read[SequenceRow]:
    rows = [SequenceRow(f"line {i + 2}", "text", None, label) for i, label in enumerate(labels)]
    return gather(("a.tsv", row) for row in rows)


def tagged(*sentences: str) -> Read[TokenRow]:
    rows = [
        TokenRow(f"line {i}", tuple(s.split()), tuple(s.split())) for i, s in enumerate(sentences)
    ]
    return gather(("a.conll", row) for row in rows)


def test_one_order_whatever_that_of_rows() -> None:
    labels = [str(i) for i in range(12)]
    for seed in range(3):
        shuffled = random.Random(seed).sample(labels, len(labels))
        assert find_classes(classified(*shuffled)) == tuple(labels)
    assert in_order(["b", "a", "É", "B", "10", "9"]) == ("10", "9", "B", "a", "b", "É")
    assert in_order(["1", "-1", "01"]) == ("-1", "01", "1")
    assert find_classes(classified("a", "b"), ["b", "c", "a"]) == ("b", "c", "a")


def test_types_have_all_prefixes_of_their_scheme() -> None:
    train = tagged("B-P O O", "O B-L")
    assert find_classes(train, scheme="BIO") == ("B-L", "B-P", "I-L", "I-P", "O")
    assert find_classes(train) == ("B-L", "B-P", "O")
    require_known(tagged("B-P I-P"), find_classes(train, scheme="BIO"))
    assert find_classes(tagged("S-P B-P", "E-P"), scheme="BIOES") == (
        "B-P",
        "E-P",
        "I-P",
        "O",
        "S-P",
    )


def test_mistakes_of_labels() -> None:
    with pytest.raises(TaskFileError, match=r"train has one label only, 'a' \(3 times\)"):
        find_classes(classified("a", "a", "a"))
    with pytest.raises(TaskFileError, match="one label only, 'O'"):
        find_classes(tagged("O O", "O"), scheme="BIO")
    with pytest.raises(TaskFileError, match="train has no labels"):
        find_classes(classified(None))
    with pytest.raises(TaskFileError, match="labels given twice: 'a'"):
        find_classes(classified("a", "b"), ["a", "b", "a"])
    with pytest.raises(TaskFileError, match="one label is given, 'a'"):
        find_classes(classified("a", "b"), ["a"])


def test_labels_in_dev_that_train_has_not() -> None:
    classes = find_classes(classified("a", "b"))
    require_known(classified("b", "b"), classes)
    with pytest.raises(TaskFileError) as error:
        require_known(classified("a", "c", "d", "c"), classes)
    message = "dev has labels that train has not: 'c' (2 times, first in line 3), 'd' (1 times"
    assert str(error.value).startswith(message) and "Those of train: 'a', 'b'." in str(error.value)
    with pytest.raises(TaskFileError, match="'B-X'"):
        require_known(tagged("O B-X"), ("O", "B-P"))


def test_values_that_are_all_one() -> None:
    require_values(classified(1.0, 2.0))
    with pytest.raises(TaskFileError, match=r"one value only, 1\.5"):
        require_values(classified(1.5, 1.5))
    with pytest.raises(TaskFileError, match="no values"):
        require_values(classified("a", None))
