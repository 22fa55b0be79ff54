"""An exported folder used without any code of ours, in a process that cannot import any.

    python -I bench/peers/exported.py JOB.json RESULT.json

The job says the folder, its objective, the rows and the lengths; the result holds, by
"transformers" and by "onnxruntime", what each says of each row, the token ids it read and its
logits. The recipes are those of the documentation of transformers: softmax of logits; the tag of a
word is that of its first piece; an answer is the span of the context with the largest sum of a
start and an end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from tokenizers import Tokenizer

MODELS = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "answers": "AutoModelForQuestionAnswering",
}
ROWS_A_BATCH = 8

Row = dict[str, Any]
Read = dict[str, Any]
"""Of a row: "ids", "words" (of each piece, or None), "segments" (1: the context), "offsets"."""


def main(job_file: str, result_file: str) -> None:
    """Ask both."""
    job = json.loads(Path(job_file).read_text("utf-8"))
    found = {"transformers": by_transformers(job), "onnxruntime": by_onnxruntime(job)}
    Path(result_file).write_text(json.dumps(found), "utf-8")


def by_transformers(job: Row) -> list[Row]:
    """AutoTokenizer and AutoModelFor..., padded batches."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"])
    model_class = getattr(transformers, MODELS[job["objective"]])
    model = model_class.from_pretrained(job["folder"]).eval()
    labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
    found = []
    for rows in batches(job["rows"]):
        firsts, seconds = zip(*map(texts, rows), strict=True)
        batch = tokenizer(
            list(firsts),
            None if seconds[0] is None else list(seconds),
            is_split_into_words="words" in rows[0],
            truncation="only_second" if job["objective"] == "answers" else True,
            max_length=job["max_length"],
            padding=True,
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        places = batch.pop("offset_mapping").tolist()
        with torch.inference_mode():
            out = model(**batch)
        if job["objective"] == "answers":
            logits = torch.stack([out.start_logits, out.end_logits], dim=-1).numpy()
        else:
            logits = out.logits.numpy()
        ids, counts = batch["input_ids"].tolist(), batch["attention_mask"].sum(1).tolist()
        for i, (row, n) in enumerate(zip(rows, counts, strict=True)):
            read = {"ids": ids[i][:n], "words": batch.word_ids(i)[:n], "offsets": places[i][:n]}
            read["segments"] = batch.sequence_ids(i)[:n]
            found.append(answered(job, labels, row, read, logits[i]))
    return found


def by_onnxruntime(job: Row) -> list[Row]:
    """model.onnx and tokenizer.json; labels as the ONNX file says them."""
    folder = Path(job["folder"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    cut = "only_second" if job["objective"] == "answers" else "longest_first"
    tokenizer.enable_truncation(job["max_length"], strategy=cut)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
    found = []
    for rows in batches(job["rows"]):
        asked = [first if second is None else (first, second) for first, second in map(texts, rows)]
        encoded = tokenizer.encode_batch(asked, is_pretokenized="words" in rows[0])
        feed = {
            "input_ids": np.array([e.ids for e in encoded], np.int64),
            "attention_mask": np.array([e.attention_mask for e in encoded], np.int64),
            "token_type_ids": np.array([e.type_ids for e in encoded], np.int64),
        }
        if job["objective"] == "answers":
            logits = np.stack(session.run(["start_logits", "end_logits"], feed), axis=-1)
        else:
            (logits,) = session.run(["logits"], feed)
        for row, e, scores in zip(rows, encoded, logits, strict=True):
            n = sum(e.attention_mask)
            read = {"ids": e.ids[:n], "words": e.word_ids[:n], "offsets": e.offsets[:n]}
            read["segments"] = e.sequence_ids[:n]
            found.append(answered(job, labels, row, read, scores))
    return found


def batches(rows: list[Row]) -> list[list[Row]]:
    """Neighbours, whatever their lengths: most are padded."""
    return [rows[i : i + ROWS_A_BATCH] for i in range(0, len(rows), ROWS_A_BATCH)]


def texts(row: Row) -> tuple[Any, Any]:
    """What a tokenizer takes: a text or words, and a second text or None."""
    if "question" in row:
        return row["question"], row["context"]
    return row.get("words") or row["text"], row.get("text_b")


def answered(job: Row, labels: list[str], row: Row, read: Read, logits: Any) -> Row:
    """What is said of a row, under the keys that `clozeline predict` has."""
    objective = job["objective"]
    if objective in ("classification", "regression"):
        scores = logits.astype(np.float64)
    else:
        scores = logits[: len(read["ids"])].astype(np.float64)
    result: Row
    if objective == "classification":
        result = classified(labels, scores)
    elif objective == "regression":
        result = {"value": float(scores[0])}
    elif objective == "tagging":
        result = {"words": tagged(labels, row, read, scores)}
    else:
        result = span(row, read, scores, job["max_answer_length"])
    return {"result": result, "ids": read["ids"], "logits": scores.tolist()}


def softmax(logits: Any) -> Any:
    """Over the first axis."""
    powers = np.exp(logits - logits.max(0))
    return powers / powers.sum(0)


def classified(labels: list[str], logits: Any) -> Row:
    """The likeliest class, and the probability of each."""
    shares = softmax(logits)
    scores = dict(zip(labels, shares.tolist(), strict=True))
    return {"label": labels[int(shares.argmax())], "score": float(shares.max()), "scores": scores}


def tagged(labels: list[str], row: Row, read: Read, logits: Any) -> list[Row]:
    """The tag of each word's first piece; of a word without any piece "O" and no score."""
    found = [{"word": word, "tag": "O", "score": None} for word in row["words"]]
    before = None
    for word, scores in zip(read["words"], logits, strict=True):
        if word is not None and word != before:
            shares = softmax(scores)
            found[word] |= {"tag": labels[int(shares.argmax())], "score": float(shares.max())}
        before = word
    return found


def span(row: Row, read: Read, logits: Any, longest: int) -> Row:
    """The best span of the context; its probability among [CLS] and the context's pieces."""
    context = np.array([segment == 1 for segment in read["segments"]])
    sums = logits[:, 0][:, None] + logits[:, 1][None, :]
    allowed = np.triu(np.ones_like(sums, bool)) & ~np.triu(np.ones_like(sums, bool), longest)
    sums[~(allowed & context[:, None] & context[None, :])] = -np.inf
    first, last = np.unravel_index(sums.argmax(), sums.shape)
    counted = context.copy()
    counted[0] = True
    masked = np.where(counted[:, None], logits, -np.inf)
    shares = softmax(masked)
    start, end = read["offsets"][first][0], read["offsets"][last][1]
    return {
        "answer": row["context"][start:end],
        "start": start,
        "end": end,
        "score": float(shares[first, 0] * shares[last, 1]),
        "null_margin": float(logits[0].sum() - sums[first, last]),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
