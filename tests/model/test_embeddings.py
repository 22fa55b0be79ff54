import pytest
import torch

from model.config import BertConfig
from model.embeddings import Embeddings

INPUT_REPRESENTATION = [  # seed 1.7
    [0.27, 0.27, 0.27, 0.27],
    [1.12, 0.02, 3.02, 2.12],
    [4.02, 1.12, 0.12, 2.02],
    [1.12, 0.12, 3.02, 2.02],
    [0.02, 3.02, 1.12, 4.12],
    [0.17, 0.22, 0.17, 0.12],
    [1.08, 0.03, 2.98, 2.03],
    [1.98, 2.03, 4.08, 0.03],
    [3.03, -0.02, 2.03, 1.08],
    [0.18, 0.18, 0.18, 0.08],
]


@pytest.fixture
def seed_embeddings(toy_config, toy_tables):
    embeddings = Embeddings(toy_config)
    token, segment, position = toy_tables
    with torch.no_grad():
        embeddings.token.weight.copy_(token)
        embeddings.segment.weight.copy_(segment)
        embeddings.position.weight.copy_(position)
    return embeddings


def test_sum_gives_the_seed_s_input_representation(seed_embeddings, toy_pair):
    summed = seed_embeddings.embedding_sum(*toy_pair)
    torch.testing.assert_close(summed, torch.tensor(INPUT_REPRESENTATION), atol=1e-6, rtol=0)


def test_masking_changes_position_4_alone(seed_embeddings, toy_pair):
    ids, segments, positions = toy_pair
    masked = ids.clone()
    masked[4] = 7
    summed = seed_embeddings.embedding_sum(masked, segments, positions)
    expected = torch.tensor(INPUT_REPRESENTATION)
    expected[4] = torch.tensor([0.32, 0.32, 0.42, 0.42])  # seed 2.3
    torch.testing.assert_close(summed, expected, atol=1e-6, rtol=0)


def test_lookup_is_a_product_with_one_hot_vectors(seed_embeddings, toy_pair):
    ids, segments, positions = toy_pair
    product = (
        torch.eye(8)[ids] @ seed_embeddings.token.weight
        + torch.eye(2)[segments] @ seed_embeddings.segment.weight
        + torch.eye(10)[positions] @ seed_embeddings.position.weight
    )
    torch.testing.assert_close(seed_embeddings.embedding_sum(*toy_pair), product)


def test_gradient_touches_only_the_rows_looked_up(toy_config):
    embeddings = Embeddings(toy_config)
    ids = torch.tensor([2, 5, 2])
    summed = embeddings.embedding_sum(ids, torch.tensor([1, 1, 1]), torch.tensor([0, 1, 2]))
    upstream = torch.arange(1.0, 13.0).view(3, 4)
    summed.backward(upstream)
    expected = torch.zeros(8, 4)
    expected[2] = upstream[0] + upstream[2]
    expected[5] = upstream[1]
    torch.testing.assert_close(embeddings.token.weight.grad, expected)
    assert embeddings.segment.weight.grad[0].abs().max() == 0
    torch.testing.assert_close(embeddings.position.weight.grad[:3], upstream)
    assert embeddings.position.weight.grad[3:].abs().max() == 0


def test_forward_normalises_each_position(toy_config, toy_pair):
    embeddings = Embeddings(toy_config).eval()
    normed = embeddings(*toy_pair)
    torch.testing.assert_close(normed.mean(1), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(normed.var(1, correction=0), torch.ones(10), atol=1e-4, rtol=0)


def test_dropout_acts_in_training_alone():
    embeddings = Embeddings(BertConfig(vocab_size=8, hidden_size=128, hidden_dropout=0.5))
    inputs = torch.arange(8), torch.zeros(8, dtype=torch.long), torch.arange(8)
    assert (embeddings(*inputs) == 0).float().mean() > 0.4
    assert not (embeddings.eval()(*inputs) == 0).any()


def test_a_position_beyond_the_table_is_refused(toy_config):
    embeddings = Embeddings(toy_config)
    inputs = torch.zeros(11, dtype=torch.long), torch.zeros(11, dtype=torch.long)
    embeddings.embedding_sum(inputs[0][:10], inputs[1][:10], torch.arange(10))
    with pytest.raises(ValueError, match=r"11 tokens .* table of 10 rows: truncate .* windows"):
        embeddings.embedding_sum(*inputs, torch.arange(11))
