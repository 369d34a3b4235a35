// What happens to a tile of scores between the two products. Scores are transposed: scores[j][q], one vector of
// queries a key. Included after a vec_*.h.
#pragma once

#include <cstdint>
#include <limits>

#include "elementwise.h"
#include "load_tile.h"

namespace ortflash::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// scores = cap tanh(scores / cap)
inline void cap_scores(float* scores, int64_t count, float cap) {
  const Vec inverse = broadcast(1.0f / cap);
  for (int64_t i = 0; i < count; i += kLanes) {
    store(scores + i, mul(broadcast(cap), tanh_of(mul(load(scores + i), inverse))));
  }
}

// scores[j][q] += bias[j][q]
inline void add_tile(float* scores, int64_t count, const float* bias) {
  for (int64_t i = 0; i < count; i += kLanes) store(scores + i, add(load(scores + i), load(bias + i)));
}

// scores[j][q] += bias[j]
template <int kVectors>
void add_per_key(float* scores, int64_t keys, const float* bias) {
  for (int64_t j = 0; j < keys; ++j) {
    const Vec x = broadcast(bias[j]);
    for (int v = 0; v < kVectors; ++v, scores += kLanes) store(scores, add(load(scores), x));
  }
}

// scores[j][q] = keep[j][q] != 0 ? scores[j][q] : fill
inline void mask_tile(float* scores, int64_t count, const float* keep, float fill) {
  for (int64_t i = 0; i < count; i += kLanes) {
    store(scores + i, select(equal(load(keep + i), zero()), broadcast(fill), load(scores + i)));
  }
}

// scores[j][q] = keep[j * stride] != 0 ? scores[j][q] : fill
template <int kVectors>
void mask_per_key(float* scores, int64_t keys, const uint8_t* keep, int64_t stride, float fill) {
  for (int64_t j = 0; j < keys; ++j, scores += kVectors * kLanes) {
    if (keep[j * stride] != 0) continue;
    for (int v = 0; v < kVectors; ++v) store(scores + v * kLanes, broadcast(fill));
  }
}

// scores[j][q] = first[q] <= j < last[q] ? scores[j][q] : -inf
template <int kVectors>
void limit_keys(float* scores, int64_t keys, const float* first, const float* last) {
  Vec before[kVectors], after[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    before[v] = sub(load(first + v * kLanes), broadcast(0.5f));
    after[v] = load(last + v * kLanes);
  }
  for (int64_t j = 0; j < keys; ++j) {
    const Vec key = broadcast(static_cast<float>(j));
    for (int v = 0; v < kVectors; ++v, scores += kLanes) {
      store(scores, select(both(less(before[v], key), less(key, after[v])), load(scores), broadcast(-kInfinity)));
    }
  }
}

// The running softmax of kVectors * kLanes rows: after any number of tiles,
//   row_max = max_j score[j],  row_sum = sum_j exp(score[j] - row_max)
// and the empty state is (-inf, 0). A sink starts it at (sink, 1).
template <int kVectors>
struct OnlineSoftmax {
  alignas(64) float row_max[kVectors * kLanes];
  alignas(64) float row_sum[kVectors * kLanes];

  void reset(int lane, float sink) {
    row_max[lane] = sink;
    row_sum[lane] = sink == -kInfinity ? 0.0f : 1.0f;
  }

  // scores = exp(scores - new row_max) in place; correction[q] = exp(old row_max - new row_max), which is what every
  // earlier sum has to be multiplied by. The maximum is subtracted first, in natural units: a score of -3.4e38 times
  // log2 e would be -inf.
  void absorb(float* scores, int64_t keys, float* correction) {
    Vec maximum[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) maximum[v] = load(row_max + v * kLanes);
    for (int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < kVectors; ++v) {
        maximum[v] = max(maximum[v], load(scores + (j * kVectors + v) * kLanes));
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      const Vec old = load(row_max + v * kLanes);
      store(row_max + v * kLanes, maximum[v]);
      // Where nothing has taken part yet the maximum is -inf, and -inf - -inf is NaN: subtract 0 instead.
      maximum[v] = select(equal(maximum[v], broadcast(-kInfinity)), zero(), maximum[v]);
      store(correction + v * kLanes, exp_of_nonpositive(sub(old, maximum[v])));
      sum[v] = zero();
    }
    for (int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < kVectors; ++v) {
        float* score = scores + (j * kVectors + v) * kLanes;
        const Vec weight = exp_of_nonpositive(sub(load(score), maximum[v]));
        store(score, weight);
        sum[v] = add(sum[v], weight);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      store(row_sum + v * kLanes, fma(load(row_sum + v * kLanes), load(correction + v * kLanes), sum[v]));
    }
  }
};

}  // namespace
}  // namespace ortflash::cpu
