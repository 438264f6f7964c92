"""Attention to parts of a row that are merged by their log-sum-exps is refused; what looks like it is swapped."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import softmax_jax as sj
from softmax_jax.refusal import Refusal
from tests.tiers import full_except

from .models import close, normal, run, same

Q, K, V, K2, V2 = (normal(2, 3, 8, 4, seed=seed) for seed in range(5))
W = normal(4, 3, seed=5)
FIRST, LAST = slice(0, 4), slice(4, 8)
LOW = -1e30


def scores(q, k):
    return jnp.einsum("...qd,...kd->...qk", q, k)


def weigh(w, v):
    return jnp.einsum("...qk,...kd->...qd", w, v)


def attend(q, k, v, softmax=jax.nn.softmax):
    return weigh(softmax(scores(q, k)), v)


def log_sum_exp(z, axis: int = -1):
    return jax.nn.logsumexp(z, axis, keepdims=True)


def part(q, k, v):
    """Attention to some keys, and the log-sum-exp of its logits."""
    z = scores(q, k)
    return weigh(jax.nn.softmax(z), v), log_sum_exp(z)


def halves(q, k, v, state=part):
    """The states of both halves of the keys: output and log-sum-exp, unless asked otherwise."""
    return *state(q, k[:, :, FIRST], v[:, :, FIRST]), *state(q, k[:, :, LAST], v[:, :, LAST])


def quarters(*arrays):
    """Keys and values in four parts, these before all other axes."""
    return tuple(one.reshape(2, 3, 4, 2, 4).transpose(2, 0, 1, 3, 4) for one in arrays)


def merge(o, lse, o2, lse2):
    """The merge of flash attention: both rescaled to the log-sum-exp of both."""
    new = jnp.logaddexp(lse, lse2)
    return o * jnp.exp(lse - new) + o2 * jnp.exp(lse2 - new), new


def flash_decoding(q, k, v):
    """Outputs and log-sum-exps of two parts, on an axis after the heads."""
    k, v = (one.reshape(2, 3, 2, 4, 4) for one in (k, v))
    z = jnp.einsum("bhqd,bhckd->bhcqk", q, k)
    o = jnp.einsum("bhcqk,bhckd->bhcqd", jax.nn.softmax(z), v)
    return (jax.nn.softmax(jax.nn.logsumexp(z, -1), 2)[..., None] * o).sum(2)


def sigmoid(q, k, v):
    o, lse, o2, lse2 = halves(q, k, v)
    share = jax.nn.sigmoid(lse - lse2)
    return share * o + (1 - share) * o2


def shares_of_sums(q, k, v):
    def state(q, k, v):
        e = jnp.exp(scores(q, k))
        total = e.sum(-1, keepdims=True)
        return weigh(e / total, v), total

    o, s, o2, s2 = halves(q, k, v, state)
    return o / (1 + s2 / s) + o2 / (1 + s / s2)


def summed_by_ones(q, k, v):
    def state(q, k, v):
        z = scores(q, k)
        return weigh(jax.nn.softmax(z), v), jnp.exp(z - 2) @ jnp.ones((4, 1))

    o, s, o2, s2 = halves(q, k, v, state)
    return (o * s + o2 * s2) / (s + s2)


NOTHING = jnp.zeros((2, 3, 8, 4)), jnp.full((2, 3, 8, 1), LOW)


def scan_one_turn_late(q, k, v):
    """Every turn merges the part of the turn before; that of the last turn is not needed."""

    def step(state, both):
        return (*merge(*state), *part(q, *both)), None

    turns = tuple(jnp.concatenate([one, one[:1]]) for one in quarters(k, v))
    return lax.scan(step, (*NOTHING, *NOTHING), turns)[0][0]


def buffers(q, k, v):
    k, v = quarters(k, v)

    def body(turn, state):
        return [whole.at[turn].set(one) for whole, one in zip(state, part(q, k[turn], v[turn]))]

    o, lse = lax.fori_loop(0, 4, body, [jnp.zeros((4, 2, 3, 8, 4)), jnp.zeros((4, 2, 3, 8, 1))])
    return (o * jax.nn.softmax(lse, 0)).sum(0)


def logarithms_of_weights(q, k, v):
    z, z2 = scores(q, k[:, :, FIRST]), scores(q, k[:, :, LAST])
    share = jax.nn.log_softmax(jnp.concatenate([log_sum_exp(z), log_sum_exp(z2)], -1))
    logs = [jax.nn.log_softmax(z) + share[..., :1], jax.nn.log_softmax(z2) + share[..., 1:]]
    return weigh(jnp.exp(jnp.concatenate(logs, -1)), v)


def scores_computed_twice(q, k, v):
    o, o2 = (attend(q, k[:, :, some], v[:, :, some]) for some in (FIRST, LAST))
    lse = [log_sum_exp(scores(q, k[:, :, some]) - 1) + 1 for some in (FIRST, LAST)]
    share = jax.nn.softmax(jnp.concatenate(lse, -1))
    return o * share[..., :1] + o2 * share[..., 1:]


def checkpoints(q, k, v):
    keep = jax.checkpoint

    def state(q, k, v):
        return keep(attend)(q, k, v), keep(lambda q, k: log_sum_exp(scores(q, k)))(q, k)

    return keep(merge)(*halves(q, k, v, state))[0]


def two_masks(q, k, v):
    """A window and what comes before it; softmax and log-sum-exp hide in other ways."""
    z, near = scores(q, k), jnp.abs(jnp.arange(8)[:, None] - jnp.arange(8)[None]) < 3
    near = jnp.broadcast_to(near[None, None], z.shape)
    o = jnp.stack([weigh(jax.nn.softmax(jnp.where(seen, z, LOW)), v) for seen in (near, ~near)])
    lse = jnp.stack([jax.nn.logsumexp(z, -1, where=seen, keepdims=True) for seen in (near, ~near)])
    return (o * jax.nn.softmax(lse, 0)).sum(0)


def sink(q, k, v):
    o, lse = part(q, k, v)
    return o * jax.nn.sigmoid(lse - 0.3)


def hash_rounds(q, k, v):
    """Reformer: in each round the entries of a bucket attend to each other."""
    o, lse = [], []
    for turn in range(2):
        order = jnp.asarray(np.random.default_rng(turn).permutation(8))
        back = jnp.argsort(order)
        q_, k_, v_ = (one[:, :, order].reshape(2, 3, 2, 4, 4) for one in (q, k, v))
        z = scores(q_, k_)
        o.append(weigh(jnp.exp(z - log_sum_exp(z)), v_).reshape(2, 3, 8, 4)[:, :, back])
        lse.append(log_sum_exp(z).reshape(2, 3, 8, 1)[:, :, back])
    o, lse = jnp.stack(o), jnp.stack(lse)
    return (o * jnp.exp(lse - log_sum_exp(lse, 0))).sum(0)


def memory_efficient(q, k, v):
    """Rabe and Staats, as flax, tokamax and keras-hub have it."""

    @jax.checkpoint
    def chunk(both):
        z = scores(q, both[0])
        top = lax.stop_gradient(z.max(-1, keepdims=True))
        e = jnp.exp(z - top)
        return weigh(e, both[1]), e.sum(-1, keepdims=True), top

    o, total, top = lax.map(chunk, quarters(k, v))
    shrink = jnp.exp(top - top.max(0, keepdims=True))
    return (o * shrink).sum(0) / (total * shrink).sum(0)


AT_ONCE = flash_decoding, sigmoid, scan_one_turn_late, logarithms_of_weights, hash_rounds
PARTS: list[Any] = [
    *(*AT_ONCE, shares_of_sums, summed_by_ones, buffers),
    *(scores_computed_twice, checkpoints, two_masks, sink, memory_efficient),
]
CUT = "softmax over part of a row, merged by its log-sum-exp"
MERGED = "softmax that merges parts"
TOLD_APART = {
    flash_decoding: [CUT, MERGED],
    hash_rounds: [CUT, CUT, MERGED],
    logarithms_of_weights: [MERGED, CUT, CUT],
}


@pytest.mark.parametrize("merged", full_except(PARTS, *AT_ONCE))
def test_parts_that_are_merged_by_their_log_sum_exps_are_blocks(merged: Any):
    found = sj.sites(merged)(Q, K, V)
    assert {site.use for site in found} == {"blocks"}
    assert [site.what for site in found] == TOLD_APART.get(merged, [site.what for site in found])
    for changed in sj.swap(merged, "entmax15"), sj.probe(merged):
        with pytest.raises(Refusal, match="of rows that never lie whole, so swap before they are cut: choose the"):
            jax.eval_shape(changed, Q, K, V)
    # What the message says can be done leaves the merge as it is, and swaps the attention beside it.
    both: Any = lambda q, k, v, softmax=jax.nn.softmax: (merged(q, k, v), attend(q, K2, V2, softmax))  # noqa: E731
    assert [site.use for site in sj.sites(both)(Q, K, V)].count("attention") == 1
    if merged in (flash_decoding, two_masks):
        swapped = sj.swap(both, "hardmax", where=lambda site: site.use == "attention")
        same(swapped, lambda *qkv: both(*qkv, sj.hardmax), Q, K, V)


@pytest.mark.full
@pytest.mark.parametrize("how", ["summed", "gathered", "handed on"])
def test_parts_on_several_devices_are_blocks(how: str):
    mesh = jax.make_mesh((2,), ("keys",), axis_types=(jax.sharding.AxisType.Auto,))
    shared = jax.P(None, None, "keys")

    def each(q, k, v):
        o, lse = part(q, k, v)
        if how == "summed":
            e = jnp.exp(lse - lax.pmax(lse, "keys"))
            return lax.psum(o * e, "keys") / lax.psum(e, "keys")
        if how == "gathered":
            return (lax.all_gather(o, "keys") * jax.nn.softmax(lax.all_gather(lse, "keys"), 0)).sum(0)
        return merge(o, lse, *part(q, *(lax.ppermute(one, "keys", [(0, 1), (1, 0)]) for one in (k, v))))[0]

    queries = shared if how == "handed on" else jax.P()
    on_devices = jax.shard_map(each, mesh=mesh, check_vma=False, in_specs=(queries, shared, shared), out_specs=queries)
    close(on_devices(Q, K, V), attend(Q, K, V), atol=3e-6)
    assert {site.use for site in sj.sites(on_devices)(Q, K, V)} == {"blocks"}


def gate_of_other_log_sum_exps(q, k, v, softmax):
    share = jax.nn.softmax(jnp.concatenate([log_sum_exp(q @ W[None, None]), log_sum_exp(k @ W[None, None])], -1))
    return share[..., :1] * attend(q, k, v, softmax) + share[..., 1:] * attend(q, K2, V2, softmax)


def z_loss(q, k, v, softmax):
    z = scores(q, k)
    return (weigh(softmax(z), v) ** 2).mean() + 1e-3 * (log_sum_exp(z) ** 2).mean()


def perplexity(q, k, v, softmax):
    z = attend(q, k, v, softmax) @ W[None, None]
    logs = z - log_sum_exp(z)
    return jnp.exp((-logs[..., :1] + 1e-4 * log_sum_exp(z) ** 2).mean())


def divergence_from_equal_weights(q, k, v, softmax):
    """The difference of logits and a total varies along the row, also where it is no logarithm of weights."""
    z = scores(q, k)
    weights = softmax(z)
    return weigh(weights, v), (weights * (z - (log_sum_exp(z) - jnp.log(8.0)))).sum(-1)


def rows_without_entries(q, k, v, softmax):
    z = jnp.where(jnp.tril(jnp.ones((8, 8), bool), -1)[None, None], scores(q, k), LOW)
    return weigh(softmax(z), v) * (log_sum_exp(z) > LOW).astype(z.dtype)


def temperature_by_entropy_in_a_scan(q, k, v, softmax):
    """The logits of a layer are linear in the weights of the one before, which are of other rows."""

    def layer(x, w):
        z = scores(x @ w[None, None], x)
        logs = jax.nn.log_softmax(z)
        return x + weigh(softmax(z * (1 - (jnp.exp(logs) * logs).sum(-1, keepdims=True))), x), None

    return lax.scan(layer, q, normal(3, 4, 4, seed=9) / 4)[0]


def products_with_itself(q, k, v, softmax):
    """A total that is added to an output or to logarithms of weights makes them no total of the row."""
    z = scores(q, k)
    weights, total = softmax(z), log_sum_exp(z)
    output = weigh(weights, v) + total
    return output * jax.nn.sigmoid(output), weights * weights, weights * (jax.nn.log_softmax(z) + total**2)


CONTROLS_AT_ONCE = z_loss, temperature_by_entropy_in_a_scan, divergence_from_equal_weights, products_with_itself
CONTROLS = [*CONTROLS_AT_ONCE, gate_of_other_log_sum_exps, perplexity, rows_without_entries]


@pytest.mark.parametrize("model", full_except(CONTROLS, *CONTROLS_AT_ONCE))
def test_what_does_not_merge_parts_is_attention(model: Any):
    original = lambda q, k, v: model(q, k, v, jax.nn.softmax)  # noqa: E731
    for function in (original, jax.grad(lambda *qkv: sum(one.sum() for one in jax.tree.leaves(original(*qkv))))):
        uses = [site.use for site in sj.sites(function)(Q, K, V)]
        assert "attention" in uses
        assert not {"blocks", "unread"}.intersection(uses)
    if model in (temperature_by_entropy_in_a_scan, perplexity):
        swapped = sj.swap(original, "entmax15", where=lambda site: site.use == "attention")
        same(swapped, lambda *qkv: model(*qkv, sj.entmax15), Q, K, V, atol=3e-6)


ONE, OTHER = normal(4, 4, seed=10), normal(4, 4, seed=11)
OFF = 1 - jnp.eye(4)


def info_nce(a, b):
    e = jnp.exp(a @ b.T)
    positive = jnp.diag(e)
    return -jnp.log(positive / (positive + (e * OFF).sum(-1))).mean()


def debiased(a, b):
    positive, negative = jnp.exp((a * b).sum(-1)), (jnp.exp(a @ b.T) * OFF).sum(-1)
    estimate = jnp.maximum((negative - 0.3 * positive) / 0.9, 3 * jnp.exp(-2.0))
    return -jnp.log(positive / (positive + estimate)).mean()


@pytest.mark.parametrize("loss", full_except([info_nce, debiased], info_nce))
def test_a_contrastive_loss_is_a_likelihood_and_refuses_nothing(loss: Any):
    model = lambda a, b, softmax=jax.nn.softmax: (loss(a, b), attend(a, b, b, softmax))  # noqa: E731
    for function in (model, jax.grad(lambda a, b: loss(a, b) + attend(a, b, b).sum())):
        found = sj.sites(function)(ONE, OTHER)
        assert {site.use for site in found} == {"log", "attention"}
        assert [site.what.partition(",")[0] for site in found if site.use == "attention"] == ["softmax"]
    close(*run(lambda a, b: (sj.swap(model, "entmax15")(a, b), model(a, b, sj.entmax15)), ONE, OTHER))
    with pytest.raises(Refusal, match=r"site 0 at .* is exponentials over a sum, of a form that is not known"):
        jax.eval_shape(sj.swap(model, {0: "entmax15"}), ONE, OTHER)


def test_a_quotient_that_weighs_vectors_is_unread_though_its_logarithm_is_taken_too():
    def model(a, b):
        e = jnp.exp(a @ b.T)
        weights = e / (jnp.exp(2 * a @ b.T)).sum(-1, keepdims=True)
        return attend(a, b, b), weights @ b, jnp.log(weights)

    assert [site.use for site in sj.sites(model)(ONE, OTHER)] == ["unread", "attention"]
