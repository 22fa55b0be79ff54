"""A vocabulary that exists: a vocab.txt, a tokenizer.json or a folder as transformers writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stages.text.special_tokens import SPECIAL_TOKENS
from stages.text.tokenizer_files import VOCAB_FILE, read_vocab, vocab_bytes
from stages.text.wordpiece import CONTINUATION, UNKNOWN_TOKEN
from stages.text.words import Normalisation, normaliser, split_words

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
UNREACHABLE_SHARE = 0.1
"""More entries than this that no text can give: the normaliser is another vocabulary's."""


@dataclass(frozen=True)
class ExistingVocabulary:
    """What the files say; None where they say nothing.

    Attributes:
        tokens: by id.
        lowercase, strip_accents, chinese_characters: as `Normalisation`, but `strip_accents` may
            be None although the others are known: then it follows `lowercase`.
        max_word_characters: longer words become [UNK].
        files: names of the files that were read.
    """

    tokens: tuple[str, ...]
    lowercase: bool | None = None
    strip_accents: bool | None = None
    chinese_characters: bool | None = None
    max_word_characters: int | None = None
    files: tuple[str, ...] = ()

    def normalisation(self, otherwise: Normalisation) -> Normalisation:
        """As the files say, and where they say nothing about case as `otherwise` does."""
        if self.lowercase is None:
            return otherwise
        return Normalisation(
            lowercase=self.lowercase,
            strip_accents=self.lowercase if self.strip_accents is None else self.strip_accents,
            chinese_characters=self.chinese_characters is not False,
        )


def read_existing(path: Path) -> ExistingVocabulary:
    """Read a vocabulary and what stands beside it about the text.

    In a folder the entries come from tokenizer.json, or else from vocab.txt. Case, accents and
    ideographs are as tokenizer_config.json says where it speaks of case (so `transformers` reads
    it, too, unless the class is PreTrainedTokenizerFast), or else as tokenizer.json does.

    Raises:
        ValueError: no such files, files that are no WordPiece vocabulary of BERT's kind, special
            tokens missing, tokens twice, ids with gaps.
        OSError: a file cannot be read.
    """
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    folder = path if path.is_dir() else None
    named = [path] if folder is None else [folder / TOKENIZER_FILE, folder / VOCAB_FILE]
    there = [file for file in named if file.is_file()]
    if not there:
        raise ValueError(f"{path} holds neither {TOKENIZER_FILE} nor {VOCAB_FILE}")
    found = _read(there[0])
    if folder is not None and (folder / CONFIG_FILE).is_file():
        found = _with_config(found, _json(folder / CONFIG_FILE))
    missing = [token for token in (UNKNOWN_TOKEN, *SPECIAL_TOKENS) if token not in found.tokens]
    if missing:
        raise ValueError(
            f"{there[0]} lacks BERT's special tokens {' '.join(dict.fromkeys(missing))}"
        )
    try:
        vocab_bytes(found.tokens)
    except ValueError as error:
        raise ValueError(f"{there[0]}: {error}") from None
    return found


def _read(file: Path) -> ExistingVocabulary:
    if file.suffix != ".json":
        try:
            return ExistingVocabulary(tuple(read_vocab(file.read_bytes())), files=(file.name,))
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    content = _json(file)
    model, normal = content.get("model") or {}, content.get("normalizer")
    kinds = [
        (model.get("type", "WordPiece"), "WordPiece", "model"),
        (model.get("continuing_subword_prefix", CONTINUATION), CONTINUATION, "prefix"),
        (model.get("unk_token", UNKNOWN_TOKEN), UNKNOWN_TOKEN, "unknown token"),
        ((content.get("pre_tokenizer") or {}).get("type"), "BertPreTokenizer", "pre-tokeniser"),
        (
            "BertNormalizer" if normal is None else normal.get("type"),
            "BertNormalizer",
            "normaliser",
        ),
    ]
    for value, wanted, what in kinds:
        if value != wanted:
            raise ValueError(f"{file}: its {what} is {value}, and BERT's is {wanted}")
    found = ExistingVocabulary(
        _by_id(file, model.get("vocab"), content.get("added_tokens") or ()),
        max_word_characters=model.get("max_input_chars_per_word"),
        files=(file.name,),
    )
    if normal is None:
        return found
    return replace(
        found,
        lowercase=normal.get("lowercase", True),
        strip_accents=normal.get("strip_accents"),
        chinese_characters=normal.get("handle_chinese_chars", True),
    )


def _by_id(file: Path, vocab: Any, added: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    if not isinstance(vocab, dict):
        raise ValueError(f"{file}: model.vocab is no mapping of tokens to ids")
    ids = {**vocab, **{token["content"]: token["id"] for token in added}}
    by_id = {number: token for token, number in ids.items()}
    if len(by_id) < len(ids):
        raise ValueError(f"{file}: two tokens have one id")
    if set(by_id) != set(range(len(by_id))):
        gap = next(number for number in range(len(by_id)) if number not in by_id)
        raise ValueError(f"{file}: no token has the id {gap}")
    return tuple(by_id[number] for number in range(len(by_id)))


def _with_config(found: ExistingVocabulary, config: Mapping[str, Any]) -> ExistingVocabulary:
    """The same with what tokenizer_config.json says."""
    found = replace(found, files=(*found.files, CONFIG_FILE))
    whole = config.get("tokenizer_class") == "PreTrainedTokenizerFast"
    if "do_lower_case" not in config or (whole and found.lowercase is not None):
        return found
    return replace(
        found,
        lowercase=bool(config["do_lower_case"]),
        strip_accents=config.get("strip_accents"),
        chinese_characters=config.get("tokenize_chinese_chars", True) is not False,
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} is no JSON object")
    return content


def check_case(tokens: Sequence[str], normalisation: Normalisation) -> str:
    """Why entries and normalisation cannot belong together; "" when they may.

    A cased vocabulary under `lowercase` has entries that no text can give; an uncased one without
    it spells no capital letter.
    """
    reference = normaliser(normalisation)
    ordinary = [t for t in tokens if not (t.startswith("[") and t.endswith("]") and len(t) > 2)]
    bare = [token.removeprefix(CONTINUATION) for token in ordinary]
    never = [token for token in bare if reference.normalize_str(token).strip() != token]
    if len(never) > UNREACHABLE_SHARE * len(ordinary):
        return (
            f"{len(never):,} of its {len(ordinary):,} entries can never come from text under "
            f"{_said(normalisation)} (e.g. {never[len(never) // 2]!r})"
        )
    cased = any(token != token.lower() for token in bare)
    if not normalisation.lowercase and not cased and any(t != t.upper() for t in bare):
        return f"none of its {len(ordinary):,} entries holds a capital letter, but case is kept"
    return ""


def _said(normalisation: Normalisation) -> str:
    return (
        f"vocab.lowercase={str(normalisation.lowercase).lower()}, "
        f"vocab.strip_accents={str(normalisation.strip_accents).lower()}"
    )


def check_required(
    required: Sequence[str], normalisation: Normalisation, max_word_characters: int
) -> str:
    """Why a required token could never come from text; "" when all can."""
    for token in required:
        if token.startswith("[unused") and token.endswith("]"):
            continue
        inside = token.startswith(CONTINUATION) and token != CONTINUATION
        text = "a" + token.removeprefix(CONTINUATION) if inside else token
        words = split_words(text, normalisation)
        if words != [text]:
            shown = " ".join(words) or "nothing"
            made = shown.removeprefix("a") if inside else shown
            return (
                f"{token!r} can never come from text: under {_said(normalisation)} it is read as "
                f"{made!r}. Require a single word as it is after that"
            )
        if len(text) > max_word_characters:
            return f"{token!r} is longer than vocab.max_word_characters={max_word_characters}"
    return ""
