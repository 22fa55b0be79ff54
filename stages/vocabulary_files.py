"""The vocab artifact as the other stages read it."""

from __future__ import annotations

import json

from pipeline.stage import StageError
from pipeline.store import Artifact
from stages.text.tokenizer_files import VOCAB_FILE, read_vocab
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation

SETTINGS = "normalisation.json"
DIGEST_KEY = b"clozeline.vocabulary"
"""Key in the schema metadata of pairs and masks: the digest of the vocabulary of their ids."""


def load_tokenizer(vocab: Artifact) -> Tokenizer:
    """The tokeniser of a vocab artifact; `[MASK]` in a text is letters and brackets to it."""
    settings = json.loads(vocab.read_bytes(SETTINGS))
    return Tokenizer(
        read_vocab(vocab.read_bytes(VOCAB_FILE)),
        Normalisation(
            lowercase=settings["lowercase"],
            strip_accents=settings["strip_accents"],
            chinese_characters=settings["chinese_characters"],
        ),
        max_word_characters=settings["max_word_characters"],
    )


def check_vocabulary(metadata: dict[bytes, bytes] | None, wanted: str, where: str) -> None:
    """Raise `StageError` when a file's ids are not of the vocabulary of digest `wanted`."""
    found = (metadata or {}).get(DIGEST_KEY, b"").decode()
    if found != wanted:
        raise StageError(
            f"{where} holds ids of another vocabulary (digest {found[:12] or 'missing'}, this one "
            f"is {wanted[:12]}): make it anew with --force"
        )
