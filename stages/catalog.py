"""The catalogue: from a validated config to the nodes of the graph.

The pure part of the project that knows all stages by name. It imports no stage: a stage's code is
named by a string and loaded only when a node of it runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig
from pipeline.stage import Json, Node, RawInput, Resources
from stages.config import Config
from stages.corpus_config import INHERITED, CorpusConfig
from stages.finetune_nodes import finetune_node
from stages.plugins import plugin_source
from stages.stage_list import EVALUATE, EXPORT, MASK, PAIRS, PRETRAIN, SHARD, VOCAB
from stages.summary import summary_lines
from stages.task_config import TaskConfig
from stages.task_nodes import task_node
from stages.train_config import MixedConfig, PhaseConfig
from stages.training_nodes import cluster_settings, training_resources

HELD_OUT_SEED = 15
"""Held-out masks never follow `seed`: two runs are compared on the same masked positions."""


class TextCatalog:
    """Ours: raw text to a pretrained BERT."""

    config_model: type[RunConfig] = Config

    def nodes(self, config: RunConfig) -> list[Node]:
        """The graph of `config`: data, one chain a phase, evaluation and export, and tasks.

        Where every task starts from an encoder that is given, tasks are all there is to do.
        """
        if not isinstance(config, Config):
            raise TypeError(f"expected {Config.__name__}, got {type(config).__name__}")
        tasks = config.resolved_tasks()
        if tasks and all(task.init_from is not None for task in tasks.values()):
            return _tasks(config, tasks)
        nodes = [_shard(config), _vocab(config)]
        before: str | None = None
        for position, phase in enumerate(config.resolved_phases()):
            nodes.append(_pairs(config, phase))
            if config.mask.when == "ahead":
                nodes.append(_mask(config, phase))
            nodes += [_held_out(config, phase), _pretrain(config, phase, position, before)]
            before = f"pretrain/{phase.max_seq_length}"
        nodes += [_evaluate(config), _export(config), *_tasks(config, tasks)]
        return nodes

    def summary(self, figures: Mapping[str, Mapping[str, Json]]) -> list[str]:
        """What a person wants to read when a run ends."""
        return summary_lines(figures)


CATALOG = TextCatalog()


def _tasks(config: Config, tasks: Mapping[str, TaskConfig]) -> list[Node]:
    pretrained = f"pretrain/{_last(config).max_seq_length}"
    return [
        node
        for name, task in tasks.items()
        for node in (
            task_node(config, name, task),
            finetune_node(config, name, task, pretrained),
        )
    ]


def _shard(config: Config) -> Node:
    whole = config.corpus.model_dump(mode="json")
    # The listing stands for the paths: the same files elsewhere are the same corpus.
    outside = {"paths", "sources", "max_unreadable_share"}
    if config.corpus.kind == "python_docs":
        outside |= {*INHERITED} - {"sample", "repeat"}
    else:
        outside |= {"distributions"} | ({*INHERITED} if config.corpus.sources else set())
    sentences, libraries, plugins = config.corpus.sentences, list(SHARD.libraries), {}
    if config.corpus.languages:
        libraries.append("py3langid")
    if sentences == "sentencex":
        libraries.append("sentencex")
    else:
        outside.add("language")
    if ":" in sentences:
        plugins = {"plugins": {"corpus.sentences": plugin_source("corpus.sentences", sentences)}}
    corpus = {key: value for key, value in whole.items() if key not in outside}
    corpus |= _in_effect(config.corpus)
    if config.corpus.sources:
        corpus["sources"] = [
            source.model_dump(mode="json", exclude={"paths"})
            for source in config.corpus.resolved_sources()
        ]
    return Node(
        name="shard",
        stage=dataclasses.replace(SHARD, libraries=tuple(libraries)),
        config={"corpus": corpus, "seeds": {"split": config.seed_for("split")}, **plugins},
        settings={
            "corpus": whole,
            "speed": config.speed.model_dump(mode="json"),
        },
        raw=_listing(config),
    )


def _in_effect(corpus: CorpusConfig) -> dict[str, Any]:
    """Keys that act only with others, as far as they do: setting one that does not makes nothing
    anew."""
    languages = sorted(corpus.languages)
    near = corpus.near_duplicates
    alone = set() if corpus.quality.min_stop_words is not None else {"stop_words"}
    return {
        "languages": languages,
        "min_language_probability": corpus.min_language_probability if languages else None,
        "near_duplicates": near.model_dump(mode="json") if near.enabled else None,
        "quality": corpus.quality.model_dump(mode="json", exclude=alone),
    }


def _listing(config: Config) -> Callable[[], RawInput]:
    def listing() -> RawInput:
        from stages.raw import list_corpus

        return list_corpus(config.corpus, Path.cwd())

    return listing


def _vocab(config: Config) -> Node:
    vocab = config.vocab.model_dump(mode="json")
    existing = config.vocab.from_ is not None
    exact = existing or config.vocab.trainer == "exact"
    return Node(
        name="vocab",
        # Two runs of tokenizers' own trainer may differ: that is no fault of the stage.
        stage=VOCAB if exact else dataclasses.replace(VOCAB, deterministic=False),
        # The listing stands for an existing vocabulary: the same one elsewhere is the same.
        config={"vocab": {"from": "listed"} if existing else vocab},
        settings={
            "speed": config.speed.model_dump(mode="json"),
            **({"vocab": vocab} if existing else {}),
        },
        inputs={"shard": "shard"},
        raw=_vocabulary_listing(config) if existing or config.vocab.required else None,
    )


def _vocabulary_listing(config: Config) -> Callable[[], RawInput]:
    def listing() -> RawInput:
        from stages.vocabulary_source import list_vocabulary

        return list_vocabulary(config.vocab, Path.cwd())

    return listing


def _pairs(config: Config, phase: PhaseConfig) -> Node:
    pairs = config.pairs.model_dump(mode="json") | {"max_seq_length": phase.max_seq_length}
    objective = config.objective.model_dump(mode="json")
    without_effect = ["across_documents"]
    if not config.objective.nsp:
        without_effect = ["balance", "partner", "short_sequence_probability"]
        del objective["pair"]
    elif config.objective.pair == "sentence_order":
        without_effect += ["balance", "partner"]
    for key in without_effect:
        del pairs[key]
    return Node(
        name=f"pairs/{phase.max_seq_length}",
        stage=PAIRS,
        config={
            "pairs": pairs,
            "objective": objective,
            "seeds": {"pairs": config.seed_for("pairs")},
        },
        settings={"speed": config.speed.model_dump(mode="json")},
        inputs={"shard": "shard", "vocab": "vocab"},
    )


def _mask_slice(config: Config, phase: PhaseConfig) -> dict[str, Any]:
    """How training rows are masked, wherever that is done."""
    mask = config.mask.model_dump(mode="json", exclude={"when"})
    if config.mask.strategy != "span":
        mask = {key: value for key, value in mask.items() if not key.startswith("span_")}
    mask["never"] = sorted(set(config.mask.never))
    mask["max_predictions"] = config.mask.max_predictions or _cap(
        config.mask.probability, phase.max_seq_length
    )
    return mask


def _mask(config: Config, phase: PhaseConfig) -> Node:
    return Node(
        name=f"mask/{phase.max_seq_length}",
        stage=MASK,
        config={
            "split": "train",
            "mask": _mask_slice(config, phase),
            "seeds": {"mask": config.seed_for("mask")},
        },
        settings={"speed": config.speed.model_dump(mode="json")},
        inputs={"pairs": f"pairs/{phase.max_seq_length}", "vocab": "vocab"},
    )


def _held_out(config: Config, phase: PhaseConfig) -> Node:
    probability = config.evaluate.probability
    mask = {
        "strategy": "per_token",
        "probability": probability,
        "max_predictions": _cap(probability, phase.max_seq_length),
        "mask_share": 0.8,
        "random_share": 0.1,
        "copies": 1,
    }
    return Node(
        name=f"mask/{phase.max_seq_length}-heldout",
        stage=MASK,
        config={"split": "validation", "mask": mask, "seeds": {"mask": HELD_OUT_SEED}},
        settings={"speed": config.speed.model_dump(mode="json")},
        inputs={"pairs": f"pairs/{phase.max_seq_length}", "vocab": "vocab"},
    )


def _pretrain(config: Config, phase: PhaseConfig, position: int, before: str | None) -> Node:
    train: dict[str, Any] = config.train.model_dump(mode="json")
    settings = {
        key: train.pop(key)
        for key in (
            "checkpoint_every_steps",
            "evaluate_every_steps",
            "log_every_steps",
            "keep_checkpoints",
            "keep_best",
            "on_nonfinite",
            "init_from",
        )
    }
    carried = train.pop("carry_moments")
    train |= {
        "steps": phase.steps,
        "global_batch_size": phase.global_batch_size,
        "learning_rate": phase.learning_rate,
        "tokens": phase.tokens,
        "hours": phase.hours,
        "global_batch_tokens": phase.global_batch_tokens,
    }
    # What has no effect is no part of the fingerprint.
    for name in ("tokens", "hours", "global_batch_tokens"):
        if train[name] is None:
            del train[name]
    if train["schedule"] != "wsd":
        del train["decay_share"]
    if train["length_bins"] is None:
        del train["length_bins"]
    else:
        train["max_seq_length"] = phase.max_seq_length
    rows, drawn = _training_rows(config, phase)
    # Paths are settings: what lies there is fingerprinted by its content.
    del train["mix"]
    mix = phase.mix or ()
    inputs = {**rows, "vocab": "vocab"}
    if before is not None:
        inputs["before"] = before
        # What acts only here, and the weights of a listing, are in the slice only where they act.
        train["carry_moments"] = carried
        settings["init_from"] = None
    elif settings["init_from"] is not None:
        train["init_from"] = "listed"
    return Node(
        name=f"pretrain/{phase.max_seq_length}",
        stage=PRETRAIN,
        config={
            "model": config.model.model_dump(mode="json"),
            "objective": config.objective.model_dump(mode="json"),
            "train": train,
            "phase": position,
            **drawn,
            **({"mix": [mixed.weight for mixed in mix]} if mix else {}),
            "seeds": {"train": config.seed_for("train"), **drawn.get("seeds", {})},
        },
        settings={
            "train": settings,
            "rounding": config.rounding.model_dump(mode="json"),
            "speed": config.speed.model_dump(mode="json"),
            "evaluate": {"max_rows": config.evaluate.max_rows},
            # The rows' own, which their fingerprint covers.
            "max_seq_length": phase.max_seq_length,
            "cluster": cluster_settings(config.cluster),
            **({"mix": [mixed.path for mixed in mix]} if mix else {}),
        },
        inputs=inputs,
        watches={"heldout": f"mask/{phase.max_seq_length}-heldout"},
        resources=training_resources(config.cluster),
        raw=_raw(config, settings["init_from"] is not None, mix, next(iter(rows)), phase),
    )


def _raw(
    config: Config, given: bool, mix: Sequence[MixedConfig], rows: str, phase: PhaseConfig
) -> Callable[[], RawInput] | None:
    """The listing of given weights, then of what is mixed in; None where there is neither."""
    if not given and not mix:
        return None

    def listing() -> RawInput:
        from stages.given_weights import list_weights
        from stages.mix import list_mix

        found = [list_weights(config, Path.cwd())] if given else []
        found += [list_mix(mix, rows, phase.max_seq_length)] if mix else []
        return RawInput(
            [entry for one in found for entry in one.entries],
            "; ".join(one.description for one in found),
        )

    return listing


def _training_rows(config: Config, phase: PhaseConfig) -> tuple[dict[str, str], dict[str, Any]]:
    """The input that holds training rows, and what else they depend on where they get their masks
    from those who read them."""
    if config.mask.when == "ahead":
        return {"mask": f"mask/{phase.max_seq_length}"}, {}
    own = {"mask": _mask_slice(config, phase), "seeds": {"mask": config.seed_for("mask")}}
    return {"pairs": f"pairs/{phase.max_seq_length}"}, own


def _last(config: Config) -> PhaseConfig:
    return config.resolved_phases()[-1]


def _evaluate(config: Config) -> Node:
    length = _last(config).max_seq_length
    rows, drawn = _training_rows(config, _last(config))
    return Node(
        name="evaluate",
        stage=EVALUATE,
        config={
            "evaluate": config.evaluate.model_dump(mode="json"),
            **_other_pair(config),
            **drawn,
        },
        settings={"cluster": {"device": config.cluster.device}},
        resources=Resources(gpus=0.0 if config.cluster.device == "cpu" else math.inf),
        inputs={
            "pretrain": f"pretrain/{length}",
            **rows,
            "heldout": f"mask/{length}-heldout",
            "vocab": "vocab",
        },
    )


def _export(config: Config) -> Node:
    return Node(
        name="export",
        stage=EXPORT,
        config=_other_pair(config),
        inputs={"pretrain": f"pretrain/{_last(config).max_seq_length}", "vocab": "vocab"},
    )


def _other_pair(config: Config) -> dict[str, Json]:
    """What pairs are about, where it is not BERT's: how figures and classes are called."""
    other = config.objective.nsp and config.objective.pair != "next_sentence"
    return {"pair": config.objective.pair} if other else {}


def _cap(probability: float, length: int) -> int:
    return math.ceil(round(probability * length, 9))
