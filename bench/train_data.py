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

LENGTH = 128


def make(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Text to masked rows of `LENGTH` in one file: `argument["file"]`.

    Args:
        argument: "settings" of `bench.settings`, and "file".
    """
    settings = Settings.from_json(json.dumps(argument["settings"]))
    prepared = parts.prepare(argument["settings"])
    share = validation_share(prepared["documents"], prepared["megabytes"] * 1e6)
    store = settings.folder / "store"
    made = Chain(
        settings.documents, store, settings.vocab_file, f"corpus.validation_share={share}"
    )()
    shards = sorted((store / "mask" / str(LENGTH)).rglob("train-*.parquet"))
    entries = len(read_vocab(settings.vocab_file.read_bytes()))
    rows = save(shards, entries, Path(argument["file"]))
    return {"rows": rows, "tokens": made.tokens, "entries": entries}
