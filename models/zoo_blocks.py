"""Hand-written attention blocks: one function a spelling, each exported by :mod:`export_zoo` as family ``syn_<name>``.

Every block is a pre-norm layer of hidden size 64 with 4 heads; a model stacks two of them. A block's function takes
the layer and ``x`` (batch, seq, 64) and returns the attention's result (batch, seq, 64) before the output projection.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN, HEADS, HEAD = 64, 4, 16

Attend = Callable[["Layer", Tensor], Tensor]


@dataclass(frozen=True)
class Block:
    """One spelling: how it attends, how many of its two sites can be fused, and what is special about it."""

    attend: Attend
    note: str
    fusable: int
    prepare: Callable[[nn.Module], None] | None


BLOCKS: dict[str, Block] = {}


def block(
    note: str, *, fusable: int = 2, prepare: Callable[[nn.Module], None] | None = None
) -> Callable[[Attend], Attend]:
    """Register the decorated function under its own name."""

    def register(attend: Attend) -> Attend:
        BLOCKS[attend.__name__] = Block(attend, note, fusable, prepare)
        return attend

    return register


def _temperature(layer: nn.Module) -> None:
    layer.register_buffer("temperature", torch.tensor([0.25]))


def _table(layer: nn.Module) -> None:
    layer.table = nn.Embedding(16, HEADS)


def _sink(layer: nn.Module) -> None:
    layer.sink = nn.Parameter(torch.zeros(HEADS))


def _mem(layer: nn.Module) -> None:
    layer.mem = nn.Parameter(torch.zeros(2, HEADS, 2, HEAD))


def _qkv(layer: nn.Module) -> None:
    layer.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)


def _qknorm(layer: nn.Module) -> None:
    layer.qn, layer.kn = nn.LayerNorm(HEAD), nn.LayerNorm(HEAD)


def _relpos(layer: nn.Module) -> None:
    layer.rel = nn.Parameter(torch.zeros(2, 9, HEAD))


def _xl(layer: nn.Module) -> None:
    layer.r, layer.u, layer.w = (
        nn.Linear(HIDDEN, HIDDEN),
        nn.Parameter(torch.zeros(HEADS, HEAD)),
        nn.Parameter(torch.zeros(HEADS, HEAD)),
    )


def _kv_heads(kv: int) -> Callable[[nn.Module], None]:
    def prepare(layer: nn.Module) -> None:
        layer.k, layer.v = nn.Linear(HIDDEN, kv * HEAD), nn.Linear(HIDDEN, kv * HEAD)

    return prepare


def _einproj(layer: nn.Module) -> None:
    layer.w = nn.Parameter(torch.zeros(3, HIDDEN, HEADS, HEAD))


def _widevalue(layer: nn.Module) -> None:
    layer.v, layer.out = nn.Linear(HIDDEN, 96), nn.Linear(96, HIDDEN)


def _gamma(layer: nn.Module) -> None:
    layer.gamma = nn.Parameter(torch.zeros(HEAD))


def _tau(layer: nn.Module) -> None:
    layer.tau = nn.Parameter(torch.zeros(HEADS, 1, 1))


def _mlp(layer: nn.Module) -> None:
    layer.mlp = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, HEADS))


def _query(layer: nn.Module) -> None:
    layer.query = nn.Parameter(torch.zeros(1, HEADS, 1, HEAD))


def _mixes(layer: nn.Module) -> None:
    layer.mix1, layer.mix2 = nn.Linear(HEADS, HEADS), nn.Linear(HEADS, HEADS)


class Layer(nn.Module):
    """Pre-norm residual layer whose attention is one of :data:`BLOCKS`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.block = BLOCKS[name]
        self.norm = nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.out = nn.Linear(HIDDEN, HIDDEN)
        if self.block.prepare is not None:
            self.block.prepare(self)

    def split(self, x: Tensor, heads: int = HEADS) -> Tensor:
        """(B,S,N*H) -> (B,N,S,H)."""
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each (B,N,S,H)."""
        return self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))

    def merge(self, x: Tensor) -> Tensor:
        """(B,N,S,H) -> (B,S,N*H)."""
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.block.attend(self, self.norm(x)))


class Stack(nn.Module):
    """Two layers of one block: (batch, seq, 64) -> (batch, seq, 64)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(name) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _finish(layer: Layer, scores: Tensor, v: Tensor) -> Tensor:
    return layer.merge(torch.matmul(scores.softmax(-1), v))


def _causal(s: int, x: Tensor) -> Tensor:
    """(S,S) bool, True takes part."""
    return torch.ones(s, s, dtype=torch.bool, device=x.device).tril()


# ---------------------------------------------------------------- where the scale sits


@block("Mul(QK, c)")
def plain(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, q @ k.transpose(-1, -2) * HEAD**-0.5, v)


@block("Div(QK, sqrt(d))")
def div(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, q @ k.transpose(-1, -2) / math.sqrt(HEAD), v)


@block("scale on q before the head split")
def scaleqlin(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    q = layer.split(layer.q(x) * HEAD**-0.5)
    return _finish(layer, q @ k.transpose(-1, -2), v)


@block("scale on q and on k, two different constants")
def scaleboth(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, (q * 0.3) @ (k / 1.7).transpose(-1, -2) * 0.5, v)


@block("q / sqrt(shape) as a tensor")
def dynscaleq(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, (q / torch.tensor(float(q.shape[-1])).sqrt()) @ k.transpose(-1, -2), v)


@block("(QK + mask) * scale: the scale also multiplies the mask")
def scaleaftermask(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    bias = torch.where(_causal(x.shape[1], x), 0.0, -50.0)
    return _finish(layer, (q @ k.transpose(-1, -2) + bias) * 0.25, v)


@block("(Where(mask, QK, -1e4)) * scale")
def scaleafterwhere(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, (q @ k.transpose(-1, -2)).masked_fill(~_causal(x.shape[1], x), -1e4) / 4.0, v)


@block("negative scale folded into a sign: softmax(-(QK) * -s)")
def negscale(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, (-(q @ k.transpose(-1, -2))) * (-(HEAD**-0.5)), v)


@block("scale as multiplication by a one-element buffer", prepare=_temperature)
def paramscale(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, (q @ k.transpose(-1, -2)) * layer.temperature, v)


# ---------------------------------------------------------------- masks


@block("computed padding mask from the input, Where with -inf and a NaN guard")
def nanguard(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    keep = (x.mean(-1) > -0.3)[:, None, None, :] & _causal(x.shape[1], x)
    probs = torch.where(keep, q @ k.transpose(-1, -2) * 0.25, -torch.inf).softmax(-1)
    return layer.merge(torch.where(probs.isnan(), 0.0, probs) @ v)


@block("rows that nothing takes part in are zeroed after the softmax by their mask")
def rowguard(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    keep = (x.mean(-1) > 0.0)[:, None, None, :] & _causal(x.shape[1], x)
    probs = (q @ k.transpose(-1, -2) * 0.25).masked_fill(~keep, torch.finfo(x.dtype).min).softmax(-1)
    return layer.merge(probs.masked_fill(~keep.any(-1, keepdim=True), 0.0) @ v)


@block("(1 - m) * -10000 with m a product of two masks")
def mulmask(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    row = (x.mean(-1) > -0.2).to(x.dtype)
    mask = row[:, :, None] * row[:, None, :]
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25 + (1.0 - mask[:, None]) * -10000.0, v)


@block("always-true mask")
def alltrue(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    return _finish(layer, torch.where(keep, q @ k.transpose(-1, -2) * 0.25, torch.finfo(x.dtype).min), v)


@block("bool mask by eq 0, expanded to full shape, masked_fill before the scale is on")
def eqzero(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    mask = (x.mean(-1) > -0.2).long()
    scores = q @ k.transpose(-1, -2) * 0.25
    full = mask[:, None, None, :].expand(scores.shape)
    return _finish(layer, scores.masked_fill(full == 0, -1e9), v)


@block("sliding window by |i - j| < w")
def band(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    i = torch.arange(x.shape[1])
    return _finish(
        layer, (q @ k.transpose(-1, -2) * 0.25).masked_fill((i[:, None] - i[None, :]).abs() >= 3, -torch.inf), v
    )


@block("causal sliding window, float mask by triu and tril")
def causalband(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    ones = torch.ones(x.shape[1], x.shape[1])
    keep = ones.tril() * ones.triu(-3)
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25 + (1 - keep) * torch.finfo(x.dtype).min, v)


@block("block-diagonal mask by i // 4 == j // 4")
def chunks(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    ids = torch.arange(x.shape[1]) // 4
    return _finish(layer, (q @ k.transpose(-1, -2) * 0.25).masked_fill(ids[:, None] != ids[None, :], -1e4), v)


@block("prefix LM: causal or first three keys")
def prefixlm(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    i = torch.arange(x.shape[1])
    keep = (i[None, :] <= i[:, None]) | (i[None, :] < 3)
    return _finish(layer, torch.where(keep, q @ k.transpose(-1, -2) * 0.25, -torch.inf), v)


@block("three Adds: padding, causal and a learned bias", prepare=_table)
def threeadds(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    pad = torch.where(x.mean(-1) > -0.3, 0.0, -1e4)[:, None, None, :]
    causal = torch.where(_causal(x.shape[1], x), 0.0, -1e4)
    i = torch.arange(x.shape[1])
    bias = layer.table((i[:, None] - i[None, :]).clamp(-7, 8) + 7).permute(2, 0, 1)[None]
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25 + bias + pad + causal, v)


@block("bias and mask summed before they reach the score", prepare=_table)
def presummed(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    pad = torch.where(x.mean(-1) > -0.3, 0.0, -1e4)[:, None, None, :]
    i = torch.arange(x.shape[1])
    bias = layer.table((i[:, None] - i[None, :]).clamp(-7, 8) + 7).permute(2, 0, 1)[None]
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25 + (bias + pad), v)


@block("the bias is subtracted")
def subbias(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    i = torch.arange(x.shape[1], dtype=x.dtype)
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25 - (i[:, None] - i[None, :]).abs() * 0.3, v)


@block("ALiBi with slopes, causal")
def alibi(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    i = torch.arange(x.shape[1])
    slopes = torch.tensor([0.25, 0.0625, 0.5, 0.125])[:, None, None]
    bias = slopes * (i[None, :] - i[:, None])
    return _finish(layer, (q @ k.transpose(-1, -2) * 0.25 + bias).masked_fill(~_causal(x.shape[1], x), -torch.inf), v)


@block("softcap, then a causal Where")
def softcap(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    scores = torch.tanh(q @ k.transpose(-1, -2) * 0.25 / 5.0) * 5.0
    return _finish(layer, scores.masked_fill(~_causal(x.shape[1], x), -torch.inf), v)


@block("softcap with an additive mask added after, cap on the left")
def softcapadd(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    pad = torch.where(x.mean(-1) > -0.3, 0.0, -1e4)[:, None, None, :]
    return _finish(layer, 3.0 * torch.tanh((q * 0.25) @ k.transpose(-1, -2) * (1 / 3.0)) + pad, v)


# ---------------------------------------------------------------- softmax spellings


@block("scores transposed: softmax over axis -2, product with the probabilities on the right")
def ktfirst(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    probs = (k @ q.transpose(-1, -2) * 0.25).softmax(-2)
    return layer.merge((v.transpose(-1, -2) @ probs).transpose(-1, -2))


@block("softmax over axis -2, then transposed back")
def axism2(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return layer.merge((k @ q.transpose(-1, -2) * 0.25).softmax(-2).transpose(-1, -2) @ v)


@block("Softmax(axis=3)")
def posaxis3(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return layer.merge((q @ k.transpose(-1, -2) * 0.25).softmax(3) @ v)


@block("exp(s - max) / sum")
def decomp2(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    s = q @ k.transpose(-1, -2) * 0.25
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return layer.merge((e / e.sum(-1, keepdim=True)) @ v)


@block("normalised after the second product")
def decomplate(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    s = q @ k.transpose(-1, -2) * 0.25
    e = (s - s.amax(-1, keepdim=True)).exp()
    return layer.merge((e @ v) / e.sum(-1, keepdim=True))


@block("exp / sum without the maximum")
def decompnomax(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    e = (q @ k.transpose(-1, -2) * 0.05).exp()
    return layer.merge((e / e.sum(-1, keepdim=True)) @ v)


@block("exp(s - logsumexp(s))")
def lse(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    s = q @ k.transpose(-1, -2) * 0.25
    return layer.merge((s - s.logsumexp(-1, keepdim=True)).exp() @ v)


@block("exp(log_softmax)")
def logsm(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return layer.merge((q @ k.transpose(-1, -2) * 0.25).log_softmax(-1).exp() @ v)


@block("fp32 softmax under a float mask, cast back")
def fp32sm(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    s = q @ k.transpose(-1, -2) * 0.25 + torch.where(_causal(x.shape[1], x), 0.0, torch.finfo(x.dtype).min).to(x.dtype)
    return layer.merge(s.softmax(-1, dtype=torch.float32).to(x.dtype) @ v)


@block("q, k and v cast to fp32, the result cast back")
def fp32scores(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = (t.float() for t in layer.heads(x))
    return layer.merge((q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v).to(x.dtype)


@block("q and k cast to fp32, probabilities cast back")
def fp32qk(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return layer.merge((q.float() @ k.float().transpose(-1, -2) * 0.25).softmax(-1).type_as(v) @ v)


@block("sink column by Concat, dropped after the softmax", prepare=_sink)
def sinkcol(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    s = (q @ k.transpose(-1, -2) * 0.25).masked_fill(~_causal(x.shape[1], x), -torch.inf)
    sink = layer.sink.reshape(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], -1)
    probs = torch.cat([s, sink], -1).softmax(-1)
    return layer.merge(probs[..., :-1] @ v)


@block("sink column in front")
def sinkfirst(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    s = q @ k.transpose(-1, -2) * 0.25
    probs = torch.cat([torch.zeros_like(s[..., :1]), s], -1).softmax(-1)
    return layer.merge(probs[..., 1:] @ v)


@block("softmax-one: exp / (1 + sum)")
def softmax1(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    s = q @ k.transpose(-1, -2) * 0.25
    top = s.amax(-1, keepdim=True).clamp(min=0)
    e = (s - top).exp()
    return layer.merge((e / (e.sum(-1, keepdim=True) + (-top).exp())) @ v)


# ---------------------------------------------------------------- products and layouts


@block("einsum bqhd,bkhd->bhqk and bhqk,bkhd->bqhd")
def einbqhd(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = (lin(x).view(x.shape[0], x.shape[1], HEADS, HEAD) for lin in (layer.q, layer.k, layer.v))
    probs = (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", probs, v).reshape(x.shape[0], x.shape[1], HIDDEN)


@block("einsum nqhd,nkhd->nhqk with a mask and the division inside the softmax")
def einnqhd(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = (lin(x).reshape(x.shape[0], x.shape[1], HEADS, HEAD) for lin in (layer.q, layer.k, layer.v))
    energy = torch.einsum("nqhd,nkhd->nhqk", [q, k]).masked_fill(_causal(x.shape[1], x) == 0, float("-1e20"))
    probs = torch.softmax(energy / (HIDDEN ** (1 / 2)), dim=3)
    return torch.einsum("nhql,nlhd->nqhd", [probs, v]).reshape(x.shape[0], x.shape[1], HIDDEN)


@block("einsum bhid,bhjd->bhij")
def einbhid(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    probs = torch.einsum("bhid,bhjd->bhij", q * 0.25, k).softmax(-1)
    return layer.merge(torch.einsum("bhij,bhjd->bhid", probs, v))


@block("sequence first, einsum ibnd,jbnd->bnij and bnij,jbnd->ibnd")
def einseqfirst(layer: Layer, x: Tensor) -> Tensor:
    y = x.transpose(0, 1)
    q, k, v = (lin(y).view(y.shape[0], y.shape[1], HEADS, HEAD) for lin in (layer.q, layer.k, layer.v))
    probs = (torch.einsum("ibnd,jbnd->bnij", q, k) * 0.25).softmax(3)
    return torch.einsum("bnij,jbnd->ibnd", probs, v).reshape(y.shape[0], y.shape[1], -1).transpose(0, 1)


@block("sequence first, scores ijbn, softmax over axis 1")
def einijbn(layer: Layer, x: Tensor) -> Tensor:
    y = x.transpose(0, 1)
    q, k, v = (lin(y).view(y.shape[0], y.shape[1], HEADS, HEAD) for lin in (layer.q, layer.k, layer.v))
    probs = (torch.einsum("ibnd,jbnd->ijbn", q, k) * 0.25).softmax(1)
    return torch.einsum("ijbn,jbnd->ibnd", probs, v).reshape(y.shape[0], y.shape[1], -1).transpose(0, 1)


@block("einsum over grouped heads, bkgsd,bktd->bkgst", prepare=_kv_heads(2))
def eingqa(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q = layer.q(x).view(b, s, 2, 2, HEAD).permute(0, 2, 3, 1, 4)
    k, v = layer.split(layer.k(x), 2), layer.split(layer.v(x), 2)
    probs = (torch.einsum("bkgsd,bktd->bkgst", q, k) * 0.25).softmax(-1)
    out = torch.einsum("bkgst,bktd->bkgsd", probs, v)
    return out.permute(0, 3, 1, 2, 4).reshape(b, s, HIDDEN)


@block("einsum bskgd,btkd->bkgst straight from the projections", prepare=_kv_heads(2))
def eingqabs(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q = layer.q(x).view(b, s, 2, 2, HEAD)
    k, v = layer.k(x).view(b, s, 2, HEAD), layer.v(x).view(b, s, 2, HEAD)
    probs = (torch.einsum("bskgd,btkd->bkgst", q, k) * 0.25).softmax(-1)
    return torch.einsum("bkgst,btkd->bskgd", probs, v).reshape(b, s, HIDDEN)


@block("einsum with an ellipsis")
def eindots(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    probs = torch.einsum("...id,...jd->...ij", q * 0.25, k).softmax(-1)
    return layer.merge(torch.einsum("...ij,...jd->...id", probs, v))


@block("einsum projections bsd,dnh->bnsh", prepare=_einproj)
def einproj(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = (torch.einsum("bsd,dnh->bnsh", x, layer.w[i]) for i in range(3))
    probs = (torch.einsum("bnsh,bnth->bnst", q, k) * 0.25).softmax(-1)
    return torch.einsum("bnst,bnth->bsnh", probs, v).reshape(x.shape[0], x.shape[1], HIDDEN)


@block("convolution layout: q, k, v are (B, C, L), einsum bct,bcs->bts per head (guided diffusion)")
def convlayout(layer: Layer, x: Tensor) -> Tensor:
    y = torch.cat([layer.q(x), layer.k(x), layer.v(x)], -1).transpose(1, 2)
    b, _, length = y.shape
    q, k, v = y.chunk(3, dim=1)
    scale = 1 / math.sqrt(math.sqrt(HEAD))
    weight = torch.einsum(
        "bct,bcs->bts", (q * scale).reshape(b * HEADS, HEAD, length), (k * scale).reshape(b * HEADS, HEAD, length)
    )
    weight = torch.softmax(weight.float(), dim=-1).type(weight.dtype)
    out = torch.einsum("bts,bcs->bct", weight, v.reshape(b * HEADS, HEAD, length))
    return out.reshape(b, -1, length).transpose(1, 2)


@block("VQGAN: one head, q^T k by bmm, v times transposed probabilities")
def vqgan(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.q(x).transpose(-1, -2), layer.k(x).transpose(-1, -2), layer.v(x).transpose(-1, -2)
    w = torch.bmm(q.permute(0, 2, 1), k) * (HIDDEN**-0.5)
    w = F.softmax(w, dim=2).permute(0, 2, 1)
    return torch.bmm(v, w).transpose(-1, -2)


@block("one head, 3-D, no head split at all")
def onehead(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.q(x), layer.k(x), layer.v(x)
    return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v


@block("3-D heads by reshape to (B*N,S,H), bmm, additive mask through a 4-D view")
def bmm3mask(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = (t.reshape(b * HEADS, s, HEAD) for t in layer.heads(x))
    scores = torch.bmm(q * 0.25, k.transpose(1, 2))
    mask = torch.where(_causal(s, x), 0.0, torch.finfo(x.dtype).min)[None, None]
    scores = (scores.view(b, HEADS, s, s) + mask).view(b * HEADS, s, s)
    probs = scores.softmax(-1)
    return torch.bmm(probs, v).view(b, HEADS, s, HEAD).transpose(1, 2).reshape(b, s, HIDDEN)


@block("seq-first 3-D heads (S,B*N,H), baddbmm with a mask (Megatron)")
def baddbmm(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = (lin(x).transpose(0, 1).reshape(s, b * HEADS, HEAD) for lin in (layer.q, layer.k, layer.v))
    empty = torch.zeros(b * HEADS, s, s, dtype=x.dtype)
    scores = torch.baddbmm(empty, q.transpose(0, 1), k.transpose(0, 1).transpose(1, 2), beta=0.0, alpha=0.25)
    scores = scores.view(b, HEADS, s, s).masked_fill(~_causal(s, x), -10000.0)
    probs = scores.softmax(-1).view(b * HEADS, s, s)
    out = torch.bmm(probs, v.transpose(0, 1)).view(b, HEADS, s, HEAD)
    return out.permute(2, 0, 1, 3).reshape(s, b, HIDDEN).transpose(0, 1)


@block("five axes: windows of 5 tokens kept as a batch axis")
def fived(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = (lin(x).view(b, s // 5, 5, HEADS, HEAD).transpose(2, 3) for lin in (layer.q, layer.k, layer.v))
    return ((q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v).transpose(2, 3).reshape(b, s, HIDDEN)


@block("windows of 5 tokens folded into the batch, bias table and shift mask through five axes", prepare=_table)
def window(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    y = torch.roll(x, -2, 1).view(b * (s // 5), 5, HIDDEN)
    q, k, v = layer.heads(y)
    i = torch.arange(5)
    scores = (q * 0.25) @ k.transpose(-1, -2) + layer.table(i[:, None] - i[None, :] + 4).permute(2, 0, 1)[None]
    ids = torch.zeros(s // 5, 5)
    ids[-1, 3:] = 1.0
    shift = torch.where(ids[:, :, None] != ids[:, None, :], -100.0, 0.0)
    scores = (scores.view(b, s // 5, HEADS, 5, 5) + shift[None, :, None]).view(-1, HEADS, 5, 5)
    return torch.roll(layer.merge(scores.softmax(-1) @ v).reshape(b, s, HIDDEN), 2, 1)


@block("two learned keys and values joined to the site's own by Concat", prepare=_mem)
def memorykv(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    b = x.shape[0]
    k = torch.cat([layer.mem[0].expand(b, -1, -1, -1), k], 2)
    v = torch.cat([layer.mem[1].expand(b, -1, -1, -1), v], 2)
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, v)


@block("value head size 24, key head size 16", prepare=_widevalue)
def widevalue(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, v)


@block("key and value are one tensor")
def keyisvalue(layer: Layer, x: Tensor) -> Tensor:
    q, k, _ = layer.heads(x)
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, k)


@block("query is key")
def queryiskey(layer: Layer, x: Tensor) -> Tensor:
    q, _, v = layer.heads(x)
    return _finish(layer, q @ q.transpose(-1, -2) * 0.25, v)


@block("K^T by permute(0, 2, 3, 1) from BSNH")
def kperm(layer: Layer, x: Tensor) -> Tensor:
    q, _, v = layer.heads(x)
    k = layer.k(x).view(x.shape[0], x.shape[1], HEADS, HEAD).permute(0, 2, 3, 1)
    return _finish(layer, q @ k * 0.25, v)


@block("q, k and v packed, view to (B,S,3,N,H), unbind", prepare=_qkv)
def packunbind(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = layer.qkv(x).view(b, s, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4).unbind(0)
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, v)


@block("packed, (B,S,N,3H) interleaved, chunk on the last axis", prepare=_qkv)
def packneox(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = layer.qkv(x).view(b, s, HEADS, 3 * HEAD).transpose(1, 2).chunk(3, -1)
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, v)


@block("packed, (B,S,N,H,3) with the three last, indexed", prepare=_qkv)
def packlast(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    qkv = layer.qkv(x).view(b, s, HEADS, HEAD, 3)
    q, k, v = (qkv[..., i].transpose(1, 2) for i in range(3))
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, v)


@block("key and value packed, query apart; tensor_split", prepare=_qkv)
def packkv(layer: Layer, x: Tensor) -> Tensor:
    kv = layer.qkv(x)[..., : 2 * HIDDEN]
    k, v = kv.tensor_split(2, -1)
    return _finish(layer, layer.split(layer.q(x)) @ layer.split(k).transpose(-1, -2) * 0.25, layer.split(v))


@block("packed qkv and sdpa", prepare=_qkv)
def packsdpa(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = (layer.split(t) for t in layer.qkv(x).split(HIDDEN, -1))
    return layer.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))


# ---------------------------------------------------------------- grouped heads


@block("5-D product that broadcasts over the group", prepare=_kv_heads(2))
def gqa5d(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q = layer.split(layer.q(x)).reshape(b, 2, 2, s, HEAD)
    k, v = layer.split(layer.k(x), 2).unsqueeze(2), layer.split(layer.v(x), 2).unsqueeze(2)
    return layer.merge(((q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v).reshape(b, HEADS, s, HEAD))


@block("group folded into the rows of the query", prepare=_kv_heads(2))
def gqarows(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q = layer.split(layer.q(x)).reshape(b, 2, 2 * s, HEAD)
    k, v = layer.split(layer.k(x), 2), layer.split(layer.v(x), 2)
    return layer.merge(((q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v).reshape(b, HEADS, s, HEAD))


@block("one key/value head, group folded into the rows (gpt_bigcode)", prepare=_kv_heads(1))
def mqarows(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q = layer.q(x).reshape(b, s * HEADS, HEAD)
    scores = (q @ layer.k(x).transpose(-1, -2) * 0.25).view(b, s, HEADS, s)
    scores = torch.where(_causal(s, x)[None, :, None], scores, -1e4)
    out = scores.softmax(-1).view(b, s * HEADS, s) @ layer.v(x)
    return out.view(b, s, HIDDEN)


@block("unsqueeze, expand, reshape", prepare=_kv_heads(2))
def gqaexpand(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = layer.split(layer.q(x)), layer.split(layer.k(x), 2), layer.split(layer.v(x), 2)
    k, v = (t[:, :, None].expand(b, 2, 2, s, HEAD).reshape(b, HEADS, s, HEAD) for t in (k, v))
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, v)


@block("repeated before the head transpose, on axis 2 of (B,S,M,H)", prepare=_kv_heads(2))
def gqarepbs(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    k, v = (lin(x).view(b, s, 2, HEAD).repeat_interleave(2, 2).transpose(1, 2) for lin in (layer.k, layer.v))
    return _finish(layer, layer.split(layer.q(x)) @ k.transpose(-1, -2) * 0.25, v)


@block("stacked copies then reshaped: Concat in group order", prepare=_kv_heads(2))
def gqastack(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = layer.split(layer.q(x)), layer.split(layer.k(x), 2), layer.split(layer.v(x), 2)
    k, v = (torch.stack([t, t], 2).reshape(b, HEADS, s, HEAD) for t in (k, v))
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, v)


@block("heads picked by a constant index 0,0,1,1", prepare=_kv_heads(2))
def gqaindex(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.split(layer.q(x)), layer.split(layer.k(x), 2), layer.split(layer.v(x), 2)
    index = torch.tensor([0, 0, 1, 1])
    return _finish(layer, q @ k[:, index].transpose(-1, -2) * 0.25, v[:, index])


@block("Tile: head order 0,1,0,1, which is not grouped order; fusable with the copies kept", prepare=_kv_heads(2))
def gqatile(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.split(layer.q(x)), layer.split(layer.k(x), 2), layer.split(layer.v(x), 2)
    return _finish(layer, q @ k.repeat(1, 2, 1, 1).transpose(-1, -2) * 0.25, v.repeat(1, 2, 1, 1))


@block("key/value head broadcast by expand to all heads", prepare=_kv_heads(1))
def mqaexpand(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    k, v = (lin(x)[:, None].expand(b, HEADS, s, HEAD) for lin in (layer.k, layer.v))
    return _finish(layer, layer.split(layer.q(x)) @ k.transpose(-1, -2) * 0.25, v)


# ---------------------------------------------------------------- before the site


def _rope(x: Tensor, interleaved: bool = False) -> Tensor:
    s, d = x.shape[-2], x.shape[-1]
    angle = torch.arange(s)[:, None] * (10000.0 ** (-torch.arange(0, d, 2) / d))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    if interleaved:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@block("rotary halves")
def rope(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, _rope(q) @ _rope(k).transpose(-1, -2) * 0.25, v)


@block("rotary pairs, interleaved")
def ropepairs(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, _rope(q, True) @ _rope(k, True).transpose(-1, -2) * 0.25, v)


@block("rotary on half of each head only (MLA: nope and rope parts joined)")
def ropepart(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    q, k = (torch.cat([t[..., :8], _rope(t[..., 8:])], -1) for t in (q, k))
    return layer.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))


@block("LayerNorm on q and k, whose gamma must not be taken for a scale", prepare=_qknorm)
def qknorm(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, layer.qn(q) @ layer.kn(k).transpose(-1, -2) * 0.25, v)


@block("cosine attention with a scalar scale: q and k normalised, times 10")
def cosine(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2) * 10.0, v)


@block("a vector over the head size on q: part of q, not a scale", prepare=_gamma)
def vectorscale(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, (q * layer.gamma) @ k.transpose(-1, -2) * 0.25, v)


@block("per-head temperature on the scores; may be moved into q or refused", fusable=0, prepare=_tau)
def headscale(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return _finish(layer, (q @ k.transpose(-1, -2)) * layer.tau, v)


# ---------------------------------------------------------------- relative positions


@block("SAM: decomposed relative position on a 5x5 grid, computed from q", prepare=_relpos)
def decomposed(layer: Layer, x: Tensor) -> Tensor:
    b = x.shape[0]
    q, k, v = (t.reshape(b * HEADS, -1, HEAD) for t in layer.heads(x))
    s = 5
    scores = (q * 0.25) @ k.transpose(-2, -1)
    i = torch.arange(s)
    rh, rw = (layer.rel[n][i[:, None] - i[None, :] + s - 1] for n in range(2))
    grid = q.reshape(b * HEADS, s, s, HEAD)
    rel_h = torch.einsum("bhwc,hkc->bhwk", grid, rh)
    rel_w = torch.einsum("bhwc,wkc->bhwk", grid, rw)
    scores = scores.view(-1, s, s, s, s) + rel_h[:, :, :, :, None] + rel_w[:, :, :, None, :]
    out = scores.view(-1, s * s, s * s).softmax(-1) @ v
    return out.view(b, HEADS, s, s, HEAD).permute(0, 2, 3, 1, 4).reshape(b, s * s, HIDDEN)


@block("Transformer-XL: content and position terms, relative shift", prepare=_xl)
def relshift(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = layer.heads(x)
    pos = torch.sin(torch.arange(s - 1, -s, -1)[:, None] * torch.arange(1, HIDDEN + 1)[None] * 0.1).to(x.dtype)
    r = layer.r(pos).view(2 * s - 1, HEADS, HEAD).transpose(0, 1)
    ac = (q + layer.u[:, None]) @ k.transpose(-1, -2)
    bd = (q + layer.w[:, None]) @ r.transpose(-1, -2)
    bd = F.pad(bd, (1, 0)).view(b, HEADS, 2 * s, s)[:, :, 1:].reshape(b, HEADS, s, 2 * s - 1)[..., :s]
    return _finish(layer, (ac + bd) * 0.25, v)


@block("DeBERTa: content-to-position and position-to-content gathers", prepare=_xl)
def disentangled(layer: Layer, x: Tensor) -> Tensor:
    b, s, _ = x.shape
    q, k, v = layer.heads(x)
    r = layer.split(
        layer.r(torch.sin(torch.arange(16)[:, None] * torch.arange(1, HIDDEN + 1)[None] * 0.1).to(x.dtype))[None]
    )
    i = torch.arange(s)
    index = (i[:, None] - i[None, :]).clamp(-8, 7) + 8
    scale = 1 / math.sqrt(HEAD * 3)
    c2p = torch.gather(q @ r.transpose(-1, -2), -1, index.expand(b, HEADS, s, s))
    p2c = torch.gather(k @ r.transpose(-1, -2), -1, index.expand(b, HEADS, s, s)).transpose(-1, -2)
    return _finish(layer, (q @ k.transpose(-1, -2)) * scale + c2p * scale + p2c * scale, v)


@block("log-spaced continuous bias through a small MLP", prepare=_mlp)
def cpb(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    i = torch.arange(x.shape[1], dtype=x.dtype)
    d = i[:, None] - i[None, :]
    bias = 4 * torch.sigmoid(layer.mlp((d.sign() * d.abs().add(1).log())[..., None])).permute(2, 0, 1)
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25 + bias[None], v)


# ---------------------------------------------------------------- sdpa, nn.Module forms


@block("sdpa, no mask")
def sdpa(layer: Layer, x: Tensor) -> Tensor:
    return layer.merge(F.scaled_dot_product_attention(*layer.heads(x)))


@block("sdpa, causal, scale 0.3")
def sdpacausal2(layer: Layer, x: Tensor) -> Tensor:
    return layer.merge(F.scaled_dot_product_attention(*layer.heads(x), is_causal=True, scale=0.3))


@block("sdpa, bool mask (B,1,S,S) with rows that nothing takes part in")
def sdpaboolfull(layer: Layer, x: Tensor) -> Tensor:
    keep = (x.mean(-1) > 0.1)[:, None, None, :] & _causal(x.shape[1], x)
    return layer.merge(F.scaled_dot_product_attention(*layer.heads(x), attn_mask=keep))


@block("sdpa, float mask (S,S), window")
def sdpafloat2(layer: Layer, x: Tensor) -> Tensor:
    i = torch.arange(x.shape[1])
    mask = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype).masked_fill(
        (i[:, None] - i[None, :]).abs() > 2, -torch.inf
    )
    return layer.merge(F.scaled_dot_product_attention(*layer.heads(x), attn_mask=mask))


@block("sdpa cross: keys are every second token")
def sdpacross(layer: Layer, x: Tensor) -> Tensor:
    y = x[:, ::2]
    q, k, v = layer.split(layer.q(x)), layer.split(layer.k(y)), layer.split(layer.v(y))
    return layer.merge(F.scaled_dot_product_attention(q, k, v))


@block("eager cross attention to three pooled tokens")
def crosspool(layer: Layer, x: Tensor) -> Tensor:
    y = torch.stack([x.mean(1), x.amax(1), x.amin(1)], 1)
    q, k, v = layer.split(layer.q(x)), layer.split(layer.k(y)), layer.split(layer.v(y))
    return _finish(layer, q @ k.transpose(-1, -2) * 0.25, v)


@block("sdpa on 3-D tensors, one head")
def sdpa3d(layer: Layer, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(layer.q(x), layer.k(x), layer.v(x))


@block("one learned query pools the sequence, then is broadcast back", prepare=_query)
def poolquery(layer: Layer, x: Tensor) -> Tensor:
    _, k, v = layer.heads(x)
    out = (layer.query * 0.25 @ k.transpose(-1, -2)).softmax(-1) @ v
    return layer.merge(out).expand(-1, x.shape[1], -1)


# ---------------------------------------------------------------- what must not be fused


@block("talking heads: heads are mixed before and after the softmax", fusable=0, prepare=_mixes)
def talking(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    s = layer.mix1((q @ k.transpose(-1, -2) * 0.25).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    return layer.merge(layer.mix2(s.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v)


@block("probabilities multiplied by a mask after the softmax", fusable=0)
def premul(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return layer.merge(((q @ k.transpose(-1, -2) * 0.25).softmax(-1) * _causal(x.shape[1], x)) @ v)


@block("linear attention: softmax on q and on k apart", fusable=0)
def linear(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return layer.merge(q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v))


@block("softmax over the query axis", fusable=0)
def wrongaxis(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    return layer.merge((q @ k.transpose(-1, -2) * 0.25).softmax(-2) @ v)


@block("channel attention (XCiT): softmax over channels", fusable=0)
def xcit(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = (t.transpose(-1, -2) for t in layer.heads(x))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return layer.merge(((q @ k.transpose(-1, -2) * 4.0).softmax(-1) @ v).transpose(-1, -2))


@block("differential attention: the difference of two softmaxes", fusable=0)
def differential(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.chunk(2, -1)
    return layer.merge(
        ((q1 @ k1.transpose(-1, -2) * 0.35).softmax(-1) - 0.4 * (q2 @ k2.transpose(-1, -2) * 0.35).softmax(-1)) @ v
    )


@block("the probabilities are averaged and added to the result", fusable=0)
def readagain(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.heads(x)
    probs = (q @ k.transpose(-1, -2) * 0.25).softmax(-1)
    return layer.merge(probs @ v) + probs.mean((1, 3))[..., None]
