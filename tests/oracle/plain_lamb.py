"""LAMB, one parameter at a time, in float64 NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class PlainLamb:
    """Algorithm 2 of You et al. 2020, line by line, with phi the identity."""

    def __init__(
        self, weights: Array, beta1: float, beta2: float, epsilon: float, decay: float, adapt: bool
    ) -> None:
        self.weights = weights.astype(np.float64).copy()
        self.first = np.zeros_like(self.weights)
        self.second = np.zeros_like(self.weights)
        self.steps = 0
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.decay, self.adapt = decay, adapt

    def step(self, gradient: Array, rate: float) -> None:
        """Change the weights once."""
        self.steps += 1
        self.first = self.beta1 * self.first + (1 - self.beta1) * gradient
        self.second = self.beta2 * self.second + (1 - self.beta2) * gradient**2
        mean = self.first / (1 - self.beta1**self.steps)
        square = self.second / (1 - self.beta2**self.steps)
        update = mean / (np.sqrt(square) + self.epsilon) + self.decay * self.weights
        ratio = 1.0
        if self.adapt:
            norm, length = np.sqrt((self.weights**2).sum()), np.sqrt((update**2).sum())
            if norm > 0 and length > 0:
                ratio = norm / length
        self.weights = self.weights - rate * ratio * update
