import pytest

from tests.oracle.google_pairs import (
    TOY_VOCABULARY,
    digest,
    make_instances,
    read_documents,
    toy_text,
)


@pytest.mark.parametrize(
    ("whole_word", "length", "dupe", "cap", "pairs", "not_next", "sha256"),
    [
        (
            *(False, 24, 1, 20, 9, 5),
            "8df130675db43c3b8d81eb0bc91818698abd5827611e2c528e4d974f8465b855",
        ),
        (
            *(False, 24, 5, 20, 51, 33),
            "669e25d490f94ca458fb1128325dcd5e0e63245a25d50c55abd58ed196702d2e",
        ),
        (
            *(True, 24, 5, 20, 50, 31),
            "d42140768a645b30bd6251e2b262fb3e853b957fcd3a22cf34f27bf5e6d7b2e4",
        ),
        (
            *(False, 16, 10, 2, 129, 81),
            "6dbb5243162f5bee9681480c2d3958e98b4558152da9bbb06c53308b07118ce1",
        ),
    ],
)
def test_gives_what_the_original_gives(
    whole_word: bool, length: int, dupe: int, cap: int, pairs: int, not_next: int, sha256: str
) -> None:
    instances = make_instances(
        read_documents(toy_text()),
        TOY_VOCABULARY,
        max_seq_length=length,
        dupe_factor=dupe,
        max_predictions=cap,
        whole_word=whole_word,
    )
    assert len(instances) == pairs
    assert sum(i.is_random_next for i in instances) == not_next
    assert digest(instances) == sha256
