"""Lists the corpus for `plan`: names, sizes and times. Reads nothing, imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from pipeline.stage import RawInput, UserError
from stages.config import CorpusConfig
from stages.text.listing import DocsListing, FileListing, InputNotFound, list_files
from stages.text.python_docs import list_python_docs


def corpus_listing(corpus: CorpusConfig, base: Path) -> FileListing | DocsListing:
    """What the corpus consists of; relative paths are from `base`.

    Raises:
        UserError: it is not there, or holds nothing readable.
    """
    try:
        if corpus.kind == "python_docs":
            return list_python_docs(corpus.distributions)
        return list_files(corpus.paths, base, corpus.format)
    except InputNotFound as error:
        raise UserError(str(error)) from None


def list_corpus(corpus: CorpusConfig, base: Path) -> RawInput:
    """The listing as it is fingerprinted."""
    listing = corpus_listing(corpus, base)
    return RawInput(entries=listing.fingerprint_entries(), description=listing.description())
