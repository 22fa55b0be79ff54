"""Lists the corpus for `plan`: names, sizes and times. Reads nothing, imports nothing heavy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pipeline.stage import RawInput, UserError
from stages.corpus_config import CorpusConfig, SourceConfig
from stages.text.find_files import list_files
from stages.text.listing import (
    DocsListing,
    FileListing,
    InputNotFound,
    MixedListing,
    SourceOptions,
)
from stages.text.python_docs import list_python_docs


def corpus_listing(corpus: CorpusConfig, base: Path) -> MixedListing | DocsListing:
    """What the corpus consists of; relative paths are from `base`.

    Raises:
        UserError: it is not there, or holds nothing readable.
    """
    if corpus.kind == "python_docs":
        options = SourceOptions(sample=corpus.sample, repeat=corpus.repeat)
        return dataclasses.replace(list_python_docs(corpus.distributions), source=options)
    return MixedListing(tuple(_source_listing(s, base) for s in corpus.resolved_sources()))


def _source_listing(source: SourceConfig, base: Path) -> FileListing:
    given = source.model_dump(exclude={"paths"})
    values: dict[str, Any] = {k: "" if v is None else v for k, v in given.items()}
    options = SourceOptions(**values)
    try:
        listing = list_files(source.paths, base, options.format)
    except InputNotFound as error:
        where = f"corpus.sources {source.name}: " if source.name else ""
        raise UserError(f"{where}{error}") from None
    return dataclasses.replace(listing, source=options)


def list_corpus(corpus: CorpusConfig, base: Path) -> RawInput:
    """The listing as it is fingerprinted."""
    listing = corpus_listing(corpus, base)
    return RawInput(entries=listing.fingerprint_entries(), description=listing.description())
