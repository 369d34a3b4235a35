// exp and tanh of a vector, for the softmax and the soft cap. Included after a vec_*.h.
#pragma once

namespace ortflash::cpu {
namespace {

// e^x for x <= 0: exactly 0 below -87 (and for -inf), NaN for NaN.
//
//   n = round(x log2 e),  f = x log2 e - n in [-1/2, 1/2],  e^x = 2^n p(f)
//
// p is the degree-6 minimax polynomial of 2^f, relative error 2e-9 before rounding. Measured: 1.3 ulp for x > -1, 2.7
// for x > -10, 20 at -87, because log2 e rounded to fp32 costs |x| 2^-26. That is less than the rounding of
// x = score - max itself has cost, and such weights are small. (Without fma: 1.6, 8 and 64.)
inline Vec exp_of_nonpositive(Vec x) {
  const Vec log2e = broadcast(1.44269504088896341f);
  const Vec shift = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = fma(x, log2e, shift);
  const Vec f = fma(x, log2e, sub(shift, shifted));
  Vec p = broadcast(1.54353139e-4f);
  p = fma(p, f, broadcast(1.33987442e-3f));
  p = fma(p, f, broadcast(9.61817801e-3f));
  p = fma(p, f, broadcast(5.55036628e-2f));
  p = fma(p, f, broadcast(2.40226507e-1f));
  p = fma(p, f, broadcast(6.93147182e-1f));
  p = fma(p, f, broadcast(1.0f));
  return select(less(x, broadcast(-87.0f)), zero(), scale_by_power(p, shifted));
}

// tanh x within 2 ulp (measured 1.7, without fma 2.0): an odd polynomial below 0.625, (1 - e) / (1 + e) with e =
// exp(-2|x|) above.
inline Vec tanh_of(Vec x) {
  const Vec magnitude = absolute(x);
  const Vec square = mul(x, x);
  Vec p = broadcast(-5.70498872745e-3f);
  p = fma(p, square, broadcast(2.06390887954e-2f));
  p = fma(p, square, broadcast(-5.37397155531e-2f));
  p = fma(p, square, broadcast(1.33314422036e-1f));
  p = fma(p, square, broadcast(-3.33332819422e-1f));
  const Vec small = fma(mul(p, square), x, x);
  const Vec e = exp_of_nonpositive(mul(magnitude, broadcast(-2.0f)));
  const Vec one = broadcast(1.0f);
  const Vec large = copy_sign(div(sub(one, e), add(one, e)), x);
  return select(less(magnitude, broadcast(0.625f)), small, large);
}

}  // namespace
}  // namespace ortflash::cpu
