"""Where the entries of the vocabulary come from: training, or files that exist.

`plan` calls this: it reads small files and nothing else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pipeline.digest import json_digest
from pipeline.stage import RawInput, UserError
from stages.config import VocabConfig
from stages.text.existing import check_case, check_required, read_existing
from stages.text.words import Normalisation


@dataclass(frozen=True)
class VocabularySource:
    """How text is normalised, and the entries where they are given.

    Attributes:
        tokens: by id; None: to be trained.
        files: names of the files that the tokens come from.
    """

    normalisation: Normalisation
    max_word_characters: int
    tokens: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()


def vocabulary_source(config: VocabConfig, base: Path) -> VocabularySource:
    """What the config asks for; a relative `vocab.from` is from `base`.

    Raises:
        UserError: the files are no vocabulary for BERT or of another normalisation, or a required
            token can never come from text.
    """
    strip = config.lowercase if config.strip_accents is None else config.strip_accents
    normalisation = Normalisation(config.lowercase, strip, config.chinese_characters)
    if config.from_ is None:
        wrong = check_required(config.required, normalisation, config.max_word_characters)
        if wrong:
            raise UserError(f"vocab.required: {wrong}")
        return VocabularySource(normalisation, config.max_word_characters)
    try:
        found = read_existing(base / Path(config.from_).expanduser())
    except (ValueError, OSError) as error:
        raise UserError(f"vocab.from: {error}") from None
    if found.lowercase is None:
        wrong = check_case(found.tokens, normalisation)
        if wrong:
            raise UserError(
                f"vocab.from={config.from_}: {wrong}. Nothing beside it says how its text was "
                "normalised: set vocab.lowercase and vocab.strip_accents as they were"
            )
    return VocabularySource(
        found.normalisation(normalisation),
        found.max_word_characters or config.max_word_characters,
        found.tokens,
        found.files,
    )


def list_vocabulary(config: VocabConfig, base: Path) -> RawInput:
    """What is fingerprinted of an existing vocabulary: its content, not where it lies."""
    source = vocabulary_source(config, base)
    if source.tokens is None:
        return RawInput(entries=[], description="required tokens")
    entry = {
        "name": "vocabulary",
        "entries": len(source.tokens),
        "tokens": json_digest(list(source.tokens)),
        "max_word_characters": source.max_word_characters,
        **dataclasses.asdict(source.normalisation),
    }
    return RawInput([entry], f"{len(source.tokens):,} entries of {', '.join(source.files)}")
