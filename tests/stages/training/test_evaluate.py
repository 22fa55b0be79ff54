"""Held-out figures against a plain loop over single rows."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from pyarrow.fs import LocalFileSystem

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from stages.training.checkpoint import best_checkpoint
from stages.training.evaluate import Plateau, evaluate, unigram_log_probabilities
from stages.training.job import Validation
from stages.training.loop import pretrain
from stages.training.packing import pack
from stages.training.row_groups import Limits, RowGroups, count_labels

LOCAL = LocalFileSystem()
LIMITS = Limits(64, 40)
MASK = 4


@pytest.fixture
def model() -> BertForPreTraining:
    config = BertConfig(
        vocab_size=64, hidden_size=32, max_position_embeddings=40, initializer_range=0.3
    )
    model = BertForPreTraining(config)
    init_weights(model, torch.Generator().manual_seed(1))
    return model.train()


def one_row_at_a_time(model, files, counts, rows):
    """(loss, correct, unigram loss) of each label, whether it shows [MASK], and NSP by row."""
    model.eval()
    labels, pairs = [], []
    logs = [math.log((c + 1) / (sum(counts) + len(counts))) for c in counts.tolist()]
    groups = RowGroups(LOCAL, files, LIMITS)
    for number in range(len(groups)):
        examples = groups.get(number)
        for row in range(len(examples)):
            if len(pairs) == rows:
                return labels, pairs
            micro = pack(examples.take(np.array([row])), nsp=True)
            with torch.no_grad():
                output = model(*micro.inputs())
            for place, (logits, label) in enumerate(
                zip(output.mlm_logits, micro.mlm_labels.tolist(), strict=True)
            ):
                shown = int(micro.input_ids[micro.mlm_positions[place]])
                loss = -float(torch.log_softmax(logits, 0)[label])
                right = int(logits.argmax()) == label
                labels.append((loss, right, -logs[label], shown == MASK, len(pairs)))
            true_class = 0 if bool(micro.is_next[0]) else 1
            logits = output.nsp_logits[0]
            pairs.append(
                (
                    -float(torch.log_softmax(logits, 0)[true_class]),
                    int(logits.argmax()) == true_class,
                    true_class == 0,
                )
            )
    return labels, pairs


@pytest.mark.parametrize("rows", [390, 61, 50])
def test_figures_equal_those_of_single_rows(model, shards, rows):
    counts = np.arange(64)
    figures = evaluate(
        model, LOCAL, shards, LIMITS, mask_token_id=MASK, label_counts=counts,
        max_rows=None if rows == 390 else rows, micro_batch_tokens=300, documents=True,
    )  # fmt: skip
    assert model.training
    labels, pairs = one_row_at_a_time(model, shards, counts, rows)
    assert figures.rows == rows
    masked = [label for label in labels if label[3]]
    assert 0 < len(masked) < len(labels)
    for found, expected in ((figures.all_labels, labels), (figures.mask_tokens, masked)):
        assert found.count == len(expected)
        assert found.loss == pytest.approx(sum(e[0] for e in expected) / len(expected), rel=1e-5)
        assert found.correct == sum(e[1] for e in expected)
        assert found.unigram_loss == pytest.approx(
            sum(e[2] for e in expected) / len(expected), rel=1e-9
        )
    assert figures.nsp is not None
    assert figures.nsp.pairs == rows
    assert figures.nsp.correct == sum(p[1] for p in pairs)
    assert figures.nsp.is_next == sum(p[2] for p in pairs)
    assert figures.nsp.loss == pytest.approx(sum(p[0] for p in pairs) / rows, rel=1e-5)
    assert figures.nsp.majority_share == pytest.approx(0.5, abs=0.01)

    # Rows of these files are documents of their own, with the same names in each file of 130.
    documents = {}
    for loss, _, unigram, _, row in masked:
        count, of_model, of_unigram = documents.get(row % 130, (0, 0.0, 0.0))
        documents[row % 130] = (count + 1, of_model + loss, of_unigram + unigram)
    assert figures.by_document is not None
    found = figures.by_document[np.lexsort(figures.by_document.T)]
    expected = np.array([*documents.values()])
    np.testing.assert_allclose(found, expected[np.lexsort(expected.T)], rtol=1e-5)


def test_twice_the_same(model, shards):
    once, again = (evaluate(model, LOCAL, shards, LIMITS, mask_token_id=MASK) for _ in range(2))
    assert once.all_labels.loss_sum == again.all_labels.loss_sum
    assert once.values() == again.values()
    assert "unigram_loss" not in once.values()


def test_unigram_baseline():
    logs = unigram_log_probabilities(np.array([3, 0, 1]))
    assert np.exp(logs).tolist() == pytest.approx([4 / 7, 1 / 7, 2 / 7])


def test_unigram_accuracy_names_the_commonest_label(model, shards):
    counts = np.zeros(64, dtype=np.int64)
    counts[20] = 5
    figures = evaluate(model, LOCAL, shards, LIMITS, mask_token_id=MASK, label_counts=counts)
    groups = RowGroups(LOCAL, shards, LIMITS)
    labels = np.concatenate([groups.get(n).mlm_labels for n in range(len(groups))])
    assert figures.all_labels.unigram_correct == (labels == 20).sum() > 0
    assert figures.all_labels.unigram_accuracy == pytest.approx((labels == 20).mean())


def test_a_plateau_is_told_once_in_a_while():
    """From the end of warm-up on: at the first evaluation on it, then at each fifth."""
    plateau = Plateau(warmup_steps=100)
    on, off = ({"mlm_loss_mask_tokens": x, "unigram_loss_mask_tokens": 6.0} for x in (5.96, 5.94))
    told = [step for step in range(50, 700, 50) if plateau.message(step, on)]
    assert told == [100, 350, 600]
    assert plateau.message(700, off) is None
    text = plateau.message(750, on)
    assert text is not None and text.startswith("step 750: ")
    assert "5.96 nats" in text and "baseline 6.00" in text and "train.learning_rate" in text
    assert plateau.message(800, {"mlm_loss_mask_tokens": 6.0}) is None
    assert plateau.message(900, on | {"mlm_loss_mask_tokens": 9.0}) is None


def test_the_baseline_is_drawn_beside_the_curve(make_job, recorder, shards):
    """Of counts of training labels, as `evaluate` has it at the end."""
    job = make_job()
    limits = Limits(job.model.vocab_size, 40)
    counts = count_labels(job.filesystem, job.copies[0], limits)
    validation = Validation(shards[:1], mask_token_id=4, max_rows=60, label_counts=counts)
    train = {"steps": 4, "evaluate_every_steps": 2, "learning_rate": 1e-9}
    hooks = recorder()
    outcome = pretrain(make_job(train=train, validation=validation), hooks)
    figures = evaluate(
        outcome.model, job.filesystem, shards[:1], limits, mask_token_id=4, label_counts=counts,
        max_rows=60,
    )  # fmt: skip
    for step in (2, 4):
        seen = hooks.values[step]
        assert seen["validation/unigram_loss_mask_tokens"] == pytest.approx(
            figures.mask_tokens.unigram_loss, rel=1e-12
        )
        assert seen["validation/mlm_perplexity"] == pytest.approx(
            math.exp(seen["validation/mlm_loss"])
        )
    assert outcome.figures["validation/unigram_loss"] == pytest.approx(
        figures.all_labels.unigram_loss, rel=1e-12
    )
    # A rate of nearly nothing: after warm-up the model still guesses, and that is said once.
    warned = [text for text in hooks.notices if "nothing of their context" in text]
    said = [text for text in hooks.notices if text not in warned]
    assert len(warned) == 1 and len(said) == 2
    assert said[1].startswith("step 4, held out: loss on [MASK] 4."), said
    assert re.search(r"baseline \d\.\d{3}\), perplexity .*, MLM accuracy .*NSP acc", said[1])


def test_the_last_step_is_looked_at_whatever_the_pace(make_job, recorder, shards):
    """It is what the run came to, and may be the best checkpoint."""
    validation = Validation(shards[:1], mask_token_id=4, max_rows=60)
    hooks = recorder()
    train = {"steps": 5, "evaluate_every_steps": 3, "keep_best": True}
    job = make_job(train=train, validation=validation)
    pretrain(job, hooks)
    looked = [s for s, values in hooks.values.items() if "validation/mlm_loss" in values]
    assert looked == [3, 5]
    best = best_checkpoint(job.checkpoint_filesystem, job.checkpoint_folder)
    assert best is not None and best.state.step == 5
    assert best.state.score == hooks.values[5]["validation/mlm_loss"]
