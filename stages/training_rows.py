"""The artifact that holds a phase's training rows: of mask, or of pairs whose masks are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.stage import Json, StageError
from pipeline.store import Artifact
from stages.config import MaskConfig
from stages.mask_options import mask_options
from stages.tables import LABEL_COUNTS, PAIR_KEY, ROW_GROUPS, shard_files
from stages.text.tokenizer_files import VOCAB_FILE
from stages.text.wordpiece import Tokenizer
from stages.vocabulary_files import DIGEST_KEY

if TYPE_CHECKING:
    from stages.training.drawn_masks import DrawnMasks
    from stages.training.row_groups import Limits, ShardFile

BASELINE_TOKENS = 64_000_000
"""Of drawn masks so many tokens are masked once to count labels; shards are random samples."""


def training_rows(inputs: Mapping[str, Artifact]) -> Artifact:
    """The one of a node's inputs that holds training rows."""
    return inputs["mask"] if "mask" in inputs else inputs["pairs"]


def row_count(rows: Artifact) -> int:
    """Training rows of all copies; an artifact of pairs holds held-out ones too."""
    return sum(p.rows or 0 for name, p in rows.files().items() if name.startswith("train-"))


def drawn_masks(config: Mapping[str, Json], tokenizer: Tokenizer) -> DrawnMasks | None:
    """The masks to be drawn on a node's training rows; None where the rows are masked.

    Args:
        config: of the node; holds `mask` and `seeds.mask` where masks are to be drawn.
        tokenizer: of the rows' ids.

    Raises:
        StageError: `mask.never` holds what is no entry of the vocabulary.
    """
    if "mask" not in config:
        return None
    from stages.training.drawn_masks import DrawnMasks

    options = mask_options(MaskConfig.model_validate(config["mask"]), tokenizer)
    return DrawnMasks(options, config["seeds"]["mask"])


def indexed_copies(rows: Artifact) -> tuple[tuple[ShardFile, ...], ...]:
    """Training parts by copy, as the loader takes them: "train-c0m0-00000.parquet" (of pairs
    "train-c0-00000.parquet")... sorted by pass and mask, then number.
    """
    by_copy: dict[tuple[int, ...], list[ShardFile]] = {}
    parts = rows.files()
    for name in sorted(name for name in parts if name.startswith("train-")):
        pass_, _, mask_copy = name.split("-")[1][1:].partition("m")
        file = indexed_file(rows, name, parts[name].figures)
        by_copy.setdefault((int(pass_), int(mask_copy or 0)), []).append(file)
    return tuple(tuple(by_copy[copy]) for copy in sorted(by_copy))


def indexed_file(rows: Artifact, name: str, figures: Mapping[str, Json]) -> ShardFile:
    """A part with the rows of its row groups: from its record, or else from its footer."""
    from stages.training.row_groups import ShardFile, read_index

    path = f"{rows.data}/{name}"
    if ROW_GROUPS in figures:
        return ShardFile(path, tuple(figures[ROW_GROUPS]))
    return read_index(rows.fs, [path])[0]


def check_own_rows(inputs: Mapping[str, Artifact], vocabulary: str) -> None:
    """Look into one file of the node's training rows and one of its held-out rows.

    Fingerprints see to it that they are of the run's vocabulary; files that were changed or copied
    by hand are found here. Workers look into each file that they read.

    Args:
        inputs: of the node.
        vocabulary: digest of its vocabulary.

    Raises:
        StageError: they are of another one.
    """
    for rows, split in ((training_rows(inputs), "train"), (inputs["heldout"], "validation")):
        for name in shard_files(rows, split)[:1]:
            found = _metadata(rows, name).get(DIGEST_KEY, b"").decode()
            if found != vocabulary:
                raise StageError(
                    f"{rows.data}/{name} holds ids of another vocabulary (digest "
                    f"{found[:12] or 'missing'}) than {inputs['vocab'].data}/{VOCAB_FILE} (digest "
                    f"{vocabulary[:12]}): one of the two was changed or copied by hand after it "
                    "was made. Nothing was trained"
                )


def check_rows(rows: Artifact, vocabulary: str, pair: str | None) -> None:
    """Look into one file of rows that another run made.

    Args:
        rows: the artifact.
        vocabulary: digest of the vocabulary that its ids must be of.
        pair: what `is_next` must be about ("next_sentence"...); None: nothing is asked.

    Raises:
        StageError: its ids or labels are others.
    """
    names = shard_files(rows, "train")
    if not names:
        raise StageError(f"train.mix: {rows.path} holds no training rows")
    metadata = _metadata(rows, names[0])
    theirs = metadata.get(DIGEST_KEY, b"").decode()
    if theirs != vocabulary:
        raise StageError(
            f"train.mix: {rows.path} holds ids of another vocabulary (digest "
            f"{theirs[:12] or 'missing'}, this run's is {vocabulary[:12]}). Prepare those rows "
            "with this vocabulary: vocab.from=FOLDER of its vocab.txt"
        )
    found = metadata.get(PAIR_KEY, b"next_sentence").decode()
    if pair is not None and found != pair:
        raise StageError(
            f"train.mix: the labels of {rows.path} are of objective.pair={found}, this run learns "
            f"{pair}"
        )


def _metadata(rows: Artifact, name: str) -> dict[bytes, bytes]:
    with rows.open(name) as source:
        return pq.read_schema(source).metadata or {}


def label_counts(
    rows: Artifact, vocab_size: int, masks: DrawnMasks | None = None, limits: Limits | None = None
) -> NDArray[np.int64]:
    """[V] how often each id is a label in training: the unigram baseline.

    Args:
        rows: of stage mask; with `masks`, of pairs.
        vocab_size: V.
        masks: drawn here once, on the first `BASELINE_TOKENS` tokens at most.
        limits: checked on rows of pairs.
    """
    if masks is not None:
        from stages.training.row_groups import count_labels

        assert limits is not None
        files = indexed_copies(rows)[0]
        counted: NDArray[np.int64] = count_labels(rows.fs, files, limits, masks, BASELINE_TOKENS)
        return counted
    with rows.open(LABEL_COUNTS) as source:
        table = pq.read_table(source)
    counts = np.zeros(vocab_size, np.int64)
    counts[table["id"].to_numpy()] = table["count"].to_numpy()
    return counts
