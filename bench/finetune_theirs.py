"""Transformers' side of `bench.finetune peers`, as its users run it.

Its own tokeniser with `word_ids`, `offset_mapping` and `stride`, its collators, which pad each
batch to its longest row, its schedule, SDPA, PyTorch's AdamW in the plain loop; rows come shuffled.
Predictions go through the same figures as ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bench.finetune_data import TaskSet
from bench.finetune_padded import IGNORED, open_model
from bench.finetune_runs import Recipe, Run, now
from stages.metrics.answers import answer_figures, answer_scores
from stages.metrics.entities import entity_figures

EPSILON = 1e-6
"""Of AdamW, as ours has it."""
N_BEST, MAX_ANSWER_LENGTH = 20, 30
NOT_FOR_MODELS = ("row", "offset_mapping", "word_ids")

Encoded = dict[str, Any]


class Theirs:
    """A task as they read it; `run` trains and scores.

    Args:
        task: its rows and lengths.
        folder: the pretrained model and its tokeniser.
    """

    def __init__(self, task: TaskSet, folder: Path) -> None:
        import transformers

        self._task, self._folder = task, folder
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.train = self._encode(task.train.rows)
        self._dev = self._encode(task.dev.rows)

    def run(self, recipe: Recipe, seed: int) -> Run:
        """Train and look at dev; seconds of the steps are without reading weights and dev."""
        import transformers

        began = time.perf_counter()
        transformers.set_seed(seed)
        kind, labels = self._task.layout.kind, self._task.classes
        more = {"num_labels": len(labels)} if labels else {}
        model = open_model(self._folder, kind, **more)
        steps = recipe.steps(len(self.train))
        optimiser = _adamw(model, recipe)
        schedule = transformers.get_linear_schedule_with_warmup(
            optimiser, round(recipe.warmup_share * steps), steps
        )
        losses, tokens, first = [], 0, now()
        for _ in range(recipe.epochs):
            for batch in self._loader(self.train, recipe.batch, shuffle=True):
                tokens += int(batch["attention_mask"].sum())
                with _autocast(recipe):
                    loss = model(**batch).loss
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
                losses.append(loss.item())
        clock, cpu = (end - begin for begin, end in zip(first, now(), strict=True))
        figures = self._score(list(self._predict(model, recipe)))
        return Run(figures, tuple(losses), clock, cpu, time.perf_counter() - began, tokens)

    def _loader(self, features: Sequence[Encoded], batch: int, shuffle: bool) -> Any:
        import transformers

        token = self._task.layout.kind == "token"
        named = "DataCollatorForTokenClassification" if token else "DataCollatorWithPadding"
        collate = getattr(transformers, named)(self._tokenizer)
        rows = [{k: v for k, v in f.items() if k not in NOT_FOR_MODELS} for f in features]
        return torch.utils.data.DataLoader(
            rows,  # type: ignore[arg-type]
            batch_size=batch,
            shuffle=shuffle,
            collate_fn=collate,
        )

    @torch.no_grad()
    def _predict(self, model: nn.Module, recipe: Recipe) -> Iterator[NDArray[np.float32]]:
        """Scores of each feature of dev: [K], [S, K], or [S, 2]."""
        model.eval()
        for batch in self._loader(self._dev, recipe.batch, shuffle=False):
            with _autocast(recipe):
                output = model(**batch)
            if self._task.layout.kind == "span":
                scores = torch.stack([output.start_logits, output.end_logits], dim=2)
            else:
                scores = output.logits
            yield from scores.float().numpy()

    def _encode(self, rows: Sequence[Any]) -> list[Encoded]:
        kind = self._task.layout.kind
        if kind == "sequence":
            return self._sequences(rows)
        return self._words(rows) if kind == "token" else self._spans(rows)

    def _sequences(self, rows: Sequence[Any]) -> list[Encoded]:
        pairs = [row.text_b for row in rows] if rows[0].text_b is not None else None
        found = self._tokenizer(
            [row.text_a for row in rows],
            pairs,
            truncation=True,
            max_length=self._task.layout.max_length,
        )
        labels = [self._task.classes.index(row.label) for row in rows]
        return [
            {name: found[name][i] for name in found} | {"labels": label, "row": i}
            for i, label in enumerate(labels)
        ]

    def _words(self, rows: Sequence[Any]) -> list[Encoded]:
        """A sentence that is too long loses its end, as in their examples."""
        found = self._tokenizer(
            [list(row.words) for row in rows],
            is_split_into_words=True,
            truncation=True,
            max_length=self._task.layout.max_length,
        )
        features = []
        for i, row in enumerate(rows):
            words = found.word_ids(i)
            before = [None, *words[:-1]]
            first = [w is not None and w != b for b, w in zip(before, words, strict=True)]
            labels = [
                self._task.classes.index(row.tags[word]) if is_first else IGNORED
                for word, is_first in zip(words, first, strict=True)
            ]
            features.append(
                {name: found[name][i] for name in found}
                | {"labels": labels, "row": i, "word_ids": words}
            )
        return features

    def _spans(self, rows: Sequence[Any]) -> list[Encoded]:
        layout = self._task.layout
        found = self._tokenizer(
            [row.question for row in rows],
            [row.context for row in rows],
            truncation="only_second",
            max_length=layout.max_length,
            stride=layout.overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        features = []
        for i, number in enumerate(found["overflow_to_sample_mapping"]):
            # Places of the context alone; the others cannot be answers.
            offsets = [
                place if sequence == 1 else None
                for place, sequence in zip(
                    found["offset_mapping"][i], found.sequence_ids(i), strict=True
                )
            ]
            start, end = _positions(offsets, rows[number].answers[0])
            feature = {
                name: found[name][i] for name in ("input_ids", "token_type_ids", "attention_mask")
            }
            feature |= {"start_positions": start, "end_positions": end}
            features.append(feature | {"row": number, "offset_mapping": offsets})
        return features

    def _score(self, scores: Sequence[NDArray[np.float32]]) -> Mapping[str, float]:
        rows, kind = self._task.dev.rows, self._task.layout.kind
        if kind == "sequence":
            right = [s.argmax() == f["labels"] for s, f in zip(scores, self._dev, strict=True)]
            return {"accuracy": float(np.mean(right))}
        if kind == "token":
            predicted = [["O"] * len(row.words) for row in rows]
            for feature, values in zip(self._dev, scores, strict=True):
                for place, label in enumerate(feature["labels"]):
                    if label != IGNORED:
                        tag = self._task.classes[values[place].argmax()]
                        predicted[feature["row"]][feature["word_ids"][place]] = tag
            return dict(entity_figures([row.tags for row in rows], predicted).values)
        best: dict[int, tuple[float, str]] = {}
        for feature, values in zip(self._dev, scores, strict=True):
            row = feature["row"]
            found = _best_answer(values, feature["offset_mapping"], rows[row].context)
            if found is not None and (row not in best or found[0] > best[row][0]):
                best[row] = found
        texts = [best.get(i, (0.0, ""))[1] for i in range(len(rows))]
        golds = [[answer.text for answer in row.answers] for row in rows]
        return dict(answer_figures(answer_scores(texts, golds)).values)


def _positions(offsets: Sequence[tuple[int, int] | None], answer: Any) -> tuple[int, int]:
    """First and last token of an answer; (0, 0), at [CLS], where the window does not hold it."""
    start, end = answer.start, answer.start + len(answer.text)
    places = [i for i, place in enumerate(offsets) if place is not None]
    inside = [i for i in places if offsets[i][0] < end and offsets[i][1] > start]  # type: ignore[index]
    if not inside or offsets[places[0]][0] > start or offsets[places[-1]][1] < end:  # type: ignore[index]
        return 0, 0
    return inside[0], inside[-1]


def _best_answer(
    scores: NDArray[np.float32], offsets: Sequence[tuple[int, int] | None], context: str
) -> tuple[float, str] | None:
    """The best answer among the `N_BEST` best starts and ends of a window."""
    starts, ends = (np.argsort(-scores[: len(offsets), side])[:N_BEST] for side in (0, 1))
    best: tuple[float, str] | None = None
    for first in starts:
        for last in ends:
            begin, end = offsets[first], offsets[last]
            if begin is None or end is None or not 0 <= last - first < MAX_ANSWER_LENGTH:
                continue
            value = float(scores[first, 0] + scores[last, 1])
            if best is None or value > best[0]:
                best = value, context[begin[0] : end[1]]
    return best


def _adamw(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """As their Trainer: biases and LayerNorms do not decay."""
    plain = ("bias", "LayerNorm.weight")
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if n.endswith(plain) == is_plain],
            "weight_decay": 0.0 if is_plain else recipe.weight_decay,
        }
        for is_plain in (False, True)
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, eps=EPSILON, fused=True)


def _autocast(recipe: Recipe) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16")
