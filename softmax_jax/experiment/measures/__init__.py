"""Measures of trained models on fresh sets: one pass, one table of measures, one frame.

`evaluation.Evaluation` holds trained models, normalizers and sets. Its `at(length)` measures every set of one length,
`over(lengths)` loops, and `evaluation.frame_of` makes the frame: a `polars.DataFrame` with a row for each normalizer,
length and seed. Its columns are `normalizer`, `n` (items of a set) and `seed`, then one for each measure by its name in
`table.MEASURES`, in its order; null where a measure does not apply. Everything that writes, prints or draws reads it. A
new measure is a function and an entry in `table`.

Frames that are made from it:

- `summary.summarize` has a row for each normalizer and length: `normalizer`, `n`, the mean of each measure over the
  seeds, `interval` (half the 95 % interval of the accuracy), and against softmax `gain`, `gain_interval`, `p_value`,
  `p_max_t` and `detectable`; null if undefined, or not tested by `families`
- `dispersion.dispersion`: entropy, max_weight, rank, true_weight, spread, critical_beta, beta, largest_reach,
  entropy_lower, entropy_upper, max_weight_lower, max_weight_upper, max_weight_upper_nearest; beta and all after it are
  null unless the map is softmax
- `dispersion.losses`: the three keys, `accuracy`, `value`, `key`, `dispersion`
"""
