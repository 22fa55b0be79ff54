from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from stages.text.encodings import HEAD_BYTES, detect_encoding
from tests.oracle.real_text import corpora
from tests.reading import read_all

FRENCH = (
    "Né à Paris, l'évêque fut créé cardinal ; où l’on voit « des choses » étranges, ça et là. " * 9
)
POLISH = "Zażółć gęślą jaźń. Łódź jest pięknym miastem, w którym żyją ludzie, którzy świętują. " * 9
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Москва — столица. " * 9
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 9
WIDE = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]


@pytest.mark.parametrize(
    ("text", "encodings"),
    [
        (FRENCH, ["utf-8", "cp1252", *WIDE]),
        (FRENCH.replace("’", "'"), ["latin-1", "iso8859-15"]),
        (POLISH, ["utf-8", "cp1250", "iso8859-2", *WIDE]),
        (RUSSIAN, ["utf-8", "cp1251", *WIDE]),
        (RUSSIAN.replace("—", "-"), ["koi8-r", "cp866"]),
        (JAPANESE, ["utf-8", "shift_jis", "euc_jp"]),
        ("plain ASCII text. " * 9, ["ascii", *WIDE]),
    ],
)
def test_the_text_comes_back(tmp_path: Path, text: str, encodings: list[str]) -> None:
    for encoding in encodings:
        path = tmp_path / "a.txt"
        path.write_bytes(text.encode(encoding))
        texts, batch = read_all(path, encoding="detect")
        assert texts == [text], (encoding, batch)
        assert sum(batch.encodings.values()) == 1


def test_real_text_in_the_encodings_of_its_language() -> None:
    def text(name: str) -> str:
        return gzip.decompress((corpora() / name).read_bytes()).decode("utf-8-sig")

    for name, encodings in {
        "gutenberg-en/2701-0.txt.gz": ["utf-8", "cp1252", *WIDE],
        "german/34811-0.txt.gz": ["utf-8", "cp1252", "latin-1", *WIDE],
        "chinese/24264-0.txt.gz": ["utf-8", "big5", "gb18030", *WIDE],
        "hindi/ramcharitmanas-1.txt.gz": ["utf-8", *WIDE],
    }.items():
        whole = text(name)
        for encoding in encodings:
            # Cut anywhere, in a character too.
            for size in (HEAD_BYTES, 20_001):
                raw = whole.encode(encoding, "ignore")
                found = detect_encoding(raw[:size], cut=len(raw) > size)
                assert raw.decode(found) == raw.decode(encoding), (name, encoding, size, found)


def test_marks_nuls_and_what_is_no_text() -> None:
    assert detect_encoding(b"\xef\xbb\xbfcaf\xc3\xa9") == "utf-8"
    assert detect_encoding("\ufeffx".encode("utf-16-be")) == "utf-16-be"
    assert detect_encoding(b"") == "utf-8"
    assert detect_encoding(b"A fox\0 saw a crow, and the crow saw the fox below." * 2) == "utf-8"
    assert detect_encoding(b"caf\xc3", cut=True) == "utf-8"
    assert detect_encoding(b"caf\xc3\xa9 \0\0\0\0\0\0") == "utf-8"


def test_a_damaged_byte_changes_no_encoding() -> None:
    for text in (FRENCH, RUSSIAN, JAPANESE):
        raw = bytearray(text.encode())
        raw[len(raw) // 2] ^= 0x81
        assert detect_encoding(bytes(raw)) == "utf-8"


def test_files_are_counted_by_their_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Grüße aus Köln. " * 9, "utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "Grüße aus Köln, schöne Straße."}\n' * 9, "cp1252")
    (tmp_path / "c.csv").write_text("text\n" + "Grüße aus Köln\n" * 9, "utf-16")
    (tmp_path / "d.txt.gz").write_bytes(b"no gzip")
    texts, batch = read_all(tmp_path, encoding="detect")
    assert batch.encodings == {"utf-8": 2, "cp1252": 1, "utf-16-le": 1}
    assert sum("Köln" in text for text in texts) == 19
    assert batch.rejects == {"damaged": 1}
    assert read_all(tmp_path)[1].encodings == {}
