"""A vocabulary that is given, in the place of stage vocab, so that its training costs no time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.stage import Context, Node, Result, Stage
from stages.text.tokenizer_files import VOCAB_FILE, read_vocab, tokenizer_files
from stages.text.wordpiece import Tokenizer
from stages.text.words import Normalisation
from stages.vocabulary_files import SETTINGS

MODEL_MAX_LENGTH = 512

GIVEN = Stage(
    name="vocab",
    version=1,
    run="bench.given_vocabulary:run",
    modules=("bench.given_vocabulary",),
    needs_ray=False,
)


def run(context: Context) -> Result:
    """Write the files of a vocab artifact from a vocab.txt."""
    data = Path(context.node.settings["vocab_file"]).read_bytes()
    normalisation = Normalisation()
    tokenizer = Tokenizer(read_vocab(data), normalisation)
    for name, content in tokenizer_files(tokenizer, MODEL_MAX_LENGTH).items():
        rows = len(tokenizer.vocab) if name == VOCAB_FILE else None
        context.output.write_bytes(name, content, rows=rows)
    settings = dataclasses.asdict(normalisation) | {
        "max_word_characters": tokenizer.max_word_characters
    }
    context.output.write_bytes(SETTINGS, json.dumps(settings, sort_keys=True).encode())
    return Result(figures={"entries": len(tokenizer.vocab)}, flow="given")


def with_given_vocabulary(nodes: Sequence[Node], vocab_file: Path) -> list[Node]:
    """The nodes of a config, where `vocab` takes a vocabulary that is there."""
    digest = hashlib.sha256(vocab_file.read_bytes()).hexdigest()
    return [
        dataclasses.replace(
            node,
            stage=GIVEN,
            config={"vocab": {"sha256": digest}},
            settings={"vocab_file": str(vocab_file)},
        )
        if node.name == "vocab"
        else node
        for node in nodes
    ]
