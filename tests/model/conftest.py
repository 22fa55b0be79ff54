import importlib.util
from pathlib import Path

import pytest
import torch

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.packing import pack

# The seed's toy example (sections 1.2 and 1.5), [MASK] as an eighth row (2.3).
WORDS = ["[CLS]", "[SEP]", "I", "think", "understand", "love", "dog", "[MASK]"]
TOKEN_TABLE = [
    [0.2, 0.2, 0.2, 0.2],
    [0.1, 0.1, 0.1, 0.1],
    [1, 0, 3, 2],
    [4, 1, 0, 2],
    [0, 3, 1, 4],
    [2, 2, 4, 0],
    [3, 0, 2, 1],
    [0.3, 0.3, 0.3, 0.3],
]
SEGMENT_TABLE = [[0.02] * 4, [-0.02] * 4]
POSITION_TABLE = [
    [0.05, 0.05, 0.05, 0.05],
    [0.10, 0.00, 0.00, 0.10],
    [0.00, 0.10, 0.10, 0.00],
    [0.10, 0.10, 0.00, 0.00],
    [0.00, 0.00, 0.10, 0.10],
    [0.05, 0.10, 0.05, 0.00],
    [0.10, 0.05, 0.00, 0.05],
    [0.00, 0.05, 0.10, 0.05],
    [0.05, 0.00, 0.05, 0.10],
    [0.10, 0.10, 0.10, 0.00],
]
SENTENCE_PAIR = ["[CLS]", "I", "think", "I", "understand", "[SEP]", "I", "love", "dog", "[SEP]"]
SEGMENTS = [0] * 6 + [1] * 4

TOY_CONFIG = BertConfig(
    vocab_size=8, hidden_size=4, num_layers=2, num_heads=2, max_position_embeddings=10
)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def toy_config():
    return TOY_CONFIG


@pytest.fixture
def toy_pair():
    """Ids, segments and positions of the seed's sentence pair, int64 [10] each."""
    ids = torch.tensor([WORDS.index(word) for word in SENTENCE_PAIR])
    return ids, torch.tensor(SEGMENTS), torch.arange(10)


@pytest.fixture
def toy_tables():
    return tuple(torch.tensor(t) for t in (TOKEN_TABLE, SEGMENT_TABLE, POSITION_TABLE))


@pytest.fixture(scope="session")
def plain_bert():
    path = Path(__file__).parents[1] / "oracle" / "plain_bert.py"
    spec = importlib.util.spec_from_file_location("plain_bert", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(seed=1, std=None, **fields):
    """A model in evaluation mode with larger weights than at initialisation, biases too."""
    config = BertConfig(**({"vocab_size": 60, "hidden_size": 32, "num_heads": 4} | fields))
    generator = torch.Generator().manual_seed(seed)
    model = BertForPreTraining(config)
    init_weights(model, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.15 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@pytest.fixture
def make_model():
    return build


def ragged(lengths, vocab_size=60, width=None, seed=3):
    """A padded random batch: ids, segments and attention mask, [B, S] each."""
    generator = torch.Generator().manual_seed(seed)
    width = width or max(lengths)
    ids = torch.randint(0, vocab_size, (len(lengths), width), generator=generator)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    segments = (torch.arange(width) >= torch.tensor(lengths)[:, None] // 2).long()
    return ids, segments, mask.long()


@pytest.fixture
def make_batch():
    return ragged


@pytest.fixture
def make_packed():
    return lambda lengths, **kwargs: pack(*ragged(lengths, **kwargs))
