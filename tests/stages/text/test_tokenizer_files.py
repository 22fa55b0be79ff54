from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers

from stages.text.tokenizer_files import (
    read_vocab,
    tokenizer_files,
    vocab_bytes,
    vocabulary_digest,
    write_tokenizer,
)
from stages.text.vocabulary import train
from stages.text.wordpiece import SPECIAL_TOKENS, Tokenizer
from stages.text.words import Normalisation, count_words, split_words
from tests.oracle.real_text import google_vocab, paragraphs

transformers = pytest.importorskip("transformers")

TEXTS = [
    "The Queen of Hearts, she made some tarts, all on a summer's day.",
    "ÉTÉ été Straße ẞ İstanbul ΣΊΣΥΦΟΣ naïve cafe\u0301 Tiếng Việt người",
    "紅樓夢 is 120 chapters；日本語のテキスト。",
    "[MASK] [SEP] is text [CLS][PAD] [UNK] [unused1]",
    "a\x00b\x0bc\x85d\u2028e\u200bf\ufffdg\u00a0h\u3000i",
    "antidisestablishmentarianism " + "x" * 101,
    "पेप्स हिन्दी में 🙂👩‍👩‍👧",
    "",
]
SETTINGS = {
    "uncased": Normalisation(),
    "cased": Normalisation(False, False),
    "accents kept": Normalisation(True, False),
    "accents stripped, cased": Normalisation(False, True),
    "ideographs joined": Normalisation(True, True, False),
}


def trained(normalisation: Normalisation, max_word_characters: int = 100) -> Tokenizer:
    words, counts = count_words(pa.array(TEXTS * 2), normalisation)
    return Tokenizer(train(words, counts, 400)[0], normalisation, max_word_characters)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ends = pa.array([[len(text.encode())]], pa.list_(pa.uint32()))
    return tokenizer.encode(pa.array([text]), ends).ids.tolist()


@pytest.mark.parametrize("max_word_characters", [100, 8, 200])
@pytest.mark.parametrize("name", SETTINGS)
def test_transformers_encodes_as_we_do(tmp_path: Path, name: str, max_word_characters: int) -> None:
    tokenizer = trained(SETTINGS[name], max_word_characters)
    write_tokenizer(tmp_path, tokenizer, model_max_length=128)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        theirs = loaded(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]
        assert theirs == ids_of(tokenizer, text)
    row = loaded("The [MASK] of", "Hearts")
    tokens = loaded.convert_ids_to_tokens(row["input_ids"])
    assert tokens[0] == "[CLS]" and tokens.count("[MASK]") == 1 and tokens.count("[SEP]") == 2
    assert row["token_type_ids"][-1] == 1 and row["token_type_ids"][0] == 0
    assert loaded.model_max_length == 128
    assert [loaded.pad_token, loaded.unk_token, loaded.cls_token, loaded.sep_token,
            loaded.mask_token] == list(SPECIAL_TOKENS)  # fmt: skip
    assert len(loaded) == len(tokenizer.vocab)


@pytest.mark.parametrize("name", ["uncased", "cased", "chinese"])
def test_googles_vocabularies_go_through(tmp_path: Path, name: str) -> None:
    tokenizer = Tokenizer(google_vocab(name), Normalisation(name != "cased", name != "cased"))
    write_tokenizer(tmp_path, tokenizer, model_max_length=512)
    assert read_vocab((tmp_path / "vocab.txt").read_bytes()) == tokenizer.vocab
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    language = "chinese" if name == "chinese" else "english"
    for text in paragraphs(language, 20_000):
        theirs = loaded(text, split_special_tokens=True, add_special_tokens=False)["input_ids"]
        assert theirs == ids_of(tokenizer, text)
    assert loaded("[MASK]", add_special_tokens=False)["input_ids"] == [
        tokenizer.vocab.index("[MASK]")
    ]


def test_vocab_txt_alone_gives_the_same_ids(tmp_path: Path) -> None:
    tokenizer = trained(Normalisation())
    (tmp_path / "vocab.txt").write_bytes(vocab_bytes(tokenizer.vocab))
    loaded = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == {token: i for i, token in enumerate(tokenizer.vocab)}


def test_transformers_would_write_the_same_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = trained(Normalisation())
    files = tokenizer_files(tokenizer, 128)
    write_tokenizer(tmp_path, tokenizer, 128)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == files["tokenizer.json"]
    again = json.loads((tmp_path / "again" / "tokenizer_config.json").read_bytes())
    ours = json.loads(files["tokenizer_config.json"])
    assert {key: again.get(key) for key in ours} == ours


def test_tokenizers_reads_the_whole_pipeline() -> None:
    tokenizer = trained(Normalisation(False, False), max_word_characters=8)
    content = tokenizer_files(tokenizer, 128)["tokenizer.json"]
    loaded = tokenizers.Tokenizer.from_str(content.decode())
    assert loaded.to_str(pretty=True).encode() == content
    assert loaded.encode(TEXTS[1], add_special_tokens=False).ids == ids_of(tokenizer, TEXTS[1])


def test_no_word_of_bert_holds_a_line_end_or_white_space() -> None:
    for code in [*range(0x3100), *range(0xE000, 0x11000), *range(0xE0000, 0xE0200)]:
        for word in split_words(f"a{chr(code)}b", Normalisation(False, False)):
            assert word.split() == [word] and word.splitlines() == [word], hex(code)


def test_odd_tokens_come_back_or_are_refused() -> None:
    vocab = [*SPECIAL_TOKENS, "\u2028", "##\x85", "\u00a0", "\x0b", "é", "#", "##", "##\u0301"]
    assert read_vocab(vocab_bytes(vocab)) == vocab
    for token in ("", "a\nb", "a\r"):
        with pytest.raises(ValueError, match="token 1 is"):
            vocab_bytes(["a", token])


def test_vocab_txt_as_people_have_it() -> None:
    plain = vocab_bytes(["[PAD]", "é", "##c"])
    assert plain == "[PAD]\né\n##c\n".encode()
    for variant in (
        plain.replace(b"\n", b"\r\n"), plain.removesuffix(b"\n"), b"\xef\xbb\xbf" + plain,
    ):  # fmt: skip
        assert read_vocab(variant) == ["[PAD]", "é", "##c"]
    with pytest.raises(ValueError, match="line 3: 'a' stands in line 1"):
        read_vocab(b"a\nb\na\n")
    with pytest.raises(ValueError, match="line 2: empty"):
        read_vocab(b"a\n\nb\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_vocab(b"\xff\n")


def test_digest_follows_all_that_decides_ids() -> None:
    base = trained(Normalisation())
    swapped = [*base.vocab[:-2], base.vocab[-1], base.vocab[-2]]
    others = [
        Tokenizer(swapped, base.normalisation),
        Tokenizer(base.vocab, Normalisation(True, False)),
        Tokenizer(base.vocab, base.normalisation, 99),
    ]
    digests = {vocabulary_digest(t) for t in [base, *others]}
    assert len(digests) == 4
    assert vocabulary_digest(Tokenizer(base.vocab, base.normalisation)) in digests


def test_bytes_do_not_change() -> None:
    tokenizer = Tokenizer([*SPECIAL_TOKENS, "a", "##é", "中"], Normalisation())
    files = tokenizer_files(tokenizer, 512)
    digest = hashlib.sha256(b"".join(files[name] for name in sorted(files))).hexdigest()
    assert digest == "9b9b5017d01a6238c2c1ea2cc3b98420a14d4925d330d47248e5424ee6d3c561"


def test_a_vocabulary_without_berts_special_tokens_is_refused() -> None:
    tokenizer = Tokenizer(["[UNK]", "a"], Normalisation(), special_tokens=["[UNK]"])
    with pytest.raises(ValueError, match=r"\[PAD\] \[CLS\] \[SEP\] \[MASK\]"):
        tokenizer_files(tokenizer, 512)
