"""Stage export: weights and tokeniser -> a folder that `transformers` loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from model.config import BertConfig
from pipeline.lineage import lineage_of_inputs
from pipeline.stage import Context, Json, Result, Table
from stages.model_card import CARD_FILE, SHAPE, Card, model_card
from stages.model_card_use import PRETRAINED
from stages.registered_model import registered_model
from stages.tables import LABELS
from stages.text.tokenizer_files import tokenizer_files
from stages.vocabulary_files import load_tokenizer

USE = """\
from transformers import AutoModelForPreTraining, AutoTokenizer

folder = "{folder}"
model = AutoModelForPreTraining.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)"""


def _classes(pair: str) -> list[str]:
    """What the classes of `seq_relationship_logits` say, in their order."""
    from model.heads import IS_NEXT, NOT_NEXT

    words = {IS_NEXT: LABELS[pair][True], NOT_NEXT: LABELS[pair][False]}
    return [words[number] for number in sorted(words)]


def _classes_table(pair: str) -> Table:
    rows = [[str(number), words] for number, words in enumerate(_classes(pair))]
    return Table("seq_relationship_logits", ["class", "what it says of segments A and B"], rows)


def _card(context: Context, described: Mapping[str, Json], parameters: int) -> Card:
    trained = context.inputs["pretrain"].manifest
    training = {key: trained["config"].get(key) for key in ("objective", "train", "mask", "seeds")}
    return Card(
        name="pretrained BERT",
        described={"objective": PRETRAINED},
        shape={key: described[key] for key in SHAPE},
        parameters=parameters,
        training={key: value for key, value in training.items() if value},
        lineage=lineage_of_inputs(context.inputs),
    )


def run(context: Context) -> Result:
    """Write model.safetensors, config.json, the tokeniser's files and a model card."""
    from safetensors.torch import load, save

    from model.huggingface import to_huggingface

    pretrain = context.inputs["pretrain"]
    config = BertConfig(**json.loads(pretrain.read_bytes("model.json")))
    weights = load(pretrain.read_bytes("weights.safetensors"))
    tensors, described = to_huggingface(weights, config)
    pair = context.node.config.get("pair", "next_sentence")
    if config.nsp and pair != "next_sentence":
        # transformers keeps keys that it does not know, and calls class 0 "is next" in its pages.
        described |= {"pair_objective": pair, "seq_relationship_classes": _classes(pair)}
    tokenizer = load_tokenizer(context.inputs["vocab"])
    files: dict[str, bytes] = {
        "config.json": (json.dumps(described, indent=2, sort_keys=True) + "\n").encode(),
        "model.safetensors": save(tensors, {"format": "pt"}),
        **tokenizer_files(tokenizer, config.max_position_embeddings),
    }
    context.progress.start(len(files), "files")
    for name, data in files.items():
        context.output.write_bytes(name, data)
        context.progress.advance(1)
    card = _card(context, described, sum(tensor.numel() for tensor in weights.values()))
    # No part of the result: it names runs and folders.
    context.output.write_bytes(CARD_FILE, model_card(card).encode(), content=False)
    figures: dict[str, Any] = {
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        "bytes": sum(len(data) for data in files.values()),
        "architecture": described["architectures"][0],
    }
    return Result(
        figures=figures,
        flow=f"{figures['parameters']:,} parameters -> {len(files)} files, "
        f"{figures['bytes'] / 1e6:.1f} MB",
        report=[
            Table("Where the model is", ["folder"], [[context.output.shown]]),
            *([_classes_table(pair)] if config.nsp else []),
            Table(
                "Files",
                ["file", "size"],
                [[name, f"{len(data) / 1e3:,.1f} kB"] for name, data in files.items()],
            ),
        ],
        samples=[USE.format(folder=context.output.data)],
        model=registered_model("pretrained", PRETRAINED),
    )
