"""A tokeniser as the files that `transformers` and `tokenizers` load.

All bytes are written here, so the same vocabulary gives the same files whatever is installed.
`transformers` 5 makes a BertTokenizer from the vocabulary in tokenizer.json and from the switches
in tokenizer_config.json. It ignores the normaliser in tokenizer.json, and the longest word there:
where that is not BERT's 100, the class is PreTrainedTokenizerFast, which takes the whole of
tokenizer.json and is told to give token_type_ids. `tokenizers` reads tokenizer.json alone, older
readers vocab.txt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.text.wordpiece import CONTINUATION, Tokenizer
from stages.text.words import Normalisation

VOCAB_FILE = "vocab.txt"
_ROLES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_BERT_MAX_WORD_CHARACTERS = 100


def tokenizer_files(tokenizer: Tokenizer, model_max_length: int) -> dict[str, bytes]:
    """The files of a tokeniser by name.

    In them [MASK] and its like are tokens even in text, as people expect of a loaded tokeniser.

    Args:
        tokenizer: holds the vocabulary and how text is normalised.
        model_max_length: tokens a row at most (the model's position table).

    Raises:
        ValueError: a token that would not come back from vocab.txt, or a special token missing.
    """
    missing = [token for token in _ROLES.values() if token not in tokenizer.special_tokens]
    if missing:
        raise ValueError(f"BERT's special tokens {' '.join(missing)} are not among the tokeniser's")
    return {
        VOCAB_FILE: vocab_bytes(tokenizer.vocab),
        "tokenizer.json": _json(_pipeline(tokenizer)).rstrip(b"\n"),
        "tokenizer_config.json": _json(_config(tokenizer, model_max_length)),
    }


def write_tokenizer(folder: Path, tokenizer: Tokenizer, model_max_length: int) -> None:
    """Write the files of a tokeniser into an existing folder."""
    for name, content in tokenizer_files(tokenizer, model_max_length).items():
        (folder / name).write_bytes(content)


def vocab_bytes(vocab: Sequence[str]) -> bytes:
    r"""vocab.txt: a token a line, its id is the number of lines before it.

    Raises:
        ValueError: a token that is empty or holds a line end. Words of BERT hold neither: its
            normaliser removes or cuts at every such character. U+2028 and NEL end no line of a
            file (bert-base-chinese has U+2028 as a token).
    """
    for index, token in enumerate(vocab):
        if not token or "\n" in token or "\r" in token:
            raise ValueError(f"token {index} is {token!r}: vocab.txt cannot hold it")
    return "".join(f"{token}\n" for token in vocab).encode()


def read_vocab(content: bytes) -> list[str]:
    """The tokens of a vocab.txt, by id. Takes CRLF, a byte order mark and a missing last line end.

    Raises:
        ValueError: not UTF-8, an empty line inside, or a token that stands twice.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"vocab.txt is not UTF-8: {error}") from error
    tokens = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if "" not in tokens and len(set(tokens)) == len(tokens):
        return tokens
    seen: dict[str, int] = {}
    for line, token in enumerate(tokens, start=1):
        if not token:
            raise ValueError(f"vocab.txt, line {line}: empty")
        if token in seen:
            raise ValueError(f"vocab.txt, line {line}: {token!r} stands in line {seen[token]} too")
        seen[token] = line
    return tokens


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """SHA-256 (hex) over all that decides ids: tokens, normalisation, longest word."""
    content = {
        "tokens": tokenizer.vocab,
        "normalisation": _normalisation(tokenizer.normalisation),
        "max_word_characters": tokenizer.max_word_characters,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _normalisation(normalisation: Normalisation) -> dict[str, bool]:
    return {
        "lowercase": normalisation.lowercase,
        "strip_accents": normalisation.strip_accents,
        "chinese_characters": normalisation.chinese_characters,
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def _config(tokenizer: Tokenizer, model_max_length: int) -> dict[str, Any]:
    """tokenizer_config.json, keys in the order in which `transformers` sorts them."""
    config: dict[str, Any] = {
        "backend": "tokenizers",
        **_ROLES,
        "do_lower_case": tokenizer.normalisation.lowercase,
        "model_max_length": model_max_length,
        "strip_accents": tokenizer.normalisation.strip_accents,
        "tokenize_chinese_chars": tokenizer.normalisation.chinese_characters,
        "tokenizer_class": "BertTokenizer",
    }
    if tokenizer.max_word_characters != _BERT_MAX_WORD_CHARACTERS:
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return dict(sorted(config.items()))


def _pipeline(tokenizer: Tokenizer) -> dict[str, Any]:
    """tokenizer.json: the whole pipeline as `tokenizers` stores it (format 1.0)."""
    ids = {token: index for index, token in enumerate(tokenizer.vocab)}
    added = sorted(ids[token] for token in tokenizer.special_tokens)
    a, b = _piece("Sequence", "A", 0), _piece("Sequence", "B", 1)
    cls, sep = _ROLES["cls_token"], _ROLES["sep_token"]
    single = [_piece("SpecialToken", cls, 0), a, _piece("SpecialToken", sep, 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": tokenizer.vocab[index],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index in added
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": tokenizer.normalisation.chinese_characters,
            "strip_accents": tokenizer.normalisation.strip_accents,
            "lowercase": tokenizer.normalisation.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, b, _piece("SpecialToken", sep, 1)],
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (cls, sep)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": _ROLES["unk_token"],
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": tokenizer.max_word_characters,
            "vocab": ids,
        },
    }


def _piece(kind: str, name: str, type_id: int) -> dict[str, Any]:
    """One item of a template of rows."""
    return {kind: {"id": name, "type_id": type_id}}
