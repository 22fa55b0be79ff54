"""Each loss against its plain twin, from ids to nats, on packed sequences of uneven lengths."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import BertConfig
from model.heads import IS_NEXT, NOT_NEXT, NextSentenceHead, Pooler, next_sentence_logits
from model.losses import nsp_loss_sum
from model.packing import pack
from model.task_heads import BertForTask, SequenceHead
from model.task_losses import (
    IGNORED,
    class_loss_sum,
    span_loss_sum,
    squared_error_sum,
)
from tests.oracle import plain_task_losses as plain

CONFIG = BertConfig(vocab_size=60, hidden_size=8, num_layers=1, num_heads=2)
LENGTHS = [5, 1, 9, 3, 7]


def build(kind, classes=2):
    model = BertForTask(CONFIG, kind, classes).double().eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture
def sequences(make_batch, plain_bert):
    """A packed batch, and the twin's vectors of each sequence under a model's weights."""
    ids, segments, mask = make_batch(LENGTHS, width=12)

    def hidden_of(model):
        return [
            plain_bert.encode(
                model.bert.state_dict(), CONFIG, ids[i, :n].tolist(), segments[i, :n].tolist()
            )
            for i, n in enumerate(LENGTHS)
        ]

    return pack(ids, segments, mask), hidden_of


def weights(layer):
    return layer.weight.detach().numpy(), layer.bias.detach().numpy()


def filled(batch, more=(4, 2)):
    """The batch with sequences behind it that only fill up."""
    missing = sum(more)
    ends = batch.cu_seqlens[-1] + torch.tensor(more).cumsum(0).int()
    zeros = torch.zeros(missing, dtype=torch.int64)
    return (
        torch.cat([batch.input_ids, zeros]),
        torch.cat([batch.segment_ids, zeros]),
        torch.cat([batch.position_ids, torch.cat([torch.arange(n) for n in more])]),
        torch.cat([batch.cu_seqlens, ends]),
        batch.max_seqlen,
    )


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_sequence_classification_equals_its_twin(sequences, classes, fill):
    batch, hidden_of = sequences
    model = build("sequence", classes)
    labels = torch.tensor([0, classes - 1, 1, 0, 1])
    expected = sum(
        plain.sequence_loss(
            hidden, int(label), weights(model.head.pooler.dense), weights(model.head.classifier)
        )
        for hidden, label in zip(hidden_of(model), labels, strict=True)
    )
    logits = model(*(filled(batch) if fill else batch.inputs()))
    assert class_loss_sum(logits, labels).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("fill", [False, True])
def test_regression_equals_its_twin(sequences, fill):
    batch, hidden_of = sequences
    model = build("sequence", 1)
    targets = torch.tensor([0.5, -3.0, 2.25, 5.0, 0.0])
    expected = sum(
        plain.regression_loss(
            hidden, float(target), weights(model.head.pooler.dense), weights(model.head.classifier)
        )
        for hidden, target in zip(hidden_of(model), targets, strict=True)
    )
    scores = model(*(filled(batch) if fill else batch.inputs()))
    assert squared_error_sum(scores, targets).item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("fill", [False, True])
def test_token_classification_equals_its_twin(sequences, fill):
    batch, hidden_of = sequences
    model = build("token", 4)
    labels = torch.randint(0, 4, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    labels[torch.tensor([0, 4, 5, 11, 12])] = IGNORED
    expected = sum(
        plain.token_loss(hidden, part.tolist(), weights(model.head.classifier))
        for hidden, part in zip(hidden_of(model), labels.split(LENGTHS), strict=True)
    )
    logits = model(*(filled(batch) if fill else batch.inputs()))
    assert class_loss_sum(logits, labels).item() == pytest.approx(expected, abs=1e-10)


SPANS = torch.tensor([[1, 3], [0, 0], [4, 4], [0, 0], [2, 6]])


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_span_extraction_equals_its_twin(sequences, masked, fill):
    batch, hidden_of = sequences
    model = build("span")
    may_answer = None
    if masked:
        may_answer = torch.rand(sum(LENGTHS), generator=torch.Generator().manual_seed(1)) < 0.5
        may_answer[(batch.cu_seqlens[:-1, None] + SPANS).flatten()] = True
        may_answer[batch.cu_seqlens[:-1].long()] = True
        assert not may_answer.all()
    parts = may_answer.split(LENGTHS) if masked else [None] * 5
    expected = sum(
        plain.span_loss(hidden, *span.tolist(), *weights(model.head.scorer), part)
        for hidden, span, part in zip(hidden_of(model), SPANS, parts, strict=True)
    )
    inputs = filled(batch) if fill else batch.inputs()
    loss = span_loss_sum(model(*inputs), *inputs[3:], *SPANS.unbind(1), may_answer)
    assert loss.item() == pytest.approx(expected, abs=1e-10)


def test_span_extraction_is_no_binary_choice_at_each_token(sequences):
    """Seed 5.2: one choice among n positions, and n is another for each sequence."""
    batch, hidden_of = sequences
    model = build("span")

    def loss():
        scores = model(*batch.inputs())
        return span_loss_sum(scores, *batch.inputs()[3:], *SPANS.unbind(1)).item()

    def binary():
        return sum(
            plain.binary_span_loss(hidden, *span.tolist(), *weights(model.head.scorer))
            for hidden, span in zip(hidden_of(model), SPANS, strict=True)
        )

    one, other = loss(), binary()
    assert abs(one - other) > 1
    # Scores that all rise alike change no choice among positions, and every binary choice.
    with torch.no_grad():
        model.head.scorer.bias += 3.0
    assert loss() == pytest.approx(one, abs=1e-10)
    assert abs(binary() - other) > 10
    # Without knowledge: log n for each of two choices, against log 2 at each token.
    with torch.no_grad():
        model.head.scorer.weight.zero_()
        model.head.scorer.bias.zero_()
    assert loss() == pytest.approx(2 * sum(math.log(n) for n in LENGTHS), abs=1e-10)
    assert binary() == pytest.approx(2 * sum(LENGTHS) * math.log(2), abs=1e-10)


def test_a_sequence_s_span_is_a_matter_of_its_own_positions():
    """Gradients of one sequence sum to zero, and stay out of neighbours, masked and fillers."""
    scores = torch.randn(12, 2, dtype=torch.float64, requires_grad=True)
    cu_seqlens = torch.tensor([0, 4, 9, 12], dtype=torch.int32)
    may_answer = torch.tensor([1, 0, 1, 1, 1, 0, 0, 1, 1]).bool()
    for row, own in ((0, slice(0, 4)), (1, slice(4, 9))):
        positions = torch.full((2,), IGNORED)
        positions[row] = 3
        loss = span_loss_sum(scores, cu_seqlens, 5, positions, positions, may_answer)
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient[own].sum(0).abs().max() < 1e-12
        assert gradient[own].abs().max() > 0.01
        gradient[own][may_answer[own]] = 0.0
        assert gradient.eq(0).all()


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=8),
    st.lists(st.integers(1, 9), max_size=3),
    st.integers(0, 3),
)
@settings(deadline=None, max_examples=50)
def test_span_loss_is_that_of_each_sequence_alone(rows, fillers, room):
    lengths = [n for n, _ in rows]
    gold = torch.tensor([g % n for n, g in rows])
    all_lengths = torch.tensor(lengths + fillers)
    cu_seqlens = F.pad(all_lengths.cumsum(0), (1, 0)).int()
    scores = torch.randn(int(all_lengths.sum()), 2, dtype=torch.float64).mul_(3).requires_grad_()
    longest = int(all_lengths.max()) + room
    loss = span_loss_sum(scores, cu_seqlens, longest, gold, gold.flip(0) % torch.tensor(lengths))
    parts = scores.split(all_lengths.tolist())[: len(rows)]
    ends = gold.flip(0) % torch.tensor(lengths)
    alone = sum(
        F.cross_entropy(part.T, torch.stack([g, e]), reduction="sum")
        for part, g, e in zip(parts, gold, ends, strict=True)
    )
    torch.testing.assert_close(loss, alone)
    torch.testing.assert_close(
        torch.autograd.grad(loss, scores), torch.autograd.grad(alone, scores)
    )


def test_two_classes_are_next_sentence_prediction():
    """Seed 5.2, with the numbers of 3.3."""
    head = SequenceHead(BertConfig(vocab_size=8, hidden_size=4), 2, 0.1).eval()
    pooler, nsp = Pooler(CONFIG), NextSentenceHead(CONFIG)
    w1 = [
        [0.2, 0.1, -0.1, 0.3],
        [0.1, -0.2, 0.3, 0.1],
        [-0.1, 0.3, 0.2, -0.2],
        [0.3, 0.1, -0.2, 0.2],
    ]
    w2 = [[0.6, -0.3], [-0.2, 0.5], [0.4, -0.1], [-0.3, 0.6]]
    # The seed multiplies from the left.
    for layers in ((head.pooler, head.classifier), (pooler, nsp.classifier)):
        layers[0].dense.weight = torch.nn.Parameter(torch.tensor(w1).T.contiguous())
        layers[1].weight = torch.nn.Parameter(torch.tensor(w2).T.contiguous())
        layers[0].dense.bias = torch.nn.Parameter(torch.zeros(4))
        layers[1].bias = torch.nn.Parameter(torch.zeros(2))
    hidden = torch.tensor([[0.5, 0.3, 0.7, 0.2], [9.0, 9.0, 9.0, 9.0], [0.1, -0.4, 0.2, 0.3]])
    cu_seqlens = torch.tensor([0, 2, 3], dtype=torch.int32)
    logits = head(hidden, cu_seqlens)
    assert torch.equal(logits, next_sentence_logits(hidden[[0, 2]], pooler, nsp))
    seed = torch.tensor([0.488, 0.512])
    torch.testing.assert_close(logits[0].softmax(0), seed, atol=5e-4, rtol=0)
    loss = class_loss_sum(logits[:1], torch.tensor([NOT_NEXT]))
    assert loss.item() == pytest.approx(-math.log(0.512), abs=1e-3)
    for is_next in ([True, False], [False, False], [True, True]):
        labels = torch.tensor([IS_NEXT if following else NOT_NEXT for following in is_next])
        assert torch.equal(
            class_loss_sum(logits, labels), nsp_loss_sum(logits, torch.tensor(is_next))
        )


def test_what_does_not_count_gives_nothing_and_no_gradient():
    logits = torch.randn(4, 3, requires_grad=True)
    loss = class_loss_sum(logits, torch.tensor([IGNORED, 2, IGNORED]))
    loss.backward()
    torch.testing.assert_close(loss, -logits[1].log_softmax(0)[2])
    assert logits.grad[[0, 2, 3]].eq(0).all() and logits.grad[1].abs().min() > 0
    assert class_loss_sum(logits, torch.full((4,), IGNORED)) == 0
    assert class_loss_sum(logits, torch.empty(0).long()) == 0
    assert squared_error_sum(logits[:, :1], torch.empty(0)) == 0
    nothing = torch.full((1,), IGNORED)
    cu_seqlens = torch.tensor([0, 3, 4], dtype=torch.int32)
    assert span_loss_sum(logits[:, :2], cu_seqlens, 3, nothing, nothing) == 0


def test_a_filler_without_any_answer_leaves_gradients_finite():
    scores = torch.randn(6, 2, requires_grad=True)
    cu_seqlens = torch.tensor([0, 3, 6], dtype=torch.int32)
    may_answer = torch.tensor([True, True, False])
    zero = torch.zeros(1, dtype=torch.int64)
    span_loss_sum(scores, cu_seqlens, 3, zero, zero, may_answer).backward()
    assert scores.grad.isfinite().all() and scores.grad[2:].eq(0).all()


def test_answers_that_cannot_be_are_refused():
    scores, cu_seqlens = torch.randn(7, 2), torch.tensor([0, 3, 7], dtype=torch.int32)
    may_answer = torch.tensor([1, 1, 1, 1, 0, 1, 1]).bool()
    good = torch.tensor([0, 2])
    with pytest.raises(ValueError, match=r"sequence 0: the end .* position 3, .* its 3 tokens"):
        span_loss_sum(scores, cu_seqlens, 4, good, torch.tensor([3, 3]))
    with pytest.raises(ValueError, match=r"sequence 1: the start .* position -1, lies outside"):
        span_loss_sum(scores, cu_seqlens, 4, torch.tensor([0, -1]), good)
    with pytest.raises(ValueError, match=r"sequence 1: the start .* position 1, may not answer"):
        span_loss_sum(scores, cu_seqlens, 4, torch.tensor([0, 1]), good, may_answer)


def test_losses_of_bfloat16_scores_are_computed_in_float32():
    logits = torch.randn(40, 30).bfloat16()
    labels = torch.randint(0, 30, (40,))
    loss = class_loss_sum(logits, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, class_loss_sum(logits.float(), labels))
    cu_seqlens = torch.tensor([0, 15, 40], dtype=torch.int32)
    spans = cu_seqlens, 25, torch.tensor([3, 9]), torch.tensor([14, 9])
    loss = span_loss_sum(logits[:, :2], *spans)
    torch.testing.assert_close(loss, span_loss_sum(logits[:, :2].float(), *spans))
    assert loss.dtype == squared_error_sum(logits[:, :1], torch.randn(40)).dtype == torch.float32
