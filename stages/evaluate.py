"""Stage evaluate: held-out figures beside the baselines, and a few filled sentences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from model.config import BertConfig
from pipeline.stage import Context, Result, Table
from pipeline.store import Artifact
from stages.config import EvaluateConfig
from stages.parallel import JobFailed, Record
from stages.remote import device_of, run_remote
from stages.tables import PAIR_NAMES, shard_files
from stages.text.tokenizer_files import tokenizer_files, vocabulary_digest
from stages.training_rows import drawn_masks, label_counts, training_rows
from stages.vocabulary_files import DIGEST_KEY, load_tokenizer

TOP = 5
PAIR_WORDS = {"nsp": "Next sentence", "sentence_order": "Sentence order"}


def run(context: Context) -> Result:
    """Evaluate in one task that has all CPUs (and a GPU, where one was granted)."""
    context.progress.start(None, "rows")
    record = run_remote(
        context,
        "stages.evaluate:evaluate_model",
        {
            "pretrain": context.inputs["pretrain"],
            "rows": training_rows(context.inputs),
            "drawn": {k: v for k, v in context.node.config.items() if k in ("mask", "seeds")},
            "heldout": context.inputs["heldout"],
            "vocab": context.inputs["vocab"],
            "config": EvaluateConfig.model_validate(context.node.config["evaluate"]),
            "device": device_of(context.node.settings["cluster"]["device"], context.granted.gpus),
            "pair": PAIR_NAMES[context.node.config.get("pair", "next_sentence")],
        },
    )
    context.progress.advance(record["figures"]["rows"])
    context.output.write_bytes(
        "figures.json", json.dumps(record["figures"], indent=1, sort_keys=True).encode()
    )
    numbers = {k: v for k, v in record["figures"].items() if isinstance(v, int | float)}
    context.metrics.log({f"heldout/{name}": value for name, value in numbers.items()}, step=0)
    filled = record["filled"]
    rows = [
        [f["sentence"], " · ".join(f"{t} {100 * p:.0f} %" for t, p in f["answers"])] for f in filled
    ]
    figures = dict(record["figures"])
    figures["filled"] = [[f["sentence"], [t for t, _ in f["answers"]]] for f in filled]
    return Result(
        figures=figures,
        flow=f"{figures['rows']:,} held-out rows -> {len(numbers)} figures",
        report=[
            _mlm_table(figures),
            *(
                _pair_table(figures, name, words)
                for name, words in PAIR_WORDS.items()
                if f"{name}_accuracy" in figures
            ),
            Table("Masked sentences filled in", ["sentence", "the likeliest tokens"], rows),
        ],
    )


def _mlm_table(f: Mapping[str, Any]) -> Table:
    rows = []
    for words, suffix in (("[MASK] alone", "_mask_tokens"), ("all, unmasked ones too", "")):
        if f"mlm_loss{suffix}" in f:
            model, unigram = f[f"mlm_loss{suffix}"], f[f"unigram_loss{suffix}"]
            rows.append(
                [
                    words,
                    f"{f[f'labels{suffix}']:,}",
                    f"{model:.3f} nats",
                    f"{unigram:.3f} nats",
                    f"{unigram - model:.3f} nats{_interval(f, suffix)}",
                    f"{100 * f[f'mlm_accuracy{suffix}']:.2f} %",
                ]
            )
    columns = ["held-out positions", "labels", "loss", "unigram loss", "better by", "right"]
    return Table("Masked tokens", columns, rows)


def _interval(f: Mapping[str, Any], suffix: str) -> str:
    low = f.get(f"nats_under_unigram{suffix}_low")
    high = f.get(f"nats_under_unigram{suffix}_high")
    return "" if low is None or high is None else f" (95 %: {low:.3f} to {high:.3f})"


def _pair_table(f: Mapping[str, Any], name: str, words: str) -> Table:
    low, high = f[f"{name}_accuracy_low"], f[f"{name}_accuracy_high"]
    return Table(
        words,
        ["held-out pairs", "accuracy", "95 % interval", "majority label", "loss"],
        [
            [
                f"{f[f'{name}_pairs']:,}",
                f"{100 * f[f'{name}_accuracy']:.1f} %",
                f"{100 * low:.1f} to {100 * high:.1f} %",
                f"{100 * f[f'{name}_majority_share']:.1f} %",
                f"{f[f'{name}_loss']:.3f} nats",
            ]
        ],
    )


def evaluate_model(
    pretrain: Artifact,
    rows: Artifact,
    drawn: Mapping[str, Any],
    heldout: Artifact,
    vocab: Artifact,
    config: EvaluateConfig,
    device: str,
    pair: str,
) -> Record:
    """Runs in a Ray task; returns {"figures", "filled"}.

    Args:
        rows: of training, for the baseline; of `mask`, or of `pairs` with what `drawn` says.
        drawn: `mask` and `seeds` of the node, where training draws its masks.
        pair: one of `PAIR_NAMES`' values.
    """
    from safetensors.torch import load

    from model.bert import BertForPreTraining
    from stages.metrics.intervals import ratio_interval, wilson
    from stages.training.device import choose_device, this_machine
    from stages.training.evaluate import evaluate
    from stages.training.row_groups import DataError, Limits, read_index
    from stages.training.weights import set_weights

    # Ray gives a task OMP_NUM_THREADS = its CPUs, which torch follows; on a cluster these are those
    # of one node, however much was granted.
    tokenizer = load_tokenizer(vocab)
    shape = BertConfig(**json.loads(pretrain.read_bytes("model.json")))
    model = BertForPreTraining(shape)
    set_weights(model, load(pretrain.read_bytes("weights.safetensors")), "pretrain's weights")
    model.to(choose_device(device, this_machine())).eval()
    names = [f"{heldout.data}/{name}" for name in shard_files(heldout, "validation")]
    limits = Limits(
        len(tokenizer.vocab),
        shape.max_position_embeddings,
        ((DIGEST_KEY.decode(), vocabulary_digest(tokenizer)),),
    )
    try:
        figures = evaluate(
            model,
            heldout.fs,
            read_index(heldout.fs, names),
            limits,
            mask_token_id=tokenizer.vocab.index("[MASK]"),
            label_counts=label_counts(
                rows, len(tokenizer.vocab), drawn_masks(drawn, tokenizer), limits
            ),
            max_rows=config.max_rows,
            documents=True,
        )
    except DataError as error:
        raise JobFailed(str(error)) from None
    values: dict[str, Any] = figures.values(pair) | {
        "rows": figures.rows,
        "tokens": figures.tokens,
        "labels": figures.all_labels.count,
        "labels_mask_tokens": figures.mask_tokens.count,
        "nats_under_unigram_mask_tokens": figures.mask_tokens.unigram_loss
        - figures.mask_tokens.loss,
    }
    if figures.by_document is not None and len(figures.by_document) > 1:
        labels, losses, unigram = figures.by_document.T
        nats = ratio_interval(unigram - losses, labels)
        values |= {
            "documents": len(labels),
            "nats_under_unigram_mask_tokens_low": nats.low,
            "nats_under_unigram_mask_tokens_high": nats.high,
        }
    if figures.nsp is not None and figures.nsp.pairs:
        accuracy = wilson(figures.nsp.correct, figures.nsp.pairs)
        values |= {
            f"{pair}_pairs": figures.nsp.pairs,
            f"{pair}_accuracy_low": accuracy.low,
            f"{pair}_accuracy_high": accuracy.high,
            f"{pair}_majority_share": figures.nsp.majority_share,
        }
    values = {k: v for k, v in values.items() if not isinstance(v, float) or math.isfinite(v)}
    filled = [fill_mask(model, vocab, sentence) for sentence in config.sentences]
    return {"figures": values, "filled": filled}


def fill_mask(model: Any, vocab: Artifact, sentence: str) -> dict[str, Any]:
    """The likeliest entries for the first `[MASK]` of a sentence, special tokens left out.

    Here `[MASK]` is the token, as people expect; in a corpus it is letters and brackets.
    """
    import tokenizers
    import torch

    tokenizer = load_tokenizer(vocab)
    length = model.config.max_position_embeddings
    definition = tokenizer_files(tokenizer, length)["tokenizer.json"]
    encoding = tokenizers.Tokenizer.from_str(definition.decode()).encode(sentence)
    ids = torch.tensor(encoding.ids[:length])
    places = (ids == tokenizer.vocab.index("[MASK]")).nonzero().flatten()
    if not len(places):
        raise JobFailed(f"evaluate.sentences: no [MASK] in {sentence!r}: put one where to fill in")
    device = next(model.parameters()).device
    with torch.no_grad():
        output = model(
            ids.to(device),
            torch.zeros_like(ids).to(device),
            torch.arange(len(ids)).to(device),
            torch.tensor([0, len(ids)], dtype=torch.int32).to(device),
            len(ids),
            places[:1].to(device),
        )
    logits = output.mlm_logits[0].float().cpu()
    logits[torch.from_numpy(~tokenizer.is_ordinary)] = -torch.inf
    probabilities = logits.softmax(-1)
    best = probabilities.topk(min(TOP, int(tokenizer.is_ordinary.sum())))
    answers = [
        [tokenizer.vocab[i], round(float(p), 4)]
        for p, i in zip(best.values, best.indices.tolist(), strict=True)
    ]
    return {"sentence": sentence, "answers": answers}
