import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from model.bert import BertForPreTraining
from model.huggingface import (
    CheckpointError,
    config_from_huggingface,
    from_huggingface,
    load_folder,
    read_folder,
    to_huggingface,
    write_folder,
)
from model.packing import pack, unpack

transformers = pytest.importorskip("transformers")

SHAPES = {
    "tiny": {"vocab_size": 200, "hidden_size": 128, "num_heads": 2, "num_layers": 2},
    "wide": {"vocab_size": 300, "hidden_size": 768, "num_heads": 12, "num_layers": 3},
}


def same(first, second):
    """Equal within 1e-5 of the largest logit."""
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5 * float(second.abs().max()))


def compare(ours, theirs, batch):
    ids, segments, mask = batch
    packed = pack(ids, segments, mask)
    theirs.eval()
    with torch.no_grad():
        mine = ours(*packed.inputs(), torch.arange(len(packed.input_ids)))
        other = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask)
    logits = other.prediction_logits if ours.config.nsp else other.logits
    same(mine.mlm_logits, logits.flatten(0, 1)[packed.rows])
    if ours.config.nsp:
        same(mine.nsp_logits, other.seq_relationship_logits)


@pytest.mark.parametrize("nsp", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_loads_what_we_write(tmp_path, make_model, make_batch, shape, nsp):
    model = make_model(**SHAPES[shape], nsp=nsp, pad_token_id=4)
    write_folder(tmp_path, model)
    kind = transformers.BertForPreTraining if nsp else transformers.BertForMaskedLM
    theirs, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.pad_token_id == 4
    assert theirs.config.architectures == [kind.__name__]
    compare(model, theirs, make_batch([20, 33, 5], vocab_size=200))


@pytest.mark.parametrize("nsp", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_we_load_what_transformers_writes(tmp_path, make_batch, shape, nsp):
    fields = SHAPES[shape]
    torch.manual_seed(1)
    kind = transformers.BertForPreTraining if nsp else transformers.BertForMaskedLM
    theirs = kind(
        transformers.BertConfig(
            vocab_size=fields["vocab_size"],
            hidden_size=fields["hidden_size"],
            num_hidden_layers=fields["num_layers"],
            num_attention_heads=fields["num_heads"],
            intermediate_size=4 * fields["hidden_size"],
            initializer_range=0.1,
        )
    )
    theirs.save_pretrained(tmp_path)
    ours, checkpoint = load_folder(tmp_path)
    assert checkpoint.missing == () and checkpoint.ignored == ()
    assert checkpoint.config.nsp == nsp
    compare(ours.eval(), theirs, make_batch([20, 33, 5], vocab_size=200))


def test_hidden_states_equal_those_of_a_bare_encoder(tmp_path, make_batch):
    torch.manual_seed(2)
    theirs = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
        )
    ).eval()
    theirs.save_pretrained(tmp_path)
    ours, checkpoint = load_folder(tmp_path, torch.Generator().manual_seed(1))
    assert checkpoint.config.nsp
    assert checkpoint.missing == (
        "mlm.bias",
        "mlm.dense.bias",
        "mlm.dense.weight",
        "mlm.norm.bias",
        "mlm.norm.weight",
        "nsp.classifier.bias",
        "nsp.classifier.weight",
    )
    ids, segments, mask = make_batch([8, 3])
    batch = pack(ids, segments, mask)
    with torch.no_grad():
        mine = ours.eval().bert(*batch.inputs())
        other = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask)
    same(mine, other.last_hidden_state.flatten(0, 1)[batch.rows])
    same(ours.pooler(unpack(mine, batch)[:, 0]), other.pooler_output)


@pytest.mark.parametrize("nsp", [True, False])
def test_round_trip_is_without_loss(tmp_path, make_model, nsp):
    model = make_model(nsp=nsp, intermediate_size=48, type_vocab_size=3, layer_norm_eps=1e-6)
    write_folder(tmp_path, model, {"clozeline": {"steps": 7}})
    checkpoint = read_folder(tmp_path)
    assert checkpoint.config == model.config
    assert checkpoint.missing == () and checkpoint.ignored == ()
    state = model.state_dict()
    assert checkpoint.state_dict.keys() == state.keys()
    assert all(torch.equal(checkpoint.state_dict[name], state[name]) for name in state)
    assert json.loads((tmp_path / "config.json").read_text())["clozeline"] == {"steps": 7}


def test_the_file_holds_tied_weights_once_and_says_its_format(tmp_path, make_model):
    write_folder(tmp_path, make_model())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert file.metadata() == {"format": "pt"}
    assert {"bert.embeddings.word_embeddings.weight", "cls.predictions.bias"} <= names
    assert not any("decoder" in name or "position_ids" in name for name in names)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tie_word_embeddings"] is True and config["hidden_act"] == "gelu"


def old_names(tensors):
    """As files of 2018 to 2020 have them."""
    old = {}
    for name, tensor in tensors.items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        old[name] = tensor
    old["bert.embeddings.position_ids"] = torch.arange(512)[None]
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    return old


def without_prefix(tensors):
    return {
        name.removeprefix("bert."): t for name, t in tensors.items() if name.startswith("bert.")
    }


def test_older_files_and_bare_names_are_read(make_model):
    model = make_model()
    tensors, config = to_huggingface(model.state_dict(), model.config)
    state = model.state_dict()
    old = from_huggingface(old_names(tensors), config)
    assert old.missing == () and old.ignored == ()
    assert all(torch.equal(old.state_dict[name], state[name]) for name in state)
    bare = from_huggingface(without_prefix(tensors), config)
    assert set(bare.missing) == {n for n in state if n.startswith(("mlm", "nsp"))}
    assert all(torch.equal(tensor, state[name]) for name, tensor in bare.state_dict.items())


def test_the_head_of_another_task_is_ignored_and_named(make_model):
    model = make_model()
    tensors, config = to_huggingface(model.state_dict(), model.config)
    task = {n: t for n, t in tensors.items() if n.startswith("bert.") and "pooler" not in n}
    checkpoint = from_huggingface(task | {"classifier.weight": torch.zeros(3, 32)}, config)
    assert checkpoint.ignored == ("classifier.weight",)
    assert not checkpoint.config.nsp


def test_half_precision_weights_become_float32(make_model):
    model = make_model()
    tensors, config = to_huggingface(model.state_dict(), model.config)
    half = from_huggingface({n: t.bfloat16() for n, t in tensors.items()}, config)
    assert {t.dtype for t in half.state_dict.values()} == {torch.float32}


def test_weights_that_do_not_fit_are_refused(make_model):
    model = make_model()
    tensors, config = to_huggingface(model.state_dict(), model.config)
    with pytest.raises(CheckpointError, match=r"layer\.2\..* not in the checkpoint.*num_hidden"):
        from_huggingface(tensors, config | {"num_hidden_layers": 3})
    with pytest.raises(CheckpointError, match=r"shape \(60, 32\).*asks for \(61, 32\)"):
        from_huggingface(tensors, config | {"vocab_size": 61})
    untied = tensors | {"cls.predictions.decoder.weight": torch.zeros(60, 32)}
    with pytest.raises(CheckpointError, match=r"differs from .* ties them"):
        from_huggingface(untied, config)
    state = dict(model.state_dict())
    state.pop("mlm.bias")
    with pytest.raises(CheckpointError, match=r"missing \['mlm.bias'\]"):
        to_huggingface(state, model.config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "roberta"),
        ("hidden_act", "gelu_new"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("num_attention_heads", 7),
    ],
)
def test_configurations_that_are_not_this_model_are_refused(key, value):
    with pytest.raises(CheckpointError, match=f"{key}=|try num_heads"):
        config_from_huggingface({"model_type": "bert", key: value}, nsp=True)


def test_an_empty_configuration_is_bert_base():
    config = config_from_huggingface({}, nsp=True)
    theirs = transformers.BertConfig()
    assert config.vocab_size == theirs.vocab_size and config.num_layers == 12
    assert config.intermediate_size == theirs.intermediate_size
    assert config.layer_norm_eps == theirs.layer_norm_eps


def test_pickles_and_damaged_files_are_refused(tmp_path, make_model):
    with pytest.raises(CheckpointError, match=r"config.json is not there"):
        read_folder(tmp_path / "nowhere")
    write_folder(tmp_path, make_model())
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="is damaged"):
        read_folder(tmp_path)
    torch.save({}, weights)
    with pytest.raises(CheckpointError, match=r"is a pickle .*can run code.*save_pretrained"):
        read_folder(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors is not there"):
        read_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04never unpickled")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin.*can run code.*save_pretrained"):
        read_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    save_file({"x": torch.zeros(1)}, weights)
    with pytest.raises(CheckpointError, match="is not JSON"):
        read_folder(tmp_path)


def test_building_a_model_from_a_folder_needs_no_network(tmp_path, make_model):
    model = make_model()
    write_folder(tmp_path, model)
    loaded, _ = load_folder(tmp_path)
    assert isinstance(loaded, BertForPreTraining)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True)
    )
