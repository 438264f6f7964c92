"""Published accuracies of max retrieval, in percent: the mean of ten seeds, trained on at most 16 items.

Source: Veličković et al., arXiv 2410.01104, Table 1, second-hand: as others quote it. The columns in `UNCONFIRMED`
could not be confirmed.
"""

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
UNCONFIRMED = (32, 128, 8192)
ACCURACY: dict[str, dict[int, float]] = {
    "softmax": dict(zip(LENGTHS, (98.6, 97.1, 94.3, 89.7, 81.3, 70.1, 53.8, 35.7, 22.6, 15.7, 12.4))),
    "adaptive": dict(zip(LENGTHS, (98.6, 97.1, 94.5, 89.9, 82.1, 72.5, 57.7, 39.4, 24.9, 17.5, 14.0))),
}

SPARSE_ATTENTION: dict[str, dict[str, dict[int, float]]] = {
    "sort": {"entmax15": {1: 100.0, 2: 100.0, 4: 57.8, 8: 0.0}},
    "copy": {"entmax15": {1: 100.0, 2: 100.0, 4: 99.9, 8: 99.7, 16: 99.4, 32: 96.3, 64: 0.0}},
    "multi_query": {
        "entmax15": {1: 100.0, 2: 100.0, 4: 100.0, 16: 99.5, 64: 92.7, 256: 66.8, 1024: 9.3},
        "asentmax": {1: 100.0, 2: 100.0, 4: 100.0, 16: 99.7, 64: 99.6, 256: 99.0, 1024: 95.3},
    },
}
"""Sequences answered wholly right, in percent, by task, normalizer and multiple of the longest training length.

Source: Vasylenko et al., arXiv 2506.16640, as quoted by others: the table could be read in no primary source. The
setting is another: causal models that write the answer token by token, trained on 20 to 50 million sequences of up
to 64 tokens; "multi-query" there has keys and values of two tokens and four queries.
"""
