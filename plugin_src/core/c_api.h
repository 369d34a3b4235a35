/* The attention core behind a C interface, for tests, benchmarks and ortflash/core.py: libortflash_core.so exports
 * exactly these functions. The structs mirror attention.h field by field with fixed-size types; see there for meaning.
 *
 * Functions that return int32_t return a StatusCode: 0 ok, 1 invalid argument, 2 unsupported, 3 device error. The
 * sentence goes to `message` (zero-terminated, at most `capacity` bytes; may be null).
 *
 * `implementation` picks one by name ("cpu-avx512", "cpu-avx2", "cpu-portable", "sm80", ...); null or "" takes the one
 * that the dispatcher prefers. ortflash_implementations() lists the names. */
#ifndef ORTFLASH_C_API_H_
#define ORTFLASH_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define ORTFLASH_EXPORT __declspec(dllexport)
#else
#define ORTFLASH_EXPORT __attribute__((visibility("default")))
#endif

/* Element strides of (batch, head, row, column). */
typedef int64_t OrtflashStrides[4];

typedef struct OrtflashParams {
  uint64_t struct_bytes; /* sizeof(OrtflashParams), so that a stale caller is told and not misread */

  int32_t dtype;            /* of query, key, value, output: 0 float32, 1 float16, 2 bfloat16 */
  int32_t bias_dtype;       /* likewise */
  int32_t is_causal;        /* 0 or 1 */
  int32_t causal_alignment; /* 0 top left, 1 bottom right */
  int32_t precise;          /* 0 or 1 */
  float scale;              /* 0 = 1/sqrt(head_size) */
  float softcap;            /* 0 = off */
  float mask_fill;

  int64_t batch;
  int64_t num_heads;
  int64_t kv_num_heads;
  int64_t q_len;
  int64_t kv_len;
  int64_t head_size;
  int64_t v_head_size;
  int64_t window_left;  /* -1 = unbounded */
  int64_t window_right; /* -1 = unbounded */
  int64_t block_size;

  const void* query;          /* (B,N,S,D) */
  const void* key;            /* (B,M,T,D) */
  const void* value;          /* (B,M,T,E) */
  void* output;               /* (B,N,S,E) */
  float* softmax_lse;         /* (B,N,S) contiguous, or null */
  const void* attn_bias;      /* broadcast to (B,N,S,T), or null */
  const uint8_t* attn_mask;   /* broadcast to (B,N,S,T), or null */
  const int32_t* key_lengths; /* (B,) or one element, or null */
  const uint8_t* block_mask;  /* broadcast to (B,N,ceil(S/block_size),ceil(T/block_size)), or null */
  const float* sinks;         /* (N,) or one element, or null */

  OrtflashStrides query_strides;
  OrtflashStrides key_strides;
  OrtflashStrides value_strides;
  OrtflashStrides output_strides;
  OrtflashStrides bias_strides;
  OrtflashStrides mask_strides;
  OrtflashStrides block_mask_strides;
  int64_t key_lengths_stride; /* 1, or 0 for one element */
  int64_t sinks_stride;       /* 1, or 0 for one element */

  const int64_t* dropout_seed; /* (2,): seed, offset; or null */
  float dropout_p;             /* 0 = off */
  int32_t reserved;
} OrtflashParams;

/* attention_grad.h's AttentionGradParams. */
typedef struct OrtflashGradParams {
  uint64_t struct_bytes; /* sizeof(OrtflashGradParams) */
  int32_t deterministic; /* 0 or 1 */
  int32_t reserved;

  OrtflashParams forward; /* output and softmax_lse are read */

  const void* d_output; /* (B,N,S,E) */
  void* d_query;        /* (B,N,S,D) */
  void* d_key;          /* (B,M,T,D) */
  void* d_value;        /* (B,M,T,E) */
  void* d_attn_bias;    /* as attn_bias; or null */
  float* d_sinks;       /* as sinks; or null */

  OrtflashStrides d_output_strides;
  OrtflashStrides d_query_strides;
  OrtflashStrides d_key_strides;
  OrtflashStrides d_value_strides;
  OrtflashStrides d_bias_strides; /* 0 exactly where bias_strides has 0 */
} OrtflashGradParams;

typedef void (*OrtflashBody)(void* argument, int64_t index);

typedef struct OrtflashExecution {
  uint64_t struct_bytes; /* sizeof(OrtflashExecution) */
  int32_t device;        /* 0 CPU, 1 CUDA (the current device) */
  int32_t reserved;
  void* workspace; /* ortflash_workspace_size() bytes on the device, aligned to 256 */
  void* stream;    /* CUDA only: cudaStream_t */
  /* CPU only: run(pool, count, body, argument) calls body(argument, i) once for each i in [0, count), from any thread,
   * and returns when all have. Null = one thread. */
  void* pool;
  void (*run)(void* pool, int64_t count, OrtflashBody body, void* argument);
  int64_t threads; /* how many calls can make progress at once */
} OrtflashExecution;

/* Whether the call's sizes, types and features are taken on this device; tensor pointers are not read. */
ORTFLASH_EXPORT int32_t ortflash_supports(const OrtflashParams* params, int32_t device, const char* implementation,
                                          char* message, size_t capacity);

/* Bytes of workspace that ortflash_forward() wants. Ask only after ortflash_supports() returned 0. */
ORTFLASH_EXPORT size_t ortflash_workspace_size(const OrtflashParams* params, const OrtflashExecution* execution,
                                               const char* implementation);

/* Computes output and softmax_lse; on CUDA only enqueues. */
ORTFLASH_EXPORT int32_t ortflash_forward(const OrtflashParams* params, const OrtflashExecution* execution,
                                         const char* implementation, char* message, size_t capacity);

/* The name of the implementation (and tile) that would run, in `message`; or the reason why none would. */
ORTFLASH_EXPORT int32_t ortflash_describe(const OrtflashParams* params, const OrtflashExecution* execution,
                                          const char* implementation, char* message, size_t capacity);

/* The same four for the gradients. */
ORTFLASH_EXPORT int32_t ortflash_supports_backward(const OrtflashGradParams* params, int32_t device,
                                                   const char* implementation, char* message, size_t capacity);
ORTFLASH_EXPORT size_t ortflash_backward_workspace_size(const OrtflashGradParams* params,
                                                        const OrtflashExecution* execution, const char* implementation);
ORTFLASH_EXPORT int32_t ortflash_backward(const OrtflashGradParams* params, const OrtflashExecution* execution,
                                          const char* implementation, char* message, size_t capacity);
ORTFLASH_EXPORT int32_t ortflash_describe_backward(const OrtflashGradParams* params, const OrtflashExecution* execution,
                                                   const char* implementation, char* message, size_t capacity);

/* Names of the implementations for a device that this machine can run, in order of preference, separated by commas;
 * "" where there are none. Lists at most `capacity` bytes, zero-terminated. */
ORTFLASH_EXPORT void ortflash_implementations(int32_t device, char* names, size_t capacity);
ORTFLASH_EXPORT void ortflash_backward_implementations(int32_t device, char* names, size_t capacity);

/* What this library was built as: "key=value" pairs separated by "; ". */
ORTFLASH_EXPORT const char* ortflash_build_info(void);

#ifdef __cplusplus
}
#endif

#endif /* ORTFLASH_C_API_H_ */
