"""From what was spent on a record to (ε, δ), and back: how much noise so many releases need.

Gaussian releases compose to one of the size (Σ 1/zᵢ²)^(-1/2), whose δ at ε has a closed form (Balle
and Wang, 2018): nothing is lost to a bound. Other mechanisms are composed by dp-accounting, from
privacy loss distributions. Nothing is amplified by sampling: peers know who is in which batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from colonnade.journal import Spending

Spent = Sequence[tuple[Spending, int]]  # each with how often
PRECISION = 1e-9  # relative, of what is searched for


def epsilon(spent: Spent, delta: float) -> float:
    """The ε at δ of all of it together; inf where δ is 0 and some noise is Gaussian."""
    gaussian = [(use, times) for use, times in spent if use.mechanism == "gaussian"]
    others = [(use, times) for use, times in spent if use.mechanism != "gaussian"]
    if not others:
        return gaussian_epsilon(_together(gaussian), delta)
    if not gaussian and (delta == 0 or (len(others) == 1 and others[0][1] == 1)):
        return math.fsum(_pure(use) * times for use, times in others)
    return _composed(spent, delta)


def noise_for(epsilon: float, delta: float, times: int) -> float:
    """The σ / Δ that each of so many Gaussian releases needs, for ε at δ of all together."""
    low, high = 1e-3, 1.0
    while gaussian_epsilon(high, delta) > epsilon:
        high *= 2
    while gaussian_epsilon(low, delta) < epsilon:
        low /= 2
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_epsilon(middle, delta) <= epsilon else (middle, high)
    return high * math.sqrt(times)


def gaussian_epsilon(size: float, delta: float) -> float:
    """The least ε at which one Gaussian release with σ / Δ = size has this δ."""
    if math.isinf(size):
        return 0.0
    if delta <= 0:
        return math.inf
    if gaussian_delta(size, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(size, high) > delta:
        high *= 2
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(size, middle) <= delta else (middle, high)
    return high


def gaussian_delta(size: float, epsilon: float) -> float:
    """Φ(1/2z − εz) − e^ε Φ(−1/2z − εz), for z = size."""
    from scipy.special import log_ndtr  # type: ignore[import-untyped]

    first, second = (sign / (2 * size) - epsilon * size for sign in (1, -1))
    return float(math.exp(log_ndtr(first)) - math.exp(epsilon + log_ndtr(second)))


def _together(gaussian: Spent) -> float:
    total = math.fsum(times / use.size**2 for use, times in gaussian)
    return math.inf if not total else 1 / math.sqrt(total)


def _pure(use: Spending) -> float:
    """The ε of one use without any δ."""
    return 1 / use.size if use.mechanism == "laplace" else use.size


def _composed(spent: Spent, delta: float) -> float:
    """By dp-accounting, or by adding up what has a pure ε, whichever is less."""
    from dp_accounting import GaussianDpEvent, LaplaceDpEvent, RandomizedResponseDpEvent
    from dp_accounting.pld import PLDAccountant

    pure = [(use, times) for use, times in spent if use.mechanism != "gaussian"]
    total = math.fsum(_pure(use) * times for use, times in pure)
    gaussian = _together([(use, times) for use, times in spent if use.mechanism == "gaussian"])
    added = total + gaussian_epsilon(gaussian, delta)
    accountant = PLDAccountant(value_discretization_interval=max(1e-4, added / 2e4))
    if not math.isinf(gaussian):
        accountant.compose(GaussianDpEvent(gaussian))
    for use, times in pure:
        if use.mechanism == "laplace":
            accountant.compose(LaplaceDpEvent(use.size), times)
        else:  # of two answers, the worst case of any number of them
            accountant.compose(RandomizedResponseDpEvent(2 / (math.exp(use.size) + 1), 2), times)
    return min(added, float(accountant.get_epsilon(delta)))
