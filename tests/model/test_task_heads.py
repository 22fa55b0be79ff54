import pytest
import torch

from model.bert import init_weights
from model.config import BertConfig
from model.packing import pack
from model.task_heads import BertForTask
from model.task_losses import class_loss_sum, span_loss_sum, squared_error_sum

CONFIG = BertConfig(
    vocab_size=60, hidden_size=32, num_heads=4, hidden_dropout=0.0, attention_dropout=0.0
)
KINDS = [("sequence", 3), ("sequence", 1), ("token", 5), ("span", 2)]


def build(kind, classes, config=CONFIG, **options):
    model = BertForTask(config, kind, classes, **options)
    init_weights(model, torch.Generator().manual_seed(1), std=0.2)
    return model


def loss_of(model, batch, inputs=None):
    """Made-up labels that are the same for the same batch."""
    inputs = inputs or batch.inputs()
    generator = torch.Generator().manual_seed(8)
    sequences, tokens = len(batch.cu_seqlens) - 1, len(batch.input_ids)
    scores = model(*inputs)
    if model.kind == "span":
        ends = batch.cu_seqlens.diff().long() - 1
        return span_loss_sum(scores, *inputs[3:], ends // 2, ends)
    if model.classes == 1:
        return squared_error_sum(scores, torch.randn(sequences, generator=generator))
    count = tokens if model.kind == "token" else sequences
    labels = torch.randint(0, model.classes, (count,), generator=generator)
    return class_loss_sum(scores, labels)


@pytest.mark.parametrize(("kind", "classes"), KINDS)
def test_packed_sequences_do_not_see_each_other(make_batch, kind, classes):
    model = build(kind, classes).eval()
    lengths = [8, 3, 1, 6]
    ids, segments, mask = make_batch(lengths)
    together = model(*pack(ids, segments, mask).inputs())
    alone = [
        model(*pack(ids[i : i + 1, :n], segments[i : i + 1, :n], mask[i : i + 1, :n]).inputs())
        for i, n in enumerate(lengths)
    ]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)
    assert together.shape == (4 if kind == "sequence" else 18, classes)


@pytest.mark.parametrize(("kind", "classes"), KINDS)
def test_bfloat16_trains_and_scores_are_float32(make_packed, kind, classes):
    batch = make_packed([9, 4, 12])
    losses, gradients = [], []
    for autocast in (False, True):
        model = build(kind, classes).train()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            assert model(*batch.inputs()).dtype == torch.float32
            loss = loss_of(model, batch)
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert (gradients[1] - gradients[0]).norm() < 0.1 * gradients[0].norm()


def test_a_model_in_bfloat16_runs(make_packed):
    model = build("token", 5).bfloat16().eval()
    assert model(*make_packed([4, 2]).inputs()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_dropout_of_the_head_is_its_own(make_packed, kind):
    batch = make_packed([6, 4])
    assert build(kind, 3, BertConfig(vocab_size=60, hidden_size=32)).head_dropout == 0.1
    model = build(kind, 3, head_dropout=0.5)
    torch.manual_seed(1)
    model.train()
    assert not torch.equal(model(*batch.inputs()), model(*batch.inputs()))
    model.eval()
    assert torch.equal(model(*batch.inputs()), model(*batch.inputs()))
    quiet = build(kind, 3, head_dropout=0.0).train()
    assert torch.equal(quiet(*batch.inputs()), quiet(*batch.inputs()))


def filled(batch):
    """As micro-batches of a fixed shape have it: a sequence of padding behind the others."""
    zeros = torch.zeros(7, dtype=torch.int64)
    return (
        torch.cat([batch.input_ids, zeros]),
        torch.cat([batch.segment_ids, zeros]),
        torch.cat([batch.position_ids, torch.arange(7)]),
        torch.cat([batch.cu_seqlens, batch.cu_seqlens[-1:] + 7]),
        12,
    )


@pytest.mark.parametrize(("kind", "classes"), KINDS)
def test_what_fills_up_adds_nothing_to_loss_and_gradients(make_packed, kind, classes):
    batch = make_packed([9, 4])
    model = build(kind, classes).double().train()
    plain = loss_of(model, batch)
    expected = torch.autograd.grad(plain, list(model.parameters()))
    loss = loss_of(model, batch, filled(batch))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close((loss, *gradients), (plain, *expected), rtol=1e-9, atol=1e-12)


def test_a_compiled_encoder_serves_the_head(make_packed):
    torch._dynamo.reset()
    batch = make_packed([9, 4])
    model = build("span", 2).train()
    expected = loss_of(model, batch, filled(batch))
    model.compile_encoder("eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            loss = loss_of(model, batch, filled(batch))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    assert next(model.named_parameters())[0] == "bert.embeddings.token.weight"


def test_positions_beyond_the_table_are_refused(make_packed):
    model = build("span", 2, BertConfig(vocab_size=60, hidden_size=32, max_position_embeddings=8))
    with pytest.raises(ValueError, match="overlapping windows"):
        model(*make_packed([9]).inputs())


@pytest.mark.parametrize(
    ("kind", "classes", "message"),
    [
        ("pair", 2, "no task of the kind 'pair': sequence, token, span"),
        ("sequence", 0, "at least 1 classes, not 0"),
        ("token", 1, "at least 2 classes, not 1"),
        ("span", 3, "exactly 2 classes, not 3"),
    ],
)
def test_tasks_that_cannot_be_are_refused(kind, classes, message):
    with pytest.raises(ValueError, match=message):
        BertForTask(CONFIG, kind, classes)
    with pytest.raises(ValueError, match=r"head_dropout=1\.0"):
        BertForTask(CONFIG, "token", 2, head_dropout=1.0)
