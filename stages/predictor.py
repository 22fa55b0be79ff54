"""Predictions of a model for plain rows: what is served, logged and printed.

Rows come in and results go out in their order, a chunk of about a million characters at a time, so
that memory does not grow with their number. A text of any length is tagged or answered from through
windows; for the other uses it loses its end, which the result says ("truncated").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.task_heads import BertForTask
from pipeline.stage import StageError, UserError
from stages.prediction_answers import answer_results
from stages.prediction_masks import MaskedTexts
from stages.prediction_models import Loaded, PredictionTask, data_folder, load_model
from stages.prediction_rows import Do, TextRow, Unusable, read_row, size
from stages.prediction_tags import Tagged
from stages.prediction_uses import check_use
from stages.text.task_answers import fill_class, stitched
from stages.text.task_pieces import Features, chunks, encode_texts, sequence_features
from stages.text.task_spans import span_features
from stages.text.task_words import Words, word_features
from stages.text.tasks.rows import SequenceRow, SpanRow, TokenRow
from stages.text.text_words import TextWords
from stages.training.device import Precision, apply, place, this_machine
from stages.training.examples import Ragged
from stages.training.scoring import Float32s, Forward, Sequences

Result = dict[str, Any]
Output = Result | Tagged | Unusable

DIGITS = 6
"""Of scores; those of vectors have one more."""


class Predictor:
    """A model that predicts from plain rows.

    Attributes:
        folder: where it was loaded from.
        task: what it is for.
        tokenizer: special tokens written in a text are characters to it.
        notices: what a person should know, a line each.
    """

    def __init__(
        self, folder: Path, loaded: Loaded, forward: Forward, notices: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.task: PredictionTask = loaded.task
        self.tokenizer = loaded.tokenizer
        self.notices = tuple(notices)
        self._loaded = loaded
        self._forward = forward

    @staticmethod
    def load(
        folder: Path | str,
        device: str = "auto",
        precision: Precision = "float32",
        micro_batch_tokens: int = 8192,
    ) -> Predictor:
        """Load a model.

        Args:
            folder: see `stages.prediction_models.load_model`.
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".
            precision: of matrix products; weights stay float32.
            micro_batch_tokens: tokens that go through the model at once.

        Raises:
            UserError: no model that can be used, a device that is not there.
        """
        try:
            placement = place(device, precision, this_machine())
        except ValueError as error:
            raise UserError(str(error)) from None
        loaded = load_model(Path(folder))
        where = str(apply(placement))
        forward = Forward(loaded.model, where, precision, micro_batch_tokens)
        return Predictor(data_folder(Path(folder)), loaded, forward, placement.notices)

    @property
    def device(self) -> str:
        """Where it computes, as `torch.device` names it."""
        return self._forward.device

    def classify(self, texts: Sequence[str]) -> list[Result]:
        """{"label", "score", "scores": {label: p}, "truncated"}, or {"value", "truncated"}."""
        return self._all("classify", ({"text": text} for text in texts))

    def pair(self, pairs: Sequence[tuple[str, str]]) -> list[Result]:
        """As `classify`, of two texts."""
        return self._all("pair", ({"text": a, "text_b": b} for a, b in pairs))

    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[Result]:
        """{"words": [{"word", "start", "end", "tag", "score"}], "entities": [{"type", "text",
        "start", "end", "score"}]} of texts, or of lists of words."""
        keys = ("text" if isinstance(text, str) else "words" for text in texts)
        return self._all("tag", ({key: text} for key, text in zip(keys, texts, strict=True)))

    def answer(self, questions: Sequence[tuple[str, str]], top: int = 1) -> list[Result]:
        """{"answer", "start", "end", "score", "null_margin", "truncated"} of (question, context).

        `answer` is `context[start:end]`; null where there is none. `score` is the probability of
        its start times that of its end, in the window that shows it best. `null_margin`: how much
        better no answer is, as logits. With `top` above 1 the best ones stand under "answers".
        """
        rows = ({"question": question, "context": context} for question, context in questions)
        return self._all("answer", rows, top=top)

    def embed(self, texts: Sequence[str], normalise: bool = False) -> list[Result]:
        """{"vector", "truncated"}: the mean of the last layer over all tokens.

        Args:
            texts: any number.
            normalise: to length 1.
        """
        rows = ({"text": text} for text in texts)
        return self._all("embed", rows, normalise=normalise)

    def fill_mask(self, texts: Sequence[str], top: int = 5) -> list[Result]:
        """{"masks": [{"start", "end", "tokens": [{"token", "score"}]}], "filled", "truncated"}.

        `[MASK]` in a text is the token; special tokens are never offered. `filled` is the text with
        the best ones.
        """
        return self._all("fill_mask", ({"text": text} for text in texts), top=top)

    def predict(
        self, rows: Iterable[Mapping[str, Any]], do: Do | None = None, **options: Any
    ) -> Iterator[Result]:
        """Results of rows, one each and in their order, as JSON values.

        Args:
            rows: keys `text`, `text_b`, `words`, `question`, `context`, as the task needs them.
            do: what is asked; None: what the model is for.
            options: `top` or `normalise`, as of the methods.

        Yields:
            What the method gives; {"unusable": reason, "detail"} of a row that cannot be read.

        Raises:
            UserError: the model is for something else.
            StageError: its scores are not finite numbers.
        """
        return map(plain, self.outputs(rows, do, **options))

    def outputs(
        self,
        rows: Iterable[Mapping[str, Any] | Unusable],
        do: Do | None = None,
        top: int | None = None,
        normalise: bool = False,
    ) -> Iterator[Output]:
        """As `predict`, with `Tagged` and `Unusable` as they are, also those that come in."""
        wanted = check_use(self.folder, self._loaded, do)
        return self._outputs(rows, wanted, top, normalise)

    def _all(self, do: Do, rows: Iterable[Mapping[str, Any]], **options: Any) -> list[Result]:
        return list(self.predict(rows, do, **options))

    def _outputs(
        self,
        rows: Iterable[Mapping[str, Any] | Unusable],
        do: Do,
        top: int | None,
        normalise: bool,
    ) -> Iterator[Output]:
        read = (row if isinstance(row, Unusable) else read_row(row, do) for row in rows)
        for chunk in chunks(read, lambda row: 0 if isinstance(row, Unusable) else size(row)):
            usable = [row for row in chunk if not isinstance(row, Unusable)]
            results = self._chunk(usable, do, top, normalise)
            for row in chunk:
                yield row if isinstance(row, Unusable) else next(results)

    def _chunk(self, rows: list[Any], do: Do, top: int | None, normalise: bool) -> Iterator[Output]:
        if not rows:
            return iter(())
        if do == "tag":
            return self._tagged(rows)
        if do == "answer":
            return self._answered(rows, top or 1)
        if do == "embed":
            return self._embedded(rows, normalise)
        if do == "fill_mask":
            return self._filled(rows, top or 5)
        return self._classified(rows)

    def _classified(self, rows: list[SequenceRow]) -> Iterator[Result]:
        first = 0
        for features in sequence_features(rows, self.tokenizer, self.task.max_length, ()):
            logits = self._scores(features)
            part = rows[first : first + len(features)]
            first += len(features)
            cut = self._truncated(part, features, self.task.max_length)
            if self.task.objective == "regression":
                for value, truncated in zip(logits[:, 0].tolist(), cut, strict=True):
                    yield {"value": round(value, DIGITS), "truncated": truncated}
                continue
            shares = _softmax(logits)
            best = shares.argmax(1)
            for row, number, truncated in zip(shares.tolist(), best.tolist(), cut, strict=True):
                scores = [round(share, DIGITS) for share in row]
                yield {
                    "label": self.task.labels[number],
                    "score": scores[number],
                    "scores": dict(zip(self.task.labels, scores, strict=True)),
                    "truncated": truncated,
                }

    def _embedded(self, rows: list[SequenceRow], normalise: bool) -> Iterator[Result]:
        length, first = self.task.embedding_length, 0
        for features in sequence_features(rows, self.tokenizer, length, ()):
            vectors = self._forward.mean_vectors(_sequences(features))
            vectors = self._finite(vectors).astype(np.float64)
            if normalise:
                sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
                vectors /= np.maximum(sizes, 1e-12)
            part = rows[first : first + len(features)]
            first += len(features)
            cut = self._truncated(part, features, length)
            rounded = np.round(vectors, DIGITS + 1).tolist()
            for vector, truncated in zip(rounded, cut, strict=True):
                yield {"vector": vector, "truncated": truncated}

    def _tagged(self, rows: Sequence[TextRow | TokenRow]) -> Iterator[Tagged]:
        ideographs = self.tokenizer.normalisation.chinese_characters
        labels = self.task.labels
        read: deque[Words] = deque()
        counts: deque[int] = deque()

        def words() -> Iterator[Words]:
            for row in rows:
                found: Words = row if isinstance(row, TokenRow) else TextWords(row.text, ideographs)
                read.append(found)
                counts.append(len(found.words))
                yield found

        def sizes() -> Iterator[int]:
            # The words of a row are read before its first features come.
            while counts:
                yield counts.popleft()

        length, overlap = self.task.max_length, self.task.overlap
        features = word_features(words(), self.tokenizer, length, overlap, labels)
        parts = ((part, _best(self._scores(part))) for part in features)
        nothing = np.array([fill_class(labels), np.nan], np.float32)
        for values in stitched(parts, sizes(), nothing):
            found = read.popleft()
            yield Tagged(found.words, values, labels, self.task.scheme or "plain")

    def _answered(self, rows: list[SpanRow], top: int) -> Iterator[Result]:
        task = self.task
        contexts = [row.context for row in rows]
        ends = encode_texts([row.question for row in rows], self.tokenizer)[1]
        cut = (np.diff(ends) > task.max_question_length).tolist()
        for features in span_features(
            rows, self.tokenizer, task.max_length, task.overlap, task.max_question_length
        ):
            scores = self._scores(features)
            yield from answer_results(
                features, scores, contexts, cut, task.max_answer_length, task.null_threshold, top
            )

    def _filled(self, rows: list[SequenceRow], top: int) -> Iterator[Result]:
        length = self._forward.model.config.max_position_embeddings
        texts = MaskedTexts([row.text_a for row in rows], self.tokenizer, length)
        offered = self.tokenizer.is_ordinary
        ids, shares = self._forward.top_tokens(
            texts.sequences, texts.positions, offered, min(top, int(offered.sum()))
        )
        return texts.results(ids, self._finite(shares))

    def _scores(self, features: Features) -> Float32s:
        assert isinstance(self._forward.model, BertForTask)
        return self._finite(self._forward.task_scores(_sequences(features)))

    def _finite(self, values: Float32s) -> Float32s:
        if not np.isfinite(values).all():
            raise StageError(
                f"{self.folder} gives scores that are not finite numbers: its weights are damaged "
                "or of a training that diverged"
            )
        return values

    def _truncated(
        self, rows: Sequence[SequenceRow], features: Features, max_length: int
    ) -> list[bool]:
        """Which rows lost pieces: of those that fill a sequence, the ones that have more."""
        full = np.flatnonzero(features.input_ids.lengths == max_length).tolist()
        found = [False] * len(rows)
        texts = [text for i in full for text in (rows[i].text_a, rows[i].text_b or "")]
        pieces = np.diff(encode_texts(texts, self.tokenizer)[1]).reshape(-1, 2).sum(1)
        for i, count in zip(full, pieces.tolist(), strict=True):
            found[i] = count > max_length - 2 - (rows[i].text_b is not None)
        return found


def plain(output: Output) -> Result:
    """A result as JSON values."""
    return output if isinstance(output, dict) else output.to_dict()


def _sequences(features: Features) -> Sequences:
    ids = features.input_ids
    return Sequences(Ragged(ids.values, ids.offsets), features.a_length.astype(np.int64))


def _softmax(logits: Float32s) -> NDArray[np.float64]:
    """[N, K] probabilities."""
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return shares


def _best(logits: Float32s) -> Float32s:
    """[T, K] -> [T, 2], the likeliest class and its probability."""
    shares = _softmax(logits)
    return np.stack([shares.argmax(1), shares.max(1)], axis=1).astype(np.float32)
