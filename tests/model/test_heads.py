import torch

from model.heads import (
    IS_NEXT,
    NOT_NEXT,
    MaskedLMHead,
    NextSentenceHead,
    Pooler,
    next_sentence_logits,
    vocabulary_logits,
)

# Seed 2.4; the seed multiplies from the left, so its matrices are transposed here.
ANSWERS = ["I", "think", "understand", "love", "dog", "cat"]
H_MASK = torch.tensor([0.1, 0.6, 0.2, 0.9])
W_VOCAB = torch.tensor(
    [
        [0.2, 0.1, -0.3, 0.4, -0.1, 0.2],
        [-0.1, 0.3, 0.2, -0.2, 0.4, -0.3],
        [0.3, -0.2, 0.1, 0.2, -0.3, 0.1],
        [-0.2, 0.4, -0.1, 0.1, 0.2, -0.2],
    ]
).T
B_VOCAB = torch.tensor([0.05, -0.05, 0.1, 0.0, -0.1, 0.05])

# Seed 3.3.
H_CLS = torch.tensor([0.5, 0.3, 0.7, 0.2])
W1 = torch.tensor(
    [[0.2, 0.1, -0.1, 0.3], [0.1, -0.2, 0.3, 0.1], [-0.1, 0.3, 0.2, -0.2], [0.3, 0.1, -0.2, 0.2]]
).T
W2 = torch.tensor([[0.6, -0.3], [-0.2, 0.5], [0.4, -0.1], [-0.3, 0.6]]).T


def test_vocabulary_projection_gives_the_seed_s_numbers():
    logits = vocabulary_logits(H_MASK, W_VOCAB, B_VOCAB)
    expected = torch.tensor([-0.11, 0.46, 0.12, 0.05, 0.25, -0.27])
    torch.testing.assert_close(logits, expected, atol=1e-6, rtol=0)
    probabilities = torch.tensor([0.134, 0.236, 0.168, 0.157, 0.191, 0.114])
    torch.testing.assert_close(logits.softmax(0), probabilities, atol=5e-4, rtol=0)
    assert ANSWERS[int(logits.argmax())] == "think"


def test_next_sentence_classifier_gives_the_seed_s_numbers(toy_config):
    pooler, head = Pooler(toy_config), NextSentenceHead(toy_config)
    with torch.no_grad():
        pooler.dense.weight.copy_(W1)
        pooler.dense.bias.zero_()
        head.classifier.weight.copy_(W2)
        head.classifier.bias.zero_()
    hidden = pooler(H_CLS[None])[0]
    expected = torch.tensor([0.119, 0.217, 0.139, 0.080])
    torch.testing.assert_close(hidden, expected, atol=5e-4, rtol=0)
    probabilities = next_sentence_logits(H_CLS[None], pooler, head).softmax(1)[0]
    expected = torch.tensor([0.488, 0.512])
    torch.testing.assert_close(probabilities, expected, atol=5e-4, rtol=0)
    assert probabilities[NOT_NEXT] > probabilities[IS_NEXT]


def test_the_projection_is_tied_to_the_token_table(toy_config):
    head = MaskedLMHead(toy_config)
    table = torch.randn(8, 4, requires_grad=True)
    hidden = torch.randn(3, 4)
    logits = head(hidden, table)
    assert logits.shape == (3, 8)
    logits.sum().backward()
    assert table.grad.abs().min() > 0
    assert sorted(name for name, _ in head.named_parameters()) == [
        "bias",
        "dense.bias",
        "dense.weight",
        "norm.bias",
        "norm.weight",
    ]
