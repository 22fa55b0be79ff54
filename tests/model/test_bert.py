from functools import partial
from itertools import pairwise

import pytest
import torch

from model.attention import plan_attention
from model.bert import BertForPreTraining, BertModel, init_weights
from model.config import BertConfig
from model.losses import mlm_loss_sum, nsp_loss_sum
from model.packing import pack, unpack


def test_equals_the_plain_twin(plain_bert, make_model, make_packed):
    model = make_model(num_layers=2, intermediate_size=40).double()
    lengths = [3, 6, 1]
    batch = make_packed(lengths)
    hidden = model.bert(*batch.inputs()).detach()
    for begin, end in pairwise(batch.cu_seqlens):
        plain = plain_bert.encode(
            model.bert.state_dict(),
            model.config,
            batch.input_ids[begin:end].tolist(),
            batch.segment_ids[begin:end].tolist(),
        )
        torch.testing.assert_close(hidden[begin:end], torch.from_numpy(plain))


def test_every_position_reaches_every_other_and_no_other_sequence(make_model, make_packed):
    bert = make_model(num_layers=3).bert
    batch = make_packed([4, 6])
    plan = plan_attention(batch.cu_seqlens, batch.max_seqlen, 10, "sdpa")
    owner = torch.tensor([0] * 4 + [1] * 6)
    own = owner[:, None] == owner[None]
    hidden = bert.embeddings(*batch.inputs()[:3]).detach()
    for layer in bert.encoder.layers:
        jacobian = torch.autograd.functional.jacobian(partial(layer, plan=plan), hidden)
        reach = jacobian.abs().amax(dim=(1, 3))
        assert (reach[own] > 0).all()
        assert (reach[~own] == 0).all()
        hidden = layer(hidden, plan).detach()


def test_packed_equals_each_sequence_alone_and_any_padded_width(make_model, make_batch):
    model = make_model()
    ids, segments, mask = make_batch([5, 9, 1, 9], width=12)
    batch = pack(ids, segments, mask)
    together = unpack(model.bert(*batch.inputs()), batch)
    for row in range(4):
        length = int(mask[row].sum())
        single = pack(*(t[row : row + 1, :length] for t in (ids, segments, mask)))
        alone = model.bert(*single.inputs())
        torch.testing.assert_close(together[row, :length], alone, atol=2e-6, rtol=1e-5)


def test_gathered_positions_equal_the_full_head(make_model, make_packed):
    model = make_model()
    batch = make_packed([5, 9, 3])
    everywhere = model(*batch.inputs(), torch.arange(17))
    positions = torch.tensor([2, 7, 8, 16])
    some = model(*batch.inputs(), positions)
    assert some.mlm_logits.shape == (4, 60)
    torch.testing.assert_close(
        some.mlm_logits, everywhere.mlm_logits[positions], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(some.nsp_logits, everywhere.nsp_logits)
    assert some.nsp_logits.shape == (3, 2) and some.hidden.shape == (17, 32)


def test_labels_give_the_same_loss_and_gradients_without_logits(make_model, make_packed):
    model = make_model()
    batch, positions = make_packed([5, 9, 3]), torch.tensor([2, 7, 8, 16])
    labels = torch.tensor([5, 50, 8, 1])
    whole = mlm_loss_sum(model(*batch.inputs(), positions).mlm_logits, labels)
    output = model(*batch.inputs(), positions, labels)
    assert output.mlm_logits.shape == (0, 60)
    parameters = [*model.bert.parameters(), *model.mlm.parameters()]
    torch.testing.assert_close(output.mlm_loss_sum, whole)
    torch.testing.assert_close(
        torch.autograd.grad(output.mlm_loss_sum, parameters),
        torch.autograd.grad(whole, parameters),
    )


def test_next_sentence_reads_cls_alone(make_model, make_packed):
    model = make_model()
    batch = make_packed([5, 9, 3])
    output = model(*batch.inputs(), torch.tensor([0]))
    output.hidden.retain_grad()
    output.nsp_logits.sum().backward()
    touched = output.hidden.grad.abs().amax(1) > 0
    assert touched.nonzero().flatten().tolist() == [0, 5, 14]


def test_no_masked_position_at_all(make_model, make_packed):
    model = make_model().train()
    output = model(*make_packed([5, 9]).inputs(), torch.empty(0, dtype=torch.long))
    loss = mlm_loss_sum(output.mlm_logits, torch.empty(0, dtype=torch.long))
    assert loss == 0
    (loss + nsp_loss_sum(output.nsp_logits, torch.tensor([True, False]))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("nsp", [True, False])
def test_every_parameter_gets_a_gradient(make_model, make_packed, nsp):
    model = make_model(nsp=nsp).train()
    output = model(*make_packed([5, 9]).inputs(), torch.tensor([1, 2, 8]))
    loss = mlm_loss_sum(output.mlm_logits, torch.tensor([3, 4, 5]))
    if nsp:
        loss = loss + nsp_loss_sum(output.nsp_logits, torch.tensor([True, False]))
    else:
        assert output.nsp_logits is None
    loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert nsp == any(n.startswith(("pooler", "nsp")) for n, _ in model.named_parameters())


def test_a_batch_longer_than_the_position_table_is_refused(make_model, make_packed):
    model = make_model(max_position_embeddings=8)
    model(*make_packed([8, 3]).inputs(), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"9 tokens .* table of 8 rows: truncate"):
        model(*make_packed([3, 9]).inputs(), torch.tensor([0]))


@pytest.mark.parametrize("train", [True, False])
def test_bfloat16_autocast_stays_near_float32(make_model, make_packed, train):
    model = make_model(hidden_dropout=0.0, attention_dropout=0.0).train(train)
    batch = make_packed([12, 30, 7])
    positions, labels = torch.tensor([3, 14, 20, 44]), torch.tensor([1, 9, 40, 7])
    is_next = torch.tensor([True, False, True])

    def loss_and_gradients():
        output = model(*batch.inputs(), positions)
        loss = mlm_loss_sum(output.mlm_logits, labels) + nsp_loss_sum(output.nsp_logits, is_next)
        return output, loss, torch.autograd.grad(loss, list(model.parameters()))

    exact, exact_loss, exact_gradients = loss_and_gradients()
    with torch.autocast("cpu", torch.bfloat16):
        rough, rough_loss, rough_gradients = loss_and_gradients()
    assert rough.mlm_logits.dtype == torch.bfloat16
    assert rough_loss.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in model.parameters())
    largest = exact.mlm_logits.abs().max()
    assert (exact.mlm_logits - rough.mlm_logits).abs().max() < 0.03 * largest
    assert rough_loss.item() == pytest.approx(exact_loss.item(), rel=0.02)
    norms = [torch.cat([g.flatten() for g in gs]) for gs in (exact_gradients, rough_gradients)]
    assert torch.nn.functional.cosine_similarity(*norms, dim=0) > 0.995


def test_dropout_follows_the_default_generator(make_model, make_packed):
    model = make_model().train()
    batch = make_packed([5, 9])

    def run(seed):
        torch.manual_seed(seed)
        return model(*batch.inputs(), torch.tensor([1])).hidden

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_checkpointing_gives_the_same_bits_with_dropout(make_packed, precision):
    batch, positions = make_packed([5, 9, 3]), torch.tensor([2, 7, 8, 16])
    labels, is_next = torch.tensor([5, 50, 8, 1]), torch.tensor([True, False, True])
    results, counts = [], []
    for checkpointing in (False, True):
        model = BertForPreTraining(
            BertConfig(vocab_size=60, hidden_size=32, num_heads=4, num_layers=3),
            checkpointing=checkpointing,
        )
        init_weights(model, torch.Generator().manual_seed(1), std=0.2)
        runs = []
        model.bert.encoder.layers[1].register_forward_pre_hook(lambda *_, runs=runs: runs.append(1))
        torch.manual_seed(2)
        bits = []
        for _ in range(2):
            # The second micro-batch draws after the backward pass of the first.
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                output = model(*batch.inputs(), positions, labels)
            loss = output.mlm_loss_sum + nsp_loss_sum(output.nsp_logits, is_next)
            loss.backward()
            bits += [loss.detach(), output.hidden.detach()]
        results.append(bits + [p.grad for p in model.parameters()])
        counts.append(len(runs))
    assert all(torch.equal(plain, again) for plain, again in zip(*results, strict=True))
    assert counts == [2, 4]
    assert not torch.equal(results[0][0], results[0][2])


def test_checkpointing_is_of_training_alone(make_packed):
    config = BertConfig(vocab_size=60, hidden_size=32, num_heads=4)
    model = BertModel(config, checkpointing=True).eval()
    runs = []
    model.encoder.layers[0].register_forward_pre_hook(lambda *_: runs.append(1))
    model(*make_packed([3, 4]).inputs()).sum().backward()
    assert len(runs) == 1


def initialised(seed, **fields):
    config = BertConfig(vocab_size=500, hidden_size=64, num_heads=1, **fields)
    model = BertForPreTraining(config)
    init_weights(model, torch.Generator().manual_seed(seed))
    return model.state_dict()


def test_one_seed_gives_the_same_bits_with_and_without_the_next_sentence_head():
    torch.manual_seed(0)
    first = initialised(5)
    torch.manual_seed(1)
    second, other, without = initialised(5), initialised(6), initialised(5, nsp=False)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(
        first["bert.embeddings.token.weight"], other["bert.embeddings.token.weight"]
    )
    assert without.keys() < first.keys()
    assert all(torch.equal(first[name], without[name]) for name in without)


def test_initial_values_are_the_paper_s():
    for name, tensor in initialised(5, initializer_range=0.02).items():
        if tensor.dim() > 1:
            assert tensor.abs().max() <= 0.04, name
            # A normal cut at two standard deviations keeps 0.88 of its spread.
            if tensor.numel() > 4000:
                assert tensor.std().item() == pytest.approx(0.0176, rel=0.03), name
        else:
            assert tensor.eq(1.0 if name.endswith("norm.weight") else 0.0).all(), name


def test_the_encoder_runs_without_heads(make_packed):
    model = BertModel(BertConfig(vocab_size=60, hidden_size=32, num_heads=4)).eval()
    init_weights(model, torch.Generator().manual_seed(1))
    assert model(*make_packed([3, 4]).inputs()).shape == (7, 32)


def test_varlen_is_refused_where_it_cannot_run(make_packed):
    model = BertModel(BertConfig(vocab_size=60, hidden_size=32, num_heads=4), attention="varlen")
    with pytest.raises(ValueError, match="'varlen' cannot be used"):
        model(*make_packed([3, 4]).inputs())


def test_a_head_without_config_is_initialised_with_a_given_spread():
    head = torch.nn.Linear(64, 3)
    init_weights(head, torch.Generator().manual_seed(1), std=0.5)
    assert 0.3 < head.weight.std() < 0.6 and head.bias.abs().max() == 0
