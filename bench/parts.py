"""The parts of the measurement as they are called in their processes: JSON in, JSON out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.settings import Settings


def prepare(argument: Mapping[str, Any]) -> dict[str, Any]:
    """The base text, and a vocabulary unless one is given."""
    from bench import documents

    settings = _settings(argument)
    texts = documents.load(settings)
    size = documents.write_lines(settings.documents, texts)
    entries = 0
    if not settings.vocab:
        entries = _train(settings, texts)
    return {"megabytes": size / 1e6, "documents": len(texts), "entries": entries}


def _train(settings: Settings, texts: list[str]) -> int:
    import pyarrow as pa

    from bench.words import SIZE
    from stages.text.vocabulary import train
    from stages.text.words import Normalisation, count_words

    words, counts = count_words(pa.array(texts, pa.large_string()), Normalisation())
    vocab, _ = train(words, counts, SIZE)
    settings.vocab_file.write_text("\n".join(vocab) + "\n", "utf-8")
    return len(vocab)


def chain(argument: Mapping[str, Any]) -> dict[str, Any]:
    """See `bench.chain`."""
    from bench import chain as part

    return part.measure(_settings(argument))


def kernels(argument: Mapping[str, Any]) -> dict[str, Any]:
    """See `bench.kernels`."""
    from bench import kernels as part

    return part.measure(_settings(argument))


def vocabulary(argument: Mapping[str, Any]) -> dict[str, Any]:
    """See `bench.words`."""
    from bench import words as part

    return part.measure(_settings(argument))


def stages(argument: Mapping[str, Any]) -> dict[str, Any]:
    """See `bench.stages`."""
    from bench import stages as part

    return part.measure(_settings(argument))


def memory(argument: Mapping[str, Any]) -> dict[str, Any]:
    """See `bench.stages`."""
    from bench import stages as part

    return part.measure_memory(_settings(argument))


def _settings(argument: Mapping[str, Any]) -> Settings:
    return Settings.from_json(json.dumps(argument))
