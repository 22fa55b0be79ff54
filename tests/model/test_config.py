import json

import pytest

from model.config import SIZES, BertConfig


def test_intermediate_size_is_four_times_hidden_size_unless_given():
    assert BertConfig(vocab_size=10).intermediate_size == 512
    assert BertConfig(vocab_size=10, intermediate_size=96).feed_forward_size == 96


def test_round_trip_through_json():
    config = BertConfig(vocab_size=99, hidden_size=64, num_heads=4, nsp=False, pad_token_id=3)
    assert BertConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_named_sizes_are_those_of_the_papers():
    shapes = {n: (s["num_layers"], s["hidden_size"], s["num_heads"]) for n, s in SIZES.items()}
    assert shapes == {
        "tiny": (2, 128, 2),
        "mini": (4, 256, 4),
        "small": (4, 512, 8),
        "medium": (8, 512, 8),
        "base": (12, 768, 12),
        "large": (24, 1024, 16),
    }
    for size in SIZES.values():
        assert BertConfig(vocab_size=10, **size).head_size == 64


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_heads": 5, "hidden_size": 128}, "try num_heads=4"),
        ({"hidden_size": 0}, "hidden_size=0 must be a whole number"),
        ({"num_layers": 2.0}, r"num_layers=2\.0 must be a whole number"),
        ({"hidden_dropout": 1.0}, r"hidden_dropout=1\.0 must lie in \[0, 1\)"),
        ({"attention_dropout": -0.1}, "attention_dropout"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps"),
        ({"initializer_range": float("nan")}, "initializer_range"),
        ({"pad_token_id": 10}, "give the id of"),
    ],
)
def test_errors_say_the_mend(fields, says):
    with pytest.raises(ValueError, match=says):
        BertConfig(**({"vocab_size": 10} | fields))


def test_from_dict_names_the_nearest_key():
    with pytest.raises(ValueError, match="did you mean hidden_size"):
        BertConfig.from_dict({"vocab_size": 10, "hiden_size": 8})
    with pytest.raises(ValueError, match="vocab_size is missing"):
        BertConfig.from_dict({"hidden_size": 8})
