// The attention core: one parameter struct, one status, and four entries. It knows no framework.
//
//   S      = softcap(scale * Q K^T) + attn_bias          softcap(x) = cap * tanh(x / cap), or x where cap == 0
//   S      = attn_mask ? S : mask_fill
//   S      = -inf outside causal diagonal, window, key_lengths and block_mask
//   output = softmax([S, sink]) [V; 0]                   softmax_lse = log(sum exp S + exp sink)
//   With dropout_p > 0 the softmax's weights are dropped and scaled as dropout.h says before they meet V.
//
// Scores, softmax and sums are fp32 whatever the inputs. A row in which nothing takes part gives output 0 and
// softmax_lse = -inf (or the sink). A finite mask_fill or bias is an ordinary score: a row made of nothing but
// -3.4e38 is a uniform average, so scores may not be multiplied by log2(e) before the maximum is subtracted
// where a bias or a mask is present.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortflash {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16 };
constexpr int64_t element_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

enum class CausalAlignment : uint8_t { kTopLeft, kBottomRight };
enum class Device : uint8_t { kCpu, kCuda };

// Element strides of a (batch, head, row, column) view. 0 = broadcast along that axis.
struct Strides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t column = 1;  // must be 1 for query, key, value and output
};

// B batch, N num_heads, M kv_num_heads, S q_len, T kv_len, D head_size, E v_head_size; N % M == 0.
// Query head n reads key/value head n / (N / M).
struct AttentionParams {
  DType dtype = DType::kFloat32;  // of query, key, value and output
  int64_t batch = 0;
  int64_t num_heads = 0;
  int64_t kv_num_heads = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_size = 0;
  int64_t v_head_size = 0;

  const void* query = nullptr;  // (B,N,S,D)
  const void* key = nullptr;    // (B,M,T,D)
  const void* value = nullptr;  // (B,M,T,E)
  void* output = nullptr;       // (B,N,S,E)
  Strides query_strides, key_strides, value_strides, output_strides;

  float* softmax_lse = nullptr;  // (B,N,S) contiguous, or null

  const void* attn_bias = nullptr;  // broadcast to (B,N,S,T), or null
  DType bias_dtype = DType::kFloat32;
  Strides bias_strides;

  const uint8_t* attn_mask = nullptr;  // broadcast to (B,N,S,T), one byte each, 0 = masked; or null
  Strides mask_strides;

  const int32_t* key_lengths = nullptr;  // (B,) with stride 1, or one element with stride 0; or null
  int64_t key_lengths_stride = 0;

  const uint8_t* block_mask = nullptr;  // broadcast to (B,N,ceil(S/block_size),ceil(T/block_size)); or null
  Strides block_mask_strides;
  int64_t block_size = 128;

  const float* sinks = nullptr;  // (N,) with stride 1, or one element with stride 0; or null
  int64_t sinks_stride = 0;

  float dropout_p = 0.0f;                 // in [0, 1): the rate at which weights are dropped (dropout.h); 0 = off
  const int64_t* dropout_seed = nullptr;  // (2,): seed, offset. Read only where dropout_p > 0, and required there

  float scale = 0.0f;  // 0 = 1/sqrt(D)
  float softcap = 0.0f;
  float mask_fill = 0.0f;  // read only where attn_mask is given; the schema's default is -inf
  bool is_causal = false;
  CausalAlignment causal_alignment = CausalAlignment::kTopLeft;
  int64_t window_left = -1;   // -1 = unbounded
  int64_t window_right = -1;  // -1 = unbounded
  bool precise = false;       // fp32 on tensor cores: true = fp32-accurate products, false = TF32 or better
};

enum class StatusCode : uint8_t { kOk, kInvalidArgument, kUnsupported, kDeviceError };

// A result and the sentence that explains it; never allocates, never throws.
struct Status {
  StatusCode code = StatusCode::kOk;
  char message[512] = {0};
  bool ok() const { return code == StatusCode::kOk; }
};

// A thread pool that somebody else owns. run() calls body(arg, i) once for each i in [0, count), from any thread and
// in any order, and returns when all calls have. A null run means: call them here, one after the other.
struct Parallel {
  void* pool = nullptr;
  void (*run)(void* pool, int64_t count, void (*body)(void* arg, int64_t i), void* arg) = nullptr;
  int64_t threads = 1;  // how many calls can make progress at once, at most; sizes the CPU workspace
};

// Where a call runs. `workspace` has at least workspace_size() bytes, aligned to 256, on that device.
struct Execution {
  Device device = Device::kCpu;
  void* workspace = nullptr;
  Parallel parallel;       // CPU only
  void* stream = nullptr;  // CUDA only: a cudaStream_t
};

// Whether an implementation on this device takes these sizes, types and features. Pointers other than the optional
// inputs' (null or not) are not read. The message names what is missing, and on which GPU.
Status supports(const AttentionParams& params, Device device);

// Bytes of scratch that forward() wants: O(B*N*S) at most, or for fp32 on CUDA the size of query, key and value; never
// O(S*T). 0 is a usual answer.
// Call it only after supports() said yes.
size_t workspace_size(const AttentionParams& params, const Execution& execution);

// Bytes that suffice on CUDA for every call whose sizes lie between those of `smallest` and `largest`, on whatever GPU:
// for hosts that reserve workspace before they know size and GPU. Needs no GPU. workspace_size() isn't monotonic.
size_t workspace_bound(const AttentionParams& smallest, const AttentionParams& largest);

// Computes output and softmax_lse. On CUDA it only enqueues: no allocation, no synchronisation, capturable.
// Validates sizes and strides first; nothing is written unless that passes.
Status forward(const AttentionParams& params, const Execution& execution);

// The implementation that forward() would choose, for people ("cpu-avx512", "sm80-64x64", "sm90-128x176").
// Writes at most `capacity` bytes, zero-terminated.
Status describe(const AttentionParams& params, const Execution& execution, char* name, size_t capacity);

}  // namespace ortflash
