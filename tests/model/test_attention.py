from itertools import pairwise

import pytest
import torch

from model.attention import SelfAttention, choose_path, plan_attention
from model.config import BertConfig

A100 = {
    "device_type": "cuda",
    "compute_capability": (8, 0),
    "dtype": torch.bfloat16,
    "head_size": 64,
    "dropout": 0.0,
}
OBSTACLES = [
    ({"device_type": "cpu", "compute_capability": None}, "runs on CUDA, and this is cpu"),
    ({"device_type": "mps", "compute_capability": None}, "runs on CUDA, and this is mps"),
    ({"compute_capability": (7, 5)}, "needs compute capability 8.0"),
    ({"dtype": torch.float32}, "not in float32"),
    ({"head_size": 12}, "multiple of 8"),
    ({"head_size": 512}, "at most 256 wide"),
    ({"dropout": 0.1}, "attention_dropout is 0.1"),
]


@pytest.mark.parametrize("fields", [{}, {"compute_capability": (9, 0)}, {"dtype": torch.float16}])
def test_auto_takes_the_packed_kernel_where_it_runs(fields):
    assert choose_path("auto", **(A100 | fields)) == "varlen"
    assert choose_path("varlen", **(A100 | fields)) == "varlen"
    assert choose_path("sdpa", **(A100 | fields)) == "sdpa"


@pytest.mark.parametrize(("fields", "says"), OBSTACLES)
def test_auto_falls_back_and_varlen_says_why_it_cannot(fields, says):
    assert choose_path("auto", **(A100 | fields)) == "sdpa"
    assert choose_path("sdpa", **(A100 | fields)) == "sdpa"
    with pytest.raises(ValueError, match=f"'varlen' cannot be used: .*{says}.*=auto"):
        choose_path("varlen", **(A100 | fields))


def packed(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), max(lengths), sum(lengths)


@pytest.mark.parametrize("lengths", [[6], [5, 5], [1, 7, 3], [2, 1]])
def test_equals_the_plain_twin(plain_bert, lengths):
    torch.manual_seed(1)
    config = BertConfig(vocab_size=9, hidden_size=24, num_heads=3)
    attention = SelfAttention(config).double().eval()
    cu_seqlens, longest, tokens = packed(lengths)
    hidden = torch.randn(tokens, 24, dtype=torch.float64)
    result = attention(hidden, plan_attention(cu_seqlens, longest, tokens, "sdpa"))
    weights = {f"a.{n}": t.detach().numpy() for n, t in attention.state_dict().items()}
    for begin, end in pairwise(cu_seqlens):
        plain = plain_bert.attention(weights, "a", list(hidden[begin:end].numpy()), 3)
        for mine, other in zip(result[begin:end], plain, strict=True):
            torch.testing.assert_close(mine.detach(), torch.from_numpy(other))


@pytest.mark.parametrize("lengths", [[4, 4], [2, 5, 3]])
def test_every_position_attends_to_its_whole_sequence_and_to_no_other(lengths):
    torch.manual_seed(2)
    attention = SelfAttention(BertConfig(vocab_size=9, hidden_size=16, num_heads=2)).eval()
    cu_seqlens, longest, tokens = packed(lengths)
    plan = plan_attention(cu_seqlens, longest, tokens, "sdpa")
    hidden = torch.randn(tokens, 16)
    jacobian = torch.autograd.functional.jacobian(lambda h: attention(h, plan), hidden)
    reach = jacobian.abs().amax(dim=(1, 3))
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    own = owner[:, None] == owner[None]
    assert (reach[own] > 0).all()
    assert (reach[~own] == 0).all()


@pytest.mark.parametrize(
    ("offsets", "longest"), [([0, 7, 10], 5), ([0, 7, 9], 7), ([1, 5, 10], 7), ([0, 0, 10], 10)]
)
def test_offsets_that_do_not_describe_the_batch_are_refused(offsets, longest):
    with pytest.raises(ValueError, match="must rise from 0 to the 10 tokens"):
        plan_attention(torch.tensor(offsets, dtype=torch.int32), longest, 10, "sdpa")


def test_attention_dropout_acts_in_training_alone():
    torch.manual_seed(3)
    attention = SelfAttention(
        BertConfig(vocab_size=9, hidden_size=16, num_heads=2, attention_dropout=0.5)
    )
    plan = plan_attention(*packed([3, 7]), "sdpa")
    hidden = torch.randn(10, 16)
    assert not torch.equal(attention(hidden, plan), attention(hidden, plan))
    attention.eval()
    assert torch.equal(attention(hidden, plan), attention(hidden, plan))


@pytest.mark.parametrize("path", ["sdpa", "varlen"])
def test_both_paths_agree_with_torch_on_shapes_and_types(path):
    # Tensors without data: checks the calls of kernels that this machine may not have.
    with torch.device("meta"):
        attention = SelfAttention(BertConfig(vocab_size=9, hidden_size=128, num_heads=2)).eval()
        attention = attention.to(torch.bfloat16)
        plan = plan_attention(torch.empty(4, dtype=torch.int32), 30, 50, path)
        out = attention(torch.empty(50, 128, dtype=torch.bfloat16), plan)
    assert out.shape == (50, 128) and out.dtype == torch.bfloat16
    out.sum().backward()
    assert attention.qkv.weight.grad.shape == (384, 128)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
    reason="varlen_attn needs a CUDA device of compute capability 8.0 or more",
)
def test_the_packed_kernel_equals_the_padded_path():
    torch.manual_seed(4)
    attention = SelfAttention(BertConfig(vocab_size=9, hidden_size=128, num_heads=2)).eval()
    attention = attention.to("cuda", torch.bfloat16)
    cu_seqlens, longest, tokens = packed([17, 64, 1, 40])
    hidden = torch.randn(tokens, 128, device="cuda", dtype=torch.bfloat16)
    results = []
    for path in ("sdpa", "varlen"):
        leaf = hidden.clone().requires_grad_()
        out = attention(leaf, plan_attention(cu_seqlens.cuda(), longest, tokens, path))
        out.float().pow(2).sum().backward()
        results.append((out, leaf.grad))
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-2, rtol=2e-2)
