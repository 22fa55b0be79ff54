"""Stage pairs: shards and a vocabulary -> rows `[CLS] A [SEP] B [SEP]`, or full sentences.

One job a shard and copy: tokenise, plan over integers, gather. Partners never leave the shard,
which is a random sample of the corpus; training and validation shards never meet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.stage import Context, Result
from pipeline.store import Artifact, ArtifactWriter
from stages.config import ObjectiveConfig, PairsConfig
from stages.memory import give_back
from stages.pairs_report import pairs_result, shard_figures
from stages.parallel import JobFailed, Record, run_jobs
from stages.tables import LABELS, PAIR_KEY, ROW_GROUP_ROWS, shard_files, write_table
from stages.text.engines import EngineFailed
from stages.text.full_sentences import SentencePlan, full_sentences
from stages.text.pairing import NoPairsError, PairPlan, Sentences, make_pairs
from stages.text.parity import Wanted, choose_engine, sample
from stages.text.random import Stream
from stages.text.rows import gather, id_dtype, looked_up
from stages.text.tokenizer_files import vocabulary_digest
from stages.text.wordpiece import Encoded, joined
from stages.vocabulary_files import DIGEST_KEY, load_tokenizer

GATHER_ROWS = 16_384
LARGE_SHARD_BYTES = 32_000_000
SAMPLES = 4
NOTABLE_UNUSED_SHARE = 0.2
"""More tokens than this without a partner are worth a word to the person who runs it."""


def part_name(shard: str, copy: int) -> str:
    """ "train-00003.parquet", copy 1 -> "train-c1-00003.parquet"."""
    split, _, number = shard.partition("-")
    return f"{split}-c{copy}-{number}"


def run(context: Context) -> Result:
    """Make the rows of all shards and copies that are not there yet."""
    config = PairsConfig.model_validate(context.node.config["pairs"])
    objective = ObjectiveConfig.model_validate(context.node.config["objective"])
    shard = context.inputs["shard"]
    wanted: list[Record] = []
    for name in shard_files(shard, "train"):
        wanted += [{"shard": name, "copy": copy} for copy in range(config.copies)]
    # One pass over held-out text is enough: it is never trained on.
    wanted += [{"shard": name, "copy": 0} for name in shard_files(shard, "validation")]
    finished = context.output.finished()
    jobs = [job for job in wanted if part_name(job["shard"], job["copy"]) not in finished]
    context.progress.start(len(wanted), "shards", done=len(wanted) - len(jobs))
    arguments = {
        "shard": shard,
        "vocab": context.inputs["vocab"],
        "output": context.output,
        "config": config,
        "objective": objective,
        "seed": context.node.config["seeds"]["pairs"],
        "engine": context.node.settings["speed"]["tokenizer"],
    }
    noted: set[str] = set()
    for record in run_jobs(context, "stages.pairs:PairMaker", arguments, jobs):
        context.progress.advance(1)
        for note in record["notes"]:
            # Once an engine, not once a shard: `figures` says how many shards each engine took.
            subject = note.partition(":")[0]
            if subject not in noted:
                context.progress.note(note)
            noted.add(subject)
    made = context.output.finished()
    parts = {name: dict(part.figures) for name, part in made.items()}
    sizes = sum(part.size for part in made.values())
    result = pairs_result(parts, objective, config, sizes)
    unused = result.counts.get("no_partner", 0) / max(1, result.counts["in"])
    if unused > NOTABLE_UNUSED_SHARE:
        context.progress.note(
            f"{100 * unused:.0f} % of the tokens found no partner of like length from another "
            "document and are not used: a few documents dominate. More documents, "
            "pairs.balance=reference or objective.nsp=false would use them"
        )
    return result


class PairMaker:
    """Tokenises a shard, plans its pairs and writes its rows."""

    def __init__(
        self,
        shard: Artifact,
        vocab: Artifact,
        output: ArtifactWriter,
        config: PairsConfig,
        objective: ObjectiveConfig,
        seed: int,
        engine: Wanted = "auto",
    ) -> None:
        self._shard = shard
        self._output = output
        self._config = config
        self._objective = objective
        self._seed = seed
        self._engine = engine
        self._tokenizer = load_tokenizer(vocab)
        self._metadata = {
            DIGEST_KEY: vocabulary_digest(self._tokenizer).encode(),
            PAIR_KEY: objective.pair.encode(),
        }

    def __call__(self, job: Record) -> Record:
        """`job["shard"]`: name of the shard's file; `job["copy"]`: number of the pass."""
        name, copy = job["shard"], job["copy"]
        began = time.perf_counter()
        notes: list[str] = []
        encoded, documents, size = self._tokenise(name, notes)
        # What one step freed is not kept beside what the next one needs. Of a small shard it is
        # little, and fetching it again costs more than it is worth.
        is_large = size >= LARGE_SHARD_BYTES
        if is_large:
            give_back()
        tokenised = time.perf_counter()
        plan = self._plan(name, copy, encoded, documents)
        planned = time.perf_counter()
        figures = shard_figures(plan, encoded)
        figures |= {
            "bytes/in": size,
            "engine": self._tokenizer.engine,
            "seconds/tokenise": tokenised - began,
            "seconds/pair": planned - tokenised,
        }
        part = write_table(
            self._output,
            part_name(name, copy),
            self._rows(name, encoded, plan, documents, figures),
            figures,
            row_group_rows=ROW_GROUP_ROWS,
            byte_stream_split=("input_ids.list.element",),
        )
        if is_large:
            del encoded, plan
            give_back()
        return {"rows": part.rows, "notes": notes}

    def _tokenise(self, name: str, notes: list[str]) -> tuple[Encoded, pa.Array, int]:
        """A shard's tokens, its documents' hashes, and bytes of text; holds a row group's text."""
        parts: list[Encoded] = []
        documents: list[pa.Array] = []
        size = 0
        with self._shard.open(name) as source, pq.ParquetFile(source) as file:
            kind = file.schema_arrow.field("document").type
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["document", "text", "sentence_ends"])
                for batch in table.to_batches():
                    texts, ends = batch["text"], batch["sentence_ends"]
                    # A fast engine that differs anywhere is not used; the slow one defines ids.
                    notes += choose_engine(self._tokenizer, self._engine, sample(texts))
                    parts.append(self._encode(texts, ends, notes))
                    documents.append(batch["document"])
                    size += texts.nbytes
        hashes = pa.chunked_array(documents, kind).combine_chunks()
        return joined(parts, id_dtype(len(self._tokenizer.vocab))), hashes, size

    def _encode(self, texts: pa.Array, ends: pa.Array, notes: list[str]) -> Encoded:
        try:
            return self._tokenizer.encode(texts, ends)
        except EngineFailed as error:
            notes.append(f"tokeniser {self._tokenizer.engine} is not used: {error}")
            self._tokenizer.engine = "dictionary"
            return self._tokenizer.encode(texts, ends)

    def _plan(
        self, name: str, copy: int, encoded: Encoded, documents: pa.Array
    ) -> PairPlan | SentencePlan:
        sentences = Sentences(
            lengths=np.diff(encoded.sentence_offsets),
            documents=encoded.document_offsets,
            origins=documents.dictionary_encode().indices.to_numpy().astype(np.int64),
            word_starts=looked_up(~self._tokenizer.is_continuation, encoded.ids),
        )
        stream = Stream(self._seed, "pairs", name, copy)
        config = self._config
        try:
            if not self._objective.nsp:
                return full_sentences(
                    sentences,
                    max_seq_length=config.max_seq_length,
                    stream=stream,
                    across_documents=config.across_documents,
                )
            return make_pairs(
                sentences,
                max_seq_length=config.max_seq_length,
                stream=stream,
                task=self._objective.pair,
                balance=config.balance,
                short_sequence_probability=config.short_sequence_probability,
            )
        except NoPairsError as error:
            raise JobFailed(f"shard {name}: {error}") from None

    def _rows(
        self,
        name: str,
        encoded: Encoded,
        plan: PairPlan | SentencePlan,
        documents: pa.Array,
        figures: dict[str, Any],
    ) -> Iterator[pa.Table]:
        ids = self._tokenizer.vocab.index
        cls_id, sep_id = ids("[CLS]"), ids("[SEP]")
        seconds = {"gather": 0.0, "write": 0.0}
        figures["samples"] = []
        for low in range(0, len(plan), GATHER_ROWS):
            began = time.perf_counter()
            table = gather(
                encoded.ids,
                plan,
                documents,
                cls_id=cls_id,
                sep_id=sep_id,
                vocabulary_size=len(self._tokenizer.vocab),
                rows=slice(low, low + GATHER_ROWS),
            ).replace_schema_metadata(self._metadata)
            if low == 0 and name.startswith("train-00000"):
                figures["samples"] = self._decode(table.slice(0, SAMPLES))
            gathered = time.perf_counter()
            yield table
            seconds["gather"] += gathered - began
            seconds["write"] += time.perf_counter() - gathered
        figures |= {f"seconds/{step}": value for step, value in seconds.items()}

    def _decode(self, rows: pa.Table) -> list[str]:
        vocab = self._tokenizer.vocab
        out = []
        for row in rows.to_pylist():
            tokens = [vocab[i] for i in row["input_ids"]]
            end = row["a_length"] + 1
            a, b = (" ".join(t).replace(" ##", "") for t in (tokens[1:end], tokens[end + 1 : -1]))
            label = LABELS[self._objective.pair].get(row["is_next"])
            out.append(a if label is None else f"{label}\nA: {a}\nB: {b}")
        return out
