"""A BERT in plain NumPy: one sequence, one position and one head at a time, in float64."""

import math

import numpy as np


def layer_norm(vector, weight, bias, eps):
    mean = sum(vector) / len(vector)
    variance = sum((x - mean) ** 2 for x in vector) / len(vector)
    return np.array(
        [
            (x - mean) / math.sqrt(variance + eps) * w + b
            for x, w, b in zip(vector, weight, bias, strict=True)
        ]
    )


def gelu(vector):
    return np.array([0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))) for x in vector])


def softmax(scores):
    exps = np.exp(np.asarray(scores) - max(scores))
    return exps / exps.sum()


def linear(weights, name, vector):
    return weights[f"{name}.weight"] @ vector + weights[f"{name}.bias"]


def attention(weights, prefix, sequence, num_heads):
    """Self-attention of one sequence: list of vectors -> list of vectors."""
    width = len(sequence[0])
    head = width // num_heads
    fused = [linear(weights, f"{prefix}.qkv", vector) for vector in sequence]
    contexts = []
    for mine in fused:
        context = np.zeros(width)
        for h in range(num_heads):
            own = slice(h * head, (h + 1) * head)
            scores = [
                float(mine[:width][own] @ other[width : 2 * width][own]) / math.sqrt(head)
                for other in fused
            ]
            for share, other in zip(softmax(scores), fused, strict=True):
                context[own] += share * other[2 * width :][own]
        contexts.append(linear(weights, f"{prefix}.output", context))
    return contexts


def block(weights, prefix, sequence, num_heads, eps):
    def norm(name, vector):
        return layer_norm(
            vector, weights[f"{prefix}.{name}.weight"], weights[f"{prefix}.{name}.bias"], eps
        )

    attended = attention(weights, f"{prefix}.attention", sequence, num_heads)
    result = []
    for vector, context in zip(sequence, attended, strict=True):
        middle = norm("attention_norm", vector + context)
        inner = gelu(linear(weights, f"{prefix}.intermediate", middle))
        outer = linear(weights, f"{prefix}.output", inner)
        result.append(norm("output_norm", middle + outer))
    return result


def encode(state_dict, config, ids, segments):
    """Hidden states [n, d] of one sequence for `BertModel`'s weights, dropout off."""
    weights = {name: tensor.detach().double().numpy() for name, tensor in state_dict.items()}
    sequence = []
    for position, (token, segment) in enumerate(zip(ids, segments, strict=True)):
        summed = (
            weights["embeddings.token.weight"][token]
            + weights["embeddings.segment.weight"][segment]
            + weights["embeddings.position.weight"][position]
        )
        sequence.append(
            layer_norm(
                summed,
                weights["embeddings.norm.weight"],
                weights["embeddings.norm.bias"],
                config.layer_norm_eps,
            )
        )
    for index in range(config.num_layers):
        prefix = f"encoder.layers.{index}"
        sequence = block(weights, prefix, sequence, config.num_heads, config.layer_norm_eps)
    return np.stack(sequence)
