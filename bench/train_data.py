"""Examples for `clozeline bench train`, made of text by our own chain in one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import parts
from bench.serial import Chain, validation_share
from bench.settings import Settings
from bench.train_examples import save
from stages.text.tokenizer_files import read_vocab


def make(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Text to masked rows, of each length in a file of their own.

    Args:
        argument: "settings" of `bench.settings`, and "files": a list of [length, file].

    Returns:
        "rows": a list of [length, rows]; and "entries", the size of the vocabulary.
    """
    settings = Settings.from_json(json.dumps(argument["settings"]))
    prepared = parts.prepare(argument["settings"])
    share = validation_share(prepared["documents"], prepared["megabytes"] * 1e6)
    entries = len(read_vocab(settings.vocab_file.read_bytes()))
    rows = []
    for length, file in argument["files"]:
        store = settings.folder / f"store-{length}"
        words = (f"corpus.validation_share={share}", f"pairs.max_seq_length={length}")
        Chain(settings.documents, store, settings.vocab_file, *words, length=length)()
        shards = sorted((store / "mask" / str(length)).rglob("train-*.parquet"))
        rows.append([length, save(shards, entries, Path(file))])
    return {"rows": rows, "entries": entries}
