"""Micro-batches of one shape: what fills them up counts nothing, and one graph serves all."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.losses import nsp_loss_sum
from stages.training.device import autocast
from stages.training.examples import Examples, Ragged, offsets_of
from stages.training.job import Validation
from stages.training.loader import Loader
from stages.training.loop import compiled_shape, pretrain
from stages.training.packing import cut, micro_batches, step_batch
from stages.training.row_groups import Limits
from stages.training.shapes import fixed_shape

LONGEST = 40
lengths_of_rows = st.lists(st.integers(3, LONGEST), min_size=1, max_size=60).map(np.array)


def examples_of(lengths: np.ndarray, seed: int = 0) -> Examples:
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 3, len(lengths))
    positions = [
        np.sort(generator.choice(n, c, False)) for n, c in zip(lengths, counts, strict=True)
    ]
    flat = np.concatenate(positions).astype(np.int64)
    return Examples(
        input_ids=Ragged(generator.integers(1, 64, lengths.sum()), offsets_of(lengths)),
        a_length=generator.integers(1, np.maximum(2, lengths - 2)),
        is_next=generator.random(len(lengths)) < 0.5,
        mlm_positions=Ragged(flat, offsets_of(counts)),
        mlm_labels=generator.integers(0, 64, len(flat)),
    )


@given(lengths_of_rows, st.integers(1, 300), st.floats(1, LONGEST))
@settings(deadline=None)
def test_every_micro_batch_has_the_shape_and_every_row_is_there_once(lengths, budget, mean):
    shape = fixed_shape(budget, LONGEST, mean)
    examples = examples_of(lengths)
    filled = micro_batches(examples, budget, True, shape)
    runs = cut(lengths, budget, shape)
    assert np.concatenate([np.arange(len(lengths))[run] for run in runs]).tolist() == list(
        range(len(lengths))
    )
    for run, micro in zip(runs, filled, strict=True):
        rows = len(lengths[run])
        tokens = int(lengths[run].sum())
        assert len(micro.input_ids) == len(micro.segment_ids) == shape.tokens
        assert len(micro.cu_seqlens) == shape.examples + 1
        assert micro.max_seqlen == LONGEST
        sizes = micro.cu_seqlens.diff()
        assert sizes[:rows].tolist() == lengths[run].tolist()
        assert len(sizes) > rows and 1 <= sizes[rows:].min() <= sizes.max() <= LONGEST
        assert micro.is_next is not None and len(micro.is_next) == rows
        assert micro.input_ids[tokens:].sum() == 0 < micro.input_ids[:tokens].min()
        starts = micro.cu_seqlens[:-1].repeat_interleave(sizes)
        assert micro.position_ids.tolist() == (torch.arange(shape.tokens) - starts).tolist()
        if len(micro.mlm_positions):
            assert micro.mlm_positions.max() < tokens


def test_room_for_rows_as_they_are():
    """A run ends because of its tokens, as without a shape, when the mean length is right."""
    lengths = np.random.default_rng(3).integers(20, LONGEST + 1, 500)
    shape = fixed_shape(400, LONGEST, float(lengths.mean()))
    assert cut(lengths, 400, shape) == cut(lengths, 400)
    assert shape.tokens <= 1.2 * 400


def test_rows_longer_than_the_shape_are_refused():
    with pytest.raises(ValueError, match="a row of 41 tokens is longer than 40"):
        cut(np.array([5, 41]), 100, fixed_shape(100, LONGEST, 20.0))


def make_model(checkpointing: bool = False) -> BertForPreTraining:
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_layers=2, num_heads=2,
        max_position_embeddings=LONGEST, hidden_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = BertForPreTraining(config, checkpointing=checkpointing)
    init_weights(model, torch.Generator().manual_seed(1))
    return model.train()


def losses_and_gradients(model, micros, precision="float32"):
    """As the loop does it: sums over micro-batches."""
    model.zero_grad()
    total = 0.0
    for micro in micros:
        with autocast("cpu", precision):
            output = model(*micro.inputs(), micro.mlm_labels)
        loss = output.mlm_loss_sum + nsp_loss_sum(output.nsp_logits, micro.is_next)
        loss.backward()
        total += loss.item()
    return total, torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("mean", [3.0, 20.0])
def test_what_fills_up_adds_nothing_to_loss_and_gradients(mean):
    model = make_model().double()
    examples = examples_of(np.random.default_rng(1).integers(3, LONGEST + 1, 40))
    plain, gradients = losses_and_gradients(model, micro_batches(examples, 200, True))
    shape = fixed_shape(200, LONGEST, mean)
    filled, others = losses_and_gradients(model, micro_batches(examples, 200, True, shape))
    assert filled == pytest.approx(plain, rel=1e-12)
    assert (others - gradients).norm() <= 1e-12 * gradients.norm()


@pytest.mark.parametrize(("precision", "checkpointing"), [("float32", False), ("bf16", True)])
def test_compiled_equals_eager_with_one_graph_for_all(precision, checkpointing):
    """Traced and differentiated as for any backend; the run below has inductor's kernels."""
    shape = fixed_shape(200, LONGEST, 22.0)
    batches = [
        micro_batches(examples_of(np.random.default_rng(n).integers(3, 41, 9), n), 200, True, shape)
        for n in range(2)
    ]
    eager = [losses_and_gradients(make_model(), micros, precision) for micros in batches]
    torch._dynamo.reset()
    model = make_model(checkpointing=checkpointing)
    model.compile_encoder("aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = [losses_and_gradients(model, micros, precision) for micros in batches]
    bound = 1e-5 if precision == "float32" else 2e-2
    for (loss, gradients), (other, others) in zip(eager, compiled, strict=True):
        assert other == pytest.approx(loss, rel=bound)
        assert (others - gradients).norm() <= bound * gradients.norm()


def test_an_evaluated_model_takes_any_shape_though_compiled():
    torch._dynamo.reset()
    model = make_model()
    model.compile_encoder("aot_eager")
    examples = examples_of(np.array([5, 9, 17]))
    with torch._dynamo.config.patch(error_on_recompile=True), torch.no_grad():
        for budget in (10, 20, 40):
            for micro in micro_batches(examples, budget, True):
                hidden = model.eval()(*micro.inputs()).hidden
                assert torch.equal(hidden, make_model().eval()(*micro.inputs()).hidden)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_compiled_run_learns_what_an_eager_one_does(make_job, recorder):
    torch._dynamo.reset()
    train = {"steps": 6, "evaluate_every_steps": 3}
    without = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "num_layers": 1}
    eager, compiled = recorder(), recorder()
    pretrain(make_job(train=train, model=without, folder="eager"), eager)
    job = make_job(train=train, model=without, rounding={"compile": True}, folder="compiled")
    with torch._dynamo.config.patch(error_on_recompile=True):
        # Held-out figures have batches of other shapes, and must not compile anew.
        pretrain(replace(job, validation=Validation(job.copies[0], mask_token_id=4)), compiled)
    assert len(compiled.values[6]) > len(compiled.values[5])
    assert compiled.losses() == pytest.approx(eager.losses(), rel=1e-5)


def test_a_compiled_run_is_as_wide_as_its_rows_and_no_wider(make_job):
    job = make_job(model={"max_position_embeddings": 512}, rounding={"compile": True})
    loader = Loader(LocalFileSystem(), job.copies, job.seed, 16, Limits(64, 512))
    told = replace(job, max_row_tokens=40, mean_row_tokens=20.0)
    assert compiled_shape(told, loader).longest == 40
    # Of the mean of all rows, not of one batch's.
    budget = min(job.rounding.micro_batch_tokens, 16 * 40)
    assert compiled_shape(told, loader) == fixed_shape(budget, 40, 20.0)
    assert compiled_shape(job, loader).longest == 512
    # A budget beyond a step's rows would be memory for nothing.
    vast = replace(told, rounding=replace(told.rounding, micro_batch_tokens=10**9))
    assert compiled_shape(vast, loader).budget == 16 * 40


def test_padding_of_a_step_is_that_of_the_shape():
    examples = examples_of(np.random.default_rng(1).integers(3, LONGEST + 1, 40))
    shape = fixed_shape(200, LONGEST, 20.0)
    part = step_batch(examples, 0, 2, 200, True, shape)
    assert part.padded_tokens == len(part.micro_batches) * shape.examples * LONGEST
    assert part.laid_tokens == len(part.micro_batches) * shape.tokens > part.share_tokens
