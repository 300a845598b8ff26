"""From what was spent on a record to (ε, δ), and back: how much noise so many releases need.

    gaussian            compose to one of the size (Σ 1/zᵢ²)^(-1/2), whose δ at ε has a closed form
                        (Balle and Wang, 2018): nothing is lost to a bound
    discrete            Gaussian on whole numbers: its Rényi divergence is at most that of the
                        Gaussian of this size, converted as by Canonne, Kamath and Steinke (2020)
    laplace, response   by dp-accounting, from privacy loss distributions

Nothing is amplified by sampling: peers know who is in which batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from colonnade.journal import Spending

Spent = Sequence[tuple[Spending, int]]  # each with how often
PRECISION = 1e-9  # relative, of what is searched for
NORMAL = ("gaussian", "discrete")
TAILS = 2.0**-40  # of δ: what noise of 53 random bits has not, see privacy/noise.py
MODEL_TAILS = 2.0**-22  # the same for the gradients of a network, see privacy/training.py


def epsilon(spent: Spent, delta: float) -> float:
    """The ε at δ of all of it together; inf where δ is 0 and some noise is Gaussian."""
    pure = [(use, times) for use, times in spent if use.mechanism not in NORMAL]
    if any(use.mechanism == "discrete" for use, _ in spent):
        return _added(pure) + discrete_epsilon(_together(spent), delta)
    size = _together(spent)
    if not pure:
        return gaussian_epsilon(size, delta)
    if math.isinf(size) and (delta == 0 or (len(pure) == 1 and pure[0][1] == 1)):
        return _added(pure)
    return _composed(pure, size, delta)


def noise_for(epsilon: float, delta: float, times: int, *, discrete: bool = False) -> float:
    """The σ / Δ that each of so many releases needs, for ε at δ of all together."""
    of = discrete_epsilon if discrete else gaussian_epsilon
    size = _least(lambda size: of(size, delta) <= epsilon, 1.0)
    return size * math.sqrt(times)


def gaussian_epsilon(size: float, delta: float) -> float:
    """The least ε at which one Gaussian release with σ / Δ = size has this δ."""
    if math.isinf(size) or gaussian_delta(size, 0.0) <= delta:
        return 0.0
    if delta <= 0:
        return math.inf
    return _least(lambda epsilon: gaussian_delta(size, epsilon) <= delta, 1.0)


def gaussian_delta(size: float, epsilon: float) -> float:
    """Φ(1/2z − εz) − e^ε Φ(−1/2z − εz), for z = size."""
    from scipy.special import log_ndtr  # type: ignore[import-untyped]

    first, second = (sign / (2 * size) - epsilon * size for sign in (1, -1))
    return float(math.exp(log_ndtr(first)) - math.exp(epsilon + log_ndtr(second)))


def discrete_epsilon(size: float, delta: float) -> float:
    """An ε at which one release with discrete Gaussian noise of σ / Δ = size has at most this δ:
    the least of αρ + log((α−1)/α) − log(δα)/(α−1) over α, with ρ = 1/2z²."""
    if math.isinf(size):
        return 0.0
    if delta <= 0:
        return math.inf
    rho = 1 / (2 * size**2)

    def at(alpha: float) -> float:
        return alpha * rho + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1)

    low, high = 1 + 1e-9, 2.0
    while at(2 * high) < at(high):
        high *= 2
    high *= 2
    while high - low > PRECISION * high:  # of one valley
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if at(left) < at(right) else (left, high)
    return max(0.0, at((low + high) / 2))


def _least(fits: Callable[[float], bool], start: float) -> float:
    """The least number that fits, where all larger ones fit, too; from above."""
    low, high = start / 2, start
    while not fits(high):
        low, high = high, 2 * high
    while fits(low) and low > 1e-12:
        low, high = low / 2, low
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _together(spent: Spent) -> float:
    """The σ / Δ of one release that spends as much as all with Gaussian noise."""
    total = math.fsum(times / use.size**2 for use, times in spent if use.mechanism in NORMAL)
    return math.inf if not total else 1 / math.sqrt(total)


def _pure(use: Spending) -> float:
    """The ε of one use without any δ."""
    return 1 / use.size if use.mechanism == "laplace" else use.size


def _added(pure: Spent) -> float:
    return math.fsum(_pure(use) * times for use, times in pure)


def _composed(pure: Spent, size: float, delta: float) -> float:
    """By privacy loss distributions, or by adding up what has a pure ε, whichever is less."""
    from dp_accounting.pld import privacy_loss_distribution as losses

    added = _added(pure) + gaussian_epsilon(size, delta)
    step = {"value_discretization_interval": max(1e-4, added / 2e4)}
    found = []
    if not math.isinf(size):
        found.append(losses.from_gaussian_mechanism(size, **step))
    for use, times in pure:
        if use.mechanism == "laplace":
            one = losses.from_laplace_mechanism(use.size, **step)
        else:  # between two answers, the worst case of any number of them
            one = losses.from_randomized_response(2 / (math.exp(use.size) + 1), 2, **step)
        found.append(one.self_compose(times) if times > 1 else one)
    together = found[0]
    for other in found[1:]:
        together = together.compose(other)
    return min(added, float(together.get_epsilon_for_delta(delta)))
