"""Models of tasks against transformers' own: folders both ways, logits, losses, gradients."""

import json

import pytest
import torch

from model.bert import BertForPreTraining, init_weights
from model.config import BertConfig
from model.huggingface import to_huggingface
from model.huggingface_files import CheckpointError, read_files
from model.huggingface_tasks import (
    load_task_folder,
    start_from_huggingface,
    task_from_huggingface,
    write_task_folder,
)
from model.packing import pack
from model.task_heads import BertForTask
from model.task_losses import IGNORED, class_loss_sum, span_loss_sum, squared_error_sum
from model.task_start import build_task, start_from_pretraining

transformers = pytest.importorskip("transformers")

CONFIG = BertConfig(
    vocab_size=120,
    hidden_size=64,
    num_heads=4,
    num_layers=2,
    max_position_embeddings=64,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    nsp=False,
)
TASKS = {
    "sequence": ("sequence", ("nein", "ja", "vielleicht")),
    "regression": ("sequence", ("similarity",)),
    "token": ("token", ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")),
    "span": ("span", ()),
}
AUTO = {
    "sequence": transformers.AutoModelForSequenceClassification,
    "token": transformers.AutoModelForTokenClassification,
    "span": transformers.AutoModelForQuestionAnswering,
}
LENGTHS = [20, 33, 5, 12]


def build(task, config=CONFIG, **options):
    kind, labels = TASKS[task]
    model = BertForTask(config, kind, len(labels) or 2, **options)
    generator = torch.Generator().manual_seed(1)
    init_weights(model, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def gold_of(task, lengths):
    """Labels [B], [B, S] or spans [B, 2] of a padded batch."""
    generator = torch.Generator().manual_seed(6)
    labels = TASKS[task][1]
    if task == "regression":
        return torch.randn(len(lengths), generator=generator)
    if task == "sequence":
        return torch.randint(0, len(labels), (len(lengths),), generator=generator)
    if task == "span":
        return torch.tensor([[n // 3, n // 2] for n in lengths[:-1]] + [[0, 0]])
    tags = torch.randint(0, len(labels), (len(lengths), max(lengths)), generator=generator)
    left_out = torch.rand(tags.shape, generator=generator) < 0.3
    left_out |= torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return tags.masked_fill(left_out, IGNORED)


def our_loss(task, model, batch, gold):
    """As transformers counts: means, over tags as over sequences; half the sum of a span's."""
    inputs = batch.inputs()
    scores = model(*inputs)
    if task == "regression":
        return squared_error_sum(scores, gold) / len(gold)
    if task == "sequence":
        return class_loss_sum(scores, gold) / len(gold)
    if task == "span":
        return span_loss_sum(scores, *inputs[3:], *gold.unbind(1)) / 2 / len(gold)
    flat = gold.flatten()[batch.rows]
    return class_loss_sum(scores, flat) / flat.ne(IGNORED).sum()


def their_loss(task, model, ids, segments, mask, gold):
    inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
    if task != "span":
        return model(**inputs, labels=gold).loss
    # One by one: its softmax would run over the columns of padding, too.
    losses = []
    for i, n in enumerate(mask.sum(1).tolist()):
        row = {name: tensor[i : i + 1, :n] for name, tensor in inputs.items()}
        start, end = gold[i : i + 1].unbind(1)
        losses.append(model(**row, start_positions=start, end_positions=end).loss)
    return torch.stack(losses).mean()


def their_scores(model, ids, segments, mask, rows):
    output = model(input_ids=ids, token_type_ids=segments, attention_mask=mask)
    if "start_logits" in output:
        both = torch.stack([output.start_logits, output.end_logits], 2)
        return both.flatten(0, 1)[rows]
    return output.logits if output.logits.ndim == 2 else output.logits.flatten(0, 1)[rows]


def same(ours, theirs):
    largest = float(theirs.detach().abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_folder_opens_in_transformers_and_computes_the_same(tmp_path, make_batch, task):
    kind, labels = TASKS[task]
    ours = build(task).train()
    write_task_folder(tmp_path, ours, labels)
    theirs, info = AUTO[kind].from_pretrained(tmp_path, output_loading_info=True)
    theirs.train()
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.architectures == [type(theirs).__name__]
    if labels:
        assert theirs.config.id2label == dict(enumerate(labels))
        assert theirs.config.label2id == {label: i for i, label in enumerate(labels)}
        assert theirs.config.num_labels == len(labels)
    padded, gold = make_batch(LENGTHS, vocab_size=120), gold_of(task, LENGTHS)
    # [PAD] does not learn there, even where it is text.
    padded[0].clamp_(min=1)
    batch = pack(*padded)
    same(ours(*batch.inputs()), their_scores(theirs, *padded, batch.rows))
    loss, reference = our_loss(task, ours, batch, gold), their_loss(task, theirs, *padded, gold)
    assert loss.item() == pytest.approx(reference.item(), rel=1e-5)
    if kind == "sequence":
        problem = "regression" if task == "regression" else "single_label_classification"
        assert theirs.config.problem_type == problem
    loss.backward()
    reference.backward()
    # Ours in their layout, by way of a folder of gradients.
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(parameter.grad)
    write_task_folder(tmp_path / "gradients", ours, labels)
    mine, _ = read_files(tmp_path / "gradients")
    others = {name: p.grad for name, p in theirs.named_parameters()}
    assert mine.keys() == others.keys()
    whole = torch.stack([gradient.norm() for gradient in others.values()]).norm()
    for name, gradient in others.items():
        # Key biases and a span's biases have none but rounding noise, which is under the bound.
        assert (mine[name] - gradient).norm() <= 1e-5 * whole, name


@pytest.mark.parametrize("task", TASKS)
def test_what_transformers_saves_is_read(tmp_path, make_batch, task):
    kind, labels = TASKS[task]
    torch.manual_seed(3)
    values = transformers.BertConfig(
        vocab_size=120,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        initializer_range=0.1,
        classifier_dropout=None if kind == "span" else 0.3,
    )
    if labels:
        values.id2label = dict(enumerate(labels))
        values.label2id = {label: i for i, label in enumerate(labels)}
    theirs = AUTO[kind].from_config(values).eval()
    theirs.save_pretrained(tmp_path)
    ours, found = load_task_folder(tmp_path)
    assert (found.kind, found.labels, found.left) == (kind, labels, ())
    assert found.head_dropout == ours.head_dropout == (0.1 if kind == "span" else 0.3)
    padded = make_batch(LENGTHS, vocab_size=120)
    batch = pack(*padded)
    with torch.no_grad():
        same(ours.eval()(*batch.inputs()), their_scores(theirs, *padded, batch.rows))


@pytest.mark.parametrize("task", TASKS)
def test_round_trip_is_without_loss(tmp_path, task):
    labels = TASKS[task][1]
    model = build(task, head_dropout=0.0 if task == "span" else 0.25)
    write_task_folder(tmp_path, model, labels, {"clozeline": {"task": "x"}})
    read, found = load_task_folder(tmp_path)
    assert found.config == model.config and found.labels == labels and found.left == ()
    assert found.head_dropout == model.head_dropout
    state = model.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in read.state_dict().items())
    assert json.loads((tmp_path / "config.json").read_text())["clozeline"] == {"task": "x"}


def test_labels_must_be_one_for_each_class(tmp_path):
    for labels in (("a", "b"), ("a", "b", "a"), ("a", "b", "c", "d")):
        with pytest.raises(ValueError, match="with 3 classes has 3 different labels"):
            write_task_folder(tmp_path / "new", build("sequence"), labels)
    with pytest.raises(ValueError, match="has 0 different labels"):
        write_task_folder(tmp_path / "new", build("span"), ("a", "b"))
    assert not (tmp_path / "new").exists()


def pretrained(nsp=True):
    model = BertForPreTraining(BertConfig(**(CONFIG.to_dict() | {"nsp": nsp})))
    init_weights(model, torch.Generator().manual_seed(2))
    return model, *to_huggingface(model.state_dict(), model.config)


def encoder_of(state):
    return {name: tensor for name, tensor in state.items() if name.startswith("bert.")}


CLASSIFIER = ("head.classifier.weight", "head.classifier.bias")
POOLER = ("head.pooler.dense.weight", "head.pooler.dense.bias")


def old_names(tensors):
    """As files of 2018 to 2020 have them, their decoder not tied."""
    renamed = {}
    for name, tensor in tensors.items():
        if "LayerNorm" in name:
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        renamed[name] = tensor
    renamed["bert.embeddings.position_ids"] = torch.arange(64)[None]
    renamed["cls.predictions.decoder.weight"] = torch.zeros(120, 64)
    return renamed


def bare(tensors):
    return {
        n.removeprefix("bert."): t.bfloat16() for n, t in tensors.items() if n.startswith("bert.")
    }


def under_the_decoder_s_name(tensors):
    renamed = dict(tensors)
    table = renamed.pop("bert.embeddings.word_embeddings.weight")
    return renamed | {"cls.predictions.decoder.weight": table}


@pytest.mark.parametrize("change", [dict, old_names, bare, under_the_decoder_s_name])
@pytest.mark.parametrize("kind", ["sequence", "token", "span"])
def test_any_bert_begins_a_task(kind, change):
    source, tensors, values = pretrained()
    labels = () if kind == "span" else ("a", "b", "c")
    start = start_from_huggingface(change(tensors), values, kind, labels)
    model = build_task(start, kind, len(labels) or 2, torch.Generator().manual_seed(1))
    names = [name for name, _ in model.named_parameters()]
    assert sorted((*start.taken, *start.drawn)) == sorted(names)
    top = ("head.scorer.weight", "head.scorer.bias") if kind == "span" else CLASSIFIER
    assert start.drawn == top
    assert ("head.pooler.dense.weight" in start.taken) == (kind == "sequence")
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert pooler.isdisjoint(start.left) if kind == "sequence" else pooler <= set(start.left)
    heads = {n for n in start.left if not n.startswith(("cls.", "bert.pooler."))}
    assert heads == set()
    tolerance = 0.01 if change is bare else 0.0
    state = model.state_dict()
    for name, tensor in encoder_of(source.state_dict()).items():
        torch.testing.assert_close(state[name], tensor, rtol=tolerance, atol=tolerance)
    if kind == "sequence":
        expected = source.pooler.dense.weight
        torch.testing.assert_close(
            state["head.pooler.dense.weight"], expected, rtol=tolerance, atol=tolerance
        )


def test_a_pooler_that_is_not_there_is_drawn_anew_and_said():
    _, tensors, values = pretrained(nsp=False)
    start = start_from_huggingface(tensors, values, "sequence", ("a", "b"))
    assert start.drawn == (*POOLER, *CLASSIFIER)
    model = build_task(start, "sequence", 2, torch.Generator().manual_seed(1))
    assert 0.01 < model.head.pooler.dense.weight.std() < 0.02
    # One seed gives one classifier, whatever is there of the head.
    _, tensors, values = pretrained()
    other = start_from_huggingface(tensors, values, "sequence", ("a", "b"))
    assert other.drawn == CLASSIFIER
    again = build_task(other, "sequence", 2, torch.Generator().manual_seed(1))
    assert torch.equal(again.head.classifier.weight, model.head.classifier.weight)


def test_our_own_pretraining_gives_the_same_start():
    source, tensors, values = pretrained()
    for kind, labels in (("sequence", ("a", "b")), ("token", ("a", "b")), ("span", ())):
        ours = start_from_pretraining(source.state_dict(), source.config, kind)
        theirs = start_from_huggingface(tensors, values, kind, labels)
        assert ours.taken == theirs.taken and ours.drawn == theirs.drawn
        assert ours.config == theirs.config
        assert all(torch.equal(t, theirs.state_dict[n]) for n, t in ours.state_dict.items())
        assert {n.partition(".")[0] for n in ours.left} <= {"mlm", "nsp", "pooler"}
    broken = dict(source.state_dict())
    del broken["bert.encoder.layers.1.output.bias"]
    with pytest.raises(ValueError, match=r"layers\.1\.output\.bias should have .* is missing"):
        start_from_pretraining(broken, source.config, "span")
    with pytest.raises(ValueError, match="not for a task of the kind 'token'"):
        build_task(ours, "token", 2)


def test_a_fine_tuned_head_goes_on_only_with_the_same_labels(tmp_path):
    for task in ("sequence", "token", "span"):
        kind, labels = TASKS[task]
        model = build(task)
        write_task_folder(tmp_path / task, model, labels)
        read = read_files(tmp_path / task)
        again = start_from_huggingface(*read, kind, labels)
        assert again.drawn == () and again.left == ()
        state = model.state_dict()
        assert all(torch.equal(t, state[n]) for n, t in again.state_dict.items())
        if labels:
            # The same names in another order mean other rows.
            other = start_from_huggingface(*read, kind, labels[::-1])
            assert other.drawn == CLASSIFIER
            assert other.left == ("classifier.bias", "classifier.weight")
    tagged = start_from_huggingface(*read_files(tmp_path / "token"), "sequence", ("a", "b"))
    assert tagged.drawn == (*POOLER, *CLASSIFIER)
    assert tagged.left == ("classifier.bias", "classifier.weight")


def test_models_that_are_not_what_they_say_are_refused(tmp_path):
    _, tensors, values = pretrained()
    with pytest.raises(CheckpointError, match=r"BertForPreTraining.*no fine-tuned model"):
        task_from_huggingface(tensors, values)
    with pytest.raises(CheckpointError, match=r"layer\.2\..* not in the checkpoint"):
        start_from_huggingface(tensors, values | {"num_hidden_layers": 3}, "span")
    write_task_folder(tmp_path, build("sequence"), TASKS["sequence"][1])
    tensors, values = read_files(tmp_path)
    for change, message in (
        ({"problem_type": "multi_label_classification"}, "problem_type='multi_label_class"),
        ({"id2label": {"0": "a", "2": "b"}}, "must number 2 labels from 0 up"),
        ({"id2label": {"0": "a", "1": "b"}}, r"classifier.weight has shape \(3, 64\)"),
        ({"model_type": "roberta"}, "model_type='roberta'"),
    ):
        with pytest.raises(CheckpointError, match=message):
            task_from_huggingface(tensors, values | change)
    del tensors["classifier.bias"]
    with pytest.raises(CheckpointError, match=r"classifier.bias is not .* whole BertForSequence"):
        task_from_huggingface(tensors, values)


def test_pipelines_of_transformers_give_labels(tmp_path):
    """With the folder alone; the tokenizer's files are the export's matter."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    for task, name, score in (
        ("sequence", "text-classification", 1.0),
        ("regression", "text-classification", None),
    ):
        folder = tmp_path / task
        model = build(task).eval()
        write_task_folder(folder, model, TASKS[task][1])
        tokenizer.save_pretrained(folder)
        predict = transformers.pipeline(name, model=str(folder), device="cpu")
        (answer,) = predict("a b c")
        ids = torch.tensor(tokenizer("a b c")["input_ids"])
        batch = pack(ids[None], 0 * ids[None], torch.ones_like(ids)[None])
        with torch.no_grad():
            (logits,) = model(*batch.inputs())
        expected = logits if score is None else logits.softmax(0)
        assert answer["label"] == TASKS[task][1][int(expected.argmax())]
        assert answer["score"] == pytest.approx(expected.max().item(), abs=1e-5)
