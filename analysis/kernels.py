"""The compiled inner loops: weights of a resample, and the statistics of a resample given its weights.

A resample is stated by how often it takes each run (its weights), so that values are sorted once and never moved.
Runs ("cells") of all games lie in one row, game after game; `starts[g]:starts[g + 1]` are game g's. Repetitions lie in
blocks of LANES side by side, which the compiler turns into vector instructions. Every repetition's arithmetic is its
own, in the order of the cells: neither the blocks nor the threads that share them out change a bit.

Shapes: G games, N cells, P matrices of the same shape (points of a curve), B blocks, L = LANES, T thresholds.
"""

import numpy as np
from numba import njit

LANES = 32  # measured: 16 to 64 are within a third of each other; 32 keeps a block of 171 cells at 44 KiB

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64 (Steele, Lea, Flood 2014): 2^64 / golden ratio, made odd
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # its finaliser is Stafford's variant 13 of MurmurHash3's
_MIX_2 = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


def _compiled(function):
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to write the cache to: compile in every process
        return njit(nogil=True)(function)


@_compiled
def _below(key, counter, bound):
    """Number `counter` of the stream `key`, uniform on 0 ... bound - 1 (to within bound / 2^32). All are unsigned."""
    z = key + counter * _GOLDEN
    z = (z ^ (z >> _30)) * _MIX_1
    z = (z ^ (z >> _27)) * _MIX_2
    z = z ^ (z >> _31)
    return ((z >> _32) * bound) >> _32


@_compiled
def draw_bootstrap(keys, starts, first, weights):
    """Each game's runs drawn with replacement, as many as it has. keys [G], weights [B, N, L] is filled."""
    cell = np.empty(LANES, np.uint64)  # unsigned: indexing by signed numbers checks for negative ones
    for block in range(weights.shape[0]):
        resample = weights[block]
        resample[:] = 0.0
        for game in range(keys.size):
            key, start, size = keys[game], np.uint64(starts[game]), np.uint64(starts[game + 1] - starts[game])
            for draw in range(size):
                for lane in range(LANES):
                    repetition = np.uint64(first + block * LANES + lane)
                    cell[lane] = start + _below(key, repetition * size + draw, size)
                for lane in range(LANES):
                    resample[cell[lane], np.uint64(lane)] += 1.0


@_compiled
def draw_labels(keys, starts, taken, first, weights):
    """Each game's runs drawn without replacement, `taken[g]` of them (selection sampling, Knuth's algorithm S)."""
    for block in range(weights.shape[0]):
        for game in range(keys.size):
            size = starts[game + 1] - starts[game]
            for lane in range(LANES):
                counter, wanted = np.uint64((first + block * LANES + lane) * size), taken[game]
                for draw in range(size):
                    place = _below(keys[game], counter + np.uint64(draw), np.uint64(size - draw))
                    chosen = np.int64(place) < wanted
                    weights[block, starts[game] + draw, lane] = 1.0 if chosen else 0.0
                    wanted -= np.int64(chosen)


@_compiled
def linear(weights, coefficients, out):
    """Weighted sums. weights [B, N, L], coefficients [P, N] -> out [P, B, L]."""
    for block in range(weights.shape[0]):
        for point in range(coefficients.shape[0]):
            for lane in range(LANES):
                out[point, block, lane] = 0.0
            for cell in range(weights.shape[1]):
                for lane in range(LANES):
                    out[point, block, lane] += coefficients[point, cell] * weights[block, cell, lane]


@_compiled
def _clip(value, low, high):
    at_least = value if value > low else low
    return at_least if at_least < high else high


@_compiled
def trimmed_mean(weights, order, ascending, cut, kept, out):
    """Mean of the `kept` values that follow the `cut` lowest of each resample (both whole numbers, as floats).

    weights [B, N, L]; order [P, N] sorts the cells, ascending [P, N] are their values in that order -> out [P, B, L].
    """
    seen, total = np.empty(LANES), np.empty(LANES)
    top = cut + kept
    for block in range(weights.shape[0]):
        for point in range(order.shape[0]):
            for lane in range(LANES):
                seen[lane], total[lane] = 0.0, 0.0
            for position in range(order.shape[1]):
                cell, value = order[point, position], ascending[point, position]
                for lane in range(LANES):
                    before = seen[lane]
                    after = before + weights[block, cell, lane]
                    seen[lane] = after
                    total[lane] += value * (_clip(after, cut, top) - _clip(before, cut, top))
            for lane in range(LANES):
                out[point, block, lane] = total[lane] / kept


@_compiled
def _game_means(weights, starts, sizes, values, means):
    """weights [N, L], values [N] -> means [G, L]. sizes [G]: how many runs of each game a resample has."""
    total = np.empty(LANES)
    for game in range(sizes.size):
        for lane in range(LANES):
            total[lane] = 0.0
        for cell in range(starts[game], starts[game + 1]):
            value = values[cell]
            for lane in range(LANES):
                total[lane] += value * weights[cell, lane]
        for lane in range(LANES):
            means[game, lane] = total[lane] / sizes[game]


@_compiled
def _exchange(rows, network):
    """Puts every pair of rows [., L] in order. Its own function: within the caller's loops it is not vectorised."""
    for pair in range(network.shape[0]):
        i, j = network[pair, 0], network[pair, 1]
        for lane in range(LANES):
            a, b = rows[i, lane], rows[j, lane]
            rows[i, lane] = a if a < b else b  # written out, since `min` heeds NaN and is not vectorised either
            rows[j, lane] = b if a < b else a


@_compiled
def median_of_means(weights, starts, sizes, network, values, out):
    """Median over games of the game's mean. weights [B, N, L], values [P, N] -> out [P, B, L].

    network [C, 2]: the pairs of games to put in order of their means, one after the other, so that the middle ones end
    up in place (`median_network`). All lanes take the same steps, unlike in sorting.
    """
    below, above = (sizes.size - 1) // 2, sizes.size // 2
    means = np.empty((sizes.size, LANES))
    for block in range(weights.shape[0]):
        for point in range(values.shape[0]):
            _game_means(weights[block], starts, sizes, values[point], means)
            _exchange(means, network)
            for lane in range(LANES):
                out[point, block, lane] = 0.5 * (means[below, lane] + means[above, lane])


@_compiled
def _tally(above, lanes, histogram):
    """above [T, L]: how many lie above each threshold, of which `lanes` count -> histogram [T, most + 1], added to."""
    for threshold in range(above.shape[0]):
        for lane in range(lanes):
            histogram[threshold, np.int64(above[threshold, lane])] += 1


@_compiled
def score_profile(weights, surpassed, repetitions, histogram):
    """In how many repetitions how many runs lie above each threshold.

    surpassed [N]: how many thresholds lie below the cell's score -> histogram [T, N + 1], added to.
    """
    above = np.empty((histogram.shape[0] + 1, LANES))
    for block in range(weights.shape[0]):
        above[:] = 0.0
        for cell in range(surpassed.size):
            for lane in range(LANES):
                above[surpassed[cell], lane] += weights[block, cell, lane]
        for threshold in range(histogram.shape[0] - 1, -1, -1):
            for lane in range(LANES):
                above[threshold, lane] += above[threshold + 1, lane]
        _tally(above[1:], min(LANES, repetitions - block * LANES), histogram)


@_compiled
def _count_above(means, thresholds, above):
    """means [G, L] -> above [T, L]: how many games' means lie above each of the rising thresholds."""
    above[:] = 0.0
    for game in range(means.shape[0]):
        low, high = means[game].min(), means[game].max()
        first, last = np.searchsorted(thresholds, low), np.searchsorted(thresholds, high)
        for threshold in range(first):  # surpassed in all lanes, as those from `last` on are in none
            for lane in range(LANES):
                above[threshold, lane] += 1.0
        for threshold in range(first, last):
            limit = thresholds[threshold]
            for lane in range(LANES):
                above[threshold, lane] += 1.0 if means[game, lane] > limit else 0.0


@_compiled
def average_profile(weights, starts, sizes, values, thresholds, repetitions, histogram):
    """In how many repetitions how many games' means lie above each threshold -> histogram [T, G + 1], added to."""
    above, means = np.empty((thresholds.size, LANES)), np.empty((sizes.size, LANES))
    for block in range(weights.shape[0]):
        _game_means(weights[block], starts, sizes, values, means)
        _count_above(means, thresholds, above)
        _tally(above, min(LANES, repetitions - block * LANES), histogram)


@_compiled
def improvement(weights, starts, wins, out):
    """Probability that a run of x beats one of y on the same game, mean over games. weights [B, N, L] -> out [B, L].

    The N cells are x's games, then y's in the same order: starts [2 G + 1]. wins [Nx, Ny]: 1 where x's cell scores
    more, 1/2 where the same, else 0; only pairs of one game are read.
    """
    games = (starts.size - 1) // 2
    offset = starts[games]
    for block in range(weights.shape[0]):
        for lane in range(LANES):
            out[block, lane] = 0.0
        for game in range(games):
            first, last = starts[games + game], starts[games + game + 1]
            pairs = (starts[game + 1] - starts[game]) * (last - first)
            for x in range(starts[game], starts[game + 1]):
                for y in range(first, last):
                    share = wins[x, y - offset] / (pairs * games)
                    for lane in range(LANES):
                        out[block, lane] += share * weights[block, x, lane] * weights[block, y, lane]


def median_network(size: int) -> np.ndarray:
    """Pairs of rows [C, 2] that put the middle of `size` rows in place, in the order to compare and exchange them.

    Batcher's merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M), without the exchanges that
    no middle row depends on.
    """
    pairs = []
    top = 1 << max(size - 1, 1).bit_length() - 1
    p = top
    while p:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(size - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    needed, kept = {(size - 1) // 2, size // 2}, []
    for i, j in reversed(pairs):
        if i in needed or j in needed:
            needed |= {i, j}
            kept.append((i, j))
    return np.array(kept[::-1], np.int64).reshape(-1, 2)
