"""The losses of fine-tuning in plain Python and NumPy: one sequence and one position at a time.

Arguments named `hidden` are the encoder's vectors [n, d] of one sequence without padding.
"""

import math

import numpy as np


def softmax(scores):
    exps = [math.exp(score - max(scores)) for score in scores]
    return [value / sum(exps) for value in exps]


def linear(weight, bias, vector):
    return [
        sum(w * x for w, x in zip(row, vector, strict=True)) + b
        for row, b in zip(np.asarray(weight), np.asarray(bias), strict=True)
    ]


def sequence_scores(hidden, pooler, classifier):
    """tanh(h W1 + b1) W2 + b2 on [CLS] (seed 3.3); pooler and classifier are (weight, bias)."""
    pooled = [math.tanh(value) for value in linear(*pooler, hidden[0])]
    return linear(*classifier, pooled)


def sequence_loss(hidden, label, pooler, classifier):
    return -math.log(softmax(sequence_scores(hidden, pooler, classifier))[label])


def regression_loss(hidden, target, pooler, classifier):
    (score,) = sequence_scores(hidden, pooler, classifier)
    return (score - target) ** 2


def token_loss(hidden, labels, classifier, ignored=-100):
    """Labels [n]; positions with the label `ignored` are skipped."""
    loss = 0.0
    for vector, label in zip(hidden, labels, strict=True):
        if label != ignored:
            loss -= math.log(softmax(linear(*classifier, vector))[label])
    return loss


def span_loss(hidden, start, end, vectors, biases, may_answer=None):
    """-log P(start) - log P(end), each a choice among the positions of this sequence."""
    allowed = [i for i in range(len(hidden)) if may_answer is None or may_answer[i]]
    loss = 0.0
    for gold, vector, bias in zip((start, end), vectors, biases, strict=True):
        shares = softmax([float(np.dot(vector, hidden[i])) + bias for i in allowed])
        loss -= math.log(shares[allowed.index(gold)])
    return loss


def binary_span_loss(hidden, start, end, vectors, biases):
    """What span extraction is not: at each position, whether it is the start, and the end."""
    loss = 0.0
    for gold, vector, bias in zip((start, end), vectors, biases, strict=True):
        for i, one in enumerate(hidden):
            share = 1.0 / (1.0 + math.exp(-(float(np.dot(vector, one)) + bias)))
            loss -= math.log(share if i == gold else 1.0 - share)
    return loss
