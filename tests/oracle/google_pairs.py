"""google-research/bert's pair and mask algorithm, slow and plain, with the same random calls.

Written from the description in prose; four hashes of its output (tests/oracle) say that it does
what the original does. The fast code is held against its distribution.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass

Document = list[list[str]]

TOY_VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(f"w{n:02d}" for n in range(40)),
    *("##x", "##y"),
]


@dataclass
class Instance:
    tokens: list[str]
    segment_ids: list[int]
    is_random_next: bool
    positions: list[int]
    labels: list[str]
    # Beyond the original: what the distribution tests look at.
    a_before: int
    b_before: int
    a_length: int
    b_length: int
    a_front: int
    b_front: int
    a_sentences: int
    b_sentences: int


def toy_text() -> str:
    """The corpus of the golden hashes: four documents of 2, 4, 6 and 8 sentences."""
    documents = []
    for d in range(4):
        lines = []
        for s in range(2 + 2 * d):
            words = []
            for t in range(3 + (7 * d + 5 * s) % 6):
                words.append(f"w{(11 * d + 3 * s + t) % 40:02d}")
                if t % 4 == 3:
                    words.append("##x")
            lines.append(" ".join(words))
        documents.append("\n".join(lines))
    return "\n\n".join(documents)


def read_documents(text: str) -> list[Document]:
    documents: list[Document] = [[]]
    for line in text.split("\n"):
        line = line.strip()
        if not line:
            documents.append([])
        elif line.split():
            documents[-1].append(line.split())
    return [document for document in documents if document]


def make_instances(
    documents: list[Document],
    vocabulary: list[str],
    *,
    max_seq_length: int,
    dupe_factor: int,
    max_predictions: int,
    whole_word: bool = False,
    probability: float = 0.15,
    short_sequence_probability: float = 0.1,
    seed: int = 12345,
) -> list[Instance]:
    rng = random.Random(seed)
    documents = list(documents)
    rng.shuffle(documents)
    instances: list[Instance] = []
    for _ in range(dupe_factor):
        for index in range(len(documents)):
            instances += _document_instances(
                documents,
                index,
                vocabulary,
                max_seq_length,
                max_predictions,
                whole_word,
                probability,
                short_sequence_probability,
                rng,
            )
    rng.shuffle(instances)
    return instances


def _document_instances(
    documents: list[Document],
    index: int,
    vocabulary: list[str],
    max_seq_length: int,
    max_predictions: int,
    whole_word: bool,
    probability: float,
    short_sequence_probability: float,
    rng: random.Random,
) -> list[Instance]:
    document = documents[index]
    room = max_seq_length - 3
    target = room
    if rng.random() < short_sequence_probability:
        target = rng.randint(2, room)
    instances = []
    chunk: Document = []
    i = 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            a_end = 1
            if len(chunk) >= 2:
                a_end = rng.randint(1, len(chunk) - 1)
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b: list[str] = []
            b_sentences = 0
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                want = target - len(a)
                other = index
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    b += sentence
                    b_sentences += 1
                    if len(b) >= want:
                        break
                i -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
                b_sentences = len(chunk) - a_end
            before = len(a), len(b)
            fronts = truncate(a, b, room, rng)
            tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
            segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
            masked, positions, labels = mask(
                tokens, vocabulary, probability, max_predictions, whole_word, rng
            )
            instances.append(
                Instance(
                    masked,
                    segments,
                    is_random,
                    positions,
                    labels,
                    *before,
                    len(a),
                    len(b),
                    *fronts,
                    a_end,
                    b_sentences,
                )
            )
            chunk = []
        i += 1
    return instances


def truncate(a: list[str], b: list[str], room: int, rng: random.Random) -> tuple[int, int]:
    """Shortens both in place; returns how many tokens went from the front of each."""
    a_front = b_front = 0
    while len(a) + len(b) > room:
        from_a = len(a) > len(b)
        longer = a if from_a else b
        if rng.random() < 0.5:
            del longer[0]
            a_front += from_a
            b_front += not from_a
        else:
            longer.pop()
    return a_front, b_front


def mask(
    tokens: list[str],
    vocabulary: list[str],
    probability: float,
    max_predictions: int,
    whole_word: bool,
    rng: random.Random,
) -> tuple[list[str], list[int], list[str]]:
    candidates: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in ("[CLS]", "[SEP]"):
            continue
        if whole_word and candidates and token.startswith("##"):
            candidates[-1].append(position)
        else:
            candidates.append([position])
    rng.shuffle(candidates)
    quota = min(max_predictions, max(1, round(len(tokens) * probability)))
    output = list(tokens)
    chosen: list[int] = []
    for candidate in candidates:
        if len(chosen) >= quota:
            break
        if len(chosen) + len(candidate) > quota:
            continue
        for position in candidate:
            if rng.random() < 0.8:
                output[position] = "[MASK]"
            elif rng.random() >= 0.5:
                output[position] = vocabulary[rng.randint(0, len(vocabulary) - 1)]
            chosen.append(position)
    chosen.sort()
    return output, chosen, [tokens[position] for position in chosen]


def digest(instances: list[Instance]) -> str:
    lines = [
        json.dumps(
            [i.tokens, i.segment_ids, i.is_random_next, i.positions, i.labels],
            separators=(",", ":"),
        )
        for i in instances
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
