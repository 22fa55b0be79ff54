"""google-research/bert's create_pretraining_data, as the wheel bert-tensorflow holds it."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers import Missing
from bench.peers.absent import Absent, stand_ins
from bench.peers.punkt import sentence_splitter

HOW = "pip install nltk absl-py six, then pip install --no-deps bert-tensorflow==1.0.4"

TEXT = "sentences.txt"
"""Name under which the code finds the text; no such file is made."""


class Google:
    """`create_training_instances` on one sentence a line, made by Punkt as its README advises."""

    name = "google-research/bert"
    about = (
        "bert-tensorflow 1.0.4: nltk's Punkt, then create_training_instances (its FullTokenizer, "
        "pairs, masks); no TensorFlow, nothing written"
    )

    def __init__(self, vocab_file: Path, texts: Sequence[str]) -> None:
        self._text = ""
        # TensorFlow is used to open the text and the vocabulary, and to write what came out.
        files = Absent("gfile")
        setattr(files, "GFile", self._open)  # noqa: B010 - mypy knows no such attribute
        try:
            from absl import flags

            tensorflow: dict[str, Any] = {"flags": flags, "gfile": files}
            names = {"tensorflow": {}, "tensorflow.compat": {}, "tensorflow.compat.v1": tensorflow}
            with stand_ins(names):
                from bert import create_pretraining_data, tokenization
            self._split = sentence_splitter(texts)
        except ImportError as error:
            raise Missing(f"{error.name or error} is not installed: {HOW}") from None
        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["bench"])
        create_pretraining_data.tf.gfile = tokenization.tf.gfile = files
        self._create = create_pretraining_data.create_training_instances
        self._tokenizer = tokenization.FullTokenizer(str(vocab_file), do_lower_case=True)

    def _open(self, name: str, mode: str) -> Any:
        return io.StringIO(self._text) if name == TEXT else Path(name).open(mode, encoding="utf-8")

    def __call__(self, texts: Sequence[str]) -> int:
        """Documents to masked instances; returns their number."""
        documents = []
        for text in texts:
            sentences = (" ".join(s.split()) for s in self._split(" ".join(text.split())))
            documents.append("\n".join(s for s in sentences if s))
        self._text = "\n\n".join(documents) + "\n"
        instances = self._create(
            [TEXT],
            self._tokenizer,
            max_seq_length=128,
            dupe_factor=1,
            short_seq_prob=0.1,
            masked_lm_prob=0.15,
            max_predictions_per_seq=20,
            rng=random.Random(12345),
        )
        return len(instances)
