import pytest
import torch

from model.bert import init_weights
from model.config import BertConfig
from model.task_heads import BertForTask
from model.task_losses import class_loss_sum
from model.task_parameters import depth_of, freeze, frozen_names, layer_groups

CONFIG = BertConfig(vocab_size=60, hidden_size=8, num_layers=12, num_heads=2)


def names_of(kind="sequence", config=CONFIG):
    with torch.device("meta"):
        return [name for name, _ in BertForTask(config, kind).named_parameters()]


def test_depths_rise_from_the_embeddings_to_the_head():
    depths = [depth_of(name, 12) for name in names_of()]
    assert depths == sorted(depths) and set(depths) == set(range(14))
    # Two digits are no one digit with more behind it.
    assert depth_of("bert.encoder.layers.11.output.bias", 12) == 12
    assert depth_of("bert.encoder.layers.1.output.bias", 12) == 2
    assert depth_of("bert.embeddings.norm.weight", 12) == 0
    assert depth_of("head.pooler.dense.weight", 12) == 13


@pytest.mark.parametrize("kind", ["sequence", "token", "span"])
def test_groups_hold_every_parameter_once_in_the_model_s_order(kind):
    names = names_of(kind)
    groups = layer_groups(names, 12, 0.9)
    assert [name for group in groups for name in group.names] == names
    assert [group.depth for group in groups] == list(range(14))
    assert [group.scale for group in groups] == pytest.approx([0.9 ** (13 - d) for d in range(14)])
    assert groups[-1].scale == 1.0 and all(n.startswith("head.") for n in groups[-1].names)
    assert {group.scale for group in layer_groups(names, 12)} == {1.0}


def test_groups_of_what_learns_alone():
    names = names_of()
    frozen = frozen_names(names, 12, embeddings=True, first_layers=3)
    groups = layer_groups([n for n in names if n not in frozen], 12, 0.5)
    assert [group.depth for group in groups] == list(range(4, 14))
    assert groups[0].scale == 0.5**9


def test_what_is_frozen():
    names = names_of()
    assert frozen_names(names, 12) == ()
    embeddings = frozen_names(names, 12, embeddings=True)
    assert embeddings == tuple(n for n in names if n.startswith("bert.embeddings."))
    two = frozen_names(names, 12, first_layers=2)
    assert {n.split(".")[3] for n in two} == {"0", "1"} and len(two) == 24
    encoder = frozen_names(names, 12, encoder=True)
    assert encoder == tuple(n for n in names if n.startswith("bert."))
    assert frozen_names(names, 12, embeddings=True, first_layers=12) == encoder


@pytest.mark.parametrize(
    "choice",
    [{}, {"embeddings": True}, {"embeddings": True, "first_layers": 1}, {"encoder": True}],
    ids=str,
)
def test_frozen_parameters_have_no_gradient_and_the_others_have(make_packed, choice):
    config = BertConfig(vocab_size=60, hidden_size=8, num_heads=2)
    model = BertForTask(config, "sequence", 3)
    init_weights(model, torch.Generator().manual_seed(1), std=0.3)
    assert set(freeze(model, encoder=True)) == {n for n in names_of() if n.startswith("bert.")} & {
        n for n, _ in model.named_parameters()
    }
    # A later choice takes the place of an earlier one.
    frozen = freeze(model, **choice)
    loss = class_loss_sum(model(*make_packed([5, 8]).inputs()), torch.tensor([0, 2]))
    loss.backward()
    without = tuple(name for name, p in model.named_parameters() if p.grad is None)
    assert without == frozen == tuple(n for n, p in model.named_parameters() if not p.requires_grad)


def test_choices_out_of_range_are_refused():
    for count in (-1, 13):
        with pytest.raises(ValueError, match=rf"first_layers={count} .* 12 layers: give 0 to 12"):
            frozen_names(names_of(), 12, first_layers=count)
    for decay in (0.0, 1.01, -0.5):
        with pytest.raises(ValueError, match=r"decay=.* must lie in \(0, 1\]"):
            layer_groups(names_of(), 12, decay)
