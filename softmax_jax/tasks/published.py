"""Published accuracies of max retrieval, in percent: the mean of ten seeds, trained on at most 16 items.

Source: Veličković et al., arXiv 2410.01104, Table 1. The columns in `UNCONFIRMED` could be read in no primary
source.
"""

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
UNCONFIRMED = (32, 128, 8192)
ACCURACY: dict[str, dict[int, float]] = {
    "softmax": dict(zip(LENGTHS, (98.6, 97.1, 94.3, 89.7, 81.3, 70.1, 53.8, 35.7, 22.6, 15.7, 12.4))),
    "adaptive": dict(zip(LENGTHS, (98.6, 97.1, 94.5, 89.9, 82.1, 72.5, 57.7, 39.4, 24.9, 17.5, 14.0))),
}
