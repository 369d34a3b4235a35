#include "emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "../../implementation_grad.h"
#include "../../status.h"
#include "../backward_plan.h"
#include "../plan.h"
#include "../tensor_map.h"

namespace ortflash::sm90 {

// Larger than a block may use; what lies behind its own part stays as it was.
alignas(1024) uint8_t raw[256 * 1024];

namespace emulator {

Index thread, block, grid;

namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr int kMaxThreads = 512;

struct Fiber {
  ucontext_t start;
  jmp_buf state;
  bool started, finished;
  std::unique_ptr<char[]> stack;
  std::vector<std::vector<Product>> groups;  // committed, oldest first
  std::vector<Product> open;
};

struct Warp {
  uint64_t in[32], out[32];
  int arrived;
  unsigned epoch;
};

struct NamedBarrier {
  int arrived;
  unsigned epoch;
};

Fiber fibers[kMaxThreads];
Warp warps[kMaxThreads / 32];
NamedBarrier barriers[17];  // 16: __syncthreads
int threads;
jmp_buf scheduler;
bool progressed;
const char* failure;  // what a thread did wrong, or null
void (*body)(void*);
void* body_argument;

Fiber& self() { return fibers[thread.x]; }

void enter() {
  body(body_argument);
  self().finished = true;
  progressed = true;
  _longjmp(scheduler, 1);
}

void resume(Fiber& fiber) {
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.state, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

// Runs one block to its end; null, or what went wrong.
const char* run_block(int count) {
  failure = nullptr;
  threads = count;
  for (int i = 0; i < count; ++i) {
    if (fibers[i].stack == nullptr) fibers[i].stack = std::make_unique<char[]>(kStackBytes);
    fibers[i].started = fibers[i].finished = false;
    fibers[i].groups.clear();
    fibers[i].open.clear();
  }
  std::memset(warps, 0, sizeof(warps));
  std::memset(barriers, 0, sizeof(barriers));
  for (int running = count, idle = 0; running > 0 && idle < 4; ++idle) {
    progressed = false;
    running = 0;
    for (int i = 0; i < count; ++i) {
      if (fibers[i].finished) continue;
      thread.x = static_cast<uint32_t>(i);
      resume(fibers[i]);
      running += !fibers[i].finished;
    }
    if (progressed) idle = -1;
    if (running == 0 || failure != nullptr) return failure;
  }
  return "its threads wait for each other for ever";
}

// The byte of an element in a tile that is 128-byte swizzled.
uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

float element(bool bfloat16, uint32_t address) {
  uint16_t bits;
  std::memcpy(&bits, raw + swizzled(address), 2);
  return bfloat16 ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits));
}

uint32_t start_of(uint64_t descriptor) { return (descriptor & 0x3FFF) << 4; }
uint32_t leading_of(uint64_t descriptor) { return (descriptor >> 16 & 0x3FFF) << 4; }
uint32_t stride_of(uint64_t descriptor) { return (descriptor >> 32 & 0x3FFF) << 4; }

// D (16 x N, the rows of one warp) += A (16 x 16) B (16 x N), for the 32 lanes' parts of it.
void multiply(const Product* const (&lanes)[32], int warp_of_group) {
  const Product& p = *lanes[0];
  float a[16][16];
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      if (p.a[0] == nullptr) {
        const uint32_t r = static_cast<uint32_t>(warp_of_group * 16 + row);
        const auto inner = static_cast<uint32_t>(k);
        const uint32_t at = p.a_transposed ? inner / 8 * stride_of(p.a_descriptor) + inner % 8 * 128 + r * 2
                                           : r / 8 * stride_of(p.a_descriptor) + r % 8 * 128 + inner * 2;
        a[row][k] = element(p.bfloat16, start_of(p.a_descriptor) + at);
      } else {
        const uint32_t packed = *lanes[row % 8 * 4 + k % 8 / 2]->a[row / 8 + k / 8 * 2];
        const float2 two = p.bfloat16 ? unpack<__nv_bfloat16>(packed) : unpack<__half>(packed);
        a[row][k] = k % 2 == 0 ? two.x : two.y;
      }
    }
  }
  for (int column = 0; column < p.columns; ++column) {
    const uint32_t n = static_cast<uint32_t>(column);
    float b[16];
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t at = p.b_transposed ? n / 64 * leading_of(p.b_descriptor) + k / 8 * stride_of(p.b_descriptor) +
                                               k % 8 * 128 + n % 64 * 2
                                         : n / 8 * stride_of(p.b_descriptor) + n % 8 * 128 + k * 2;
      b[k] = element(p.bfloat16, start_of(p.b_descriptor) + at);
    }
    for (int row = 0; row < 16; ++row) {
      float& d = lanes[row % 8 * 4 + column % 8 / 2]->d[column / 8 * 4 + row / 8 * 2 + column % 2];
      float sum = p.accumulate ? d : 0.0f;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k];
      d = sum;
    }
  }
}

}  // namespace

void progress() { progressed = true; }

void fail(const char* reason) { failure = reason; }

void yield() {
  const uint32_t me = thread.x;
  if (_setjmp(fibers[me].state) == 0) _longjmp(scheduler, 1);
}

const uint64_t* exchange(uint64_t value) {
  Warp& warp = warps[thread.x / 32];
  const unsigned epoch = warp.epoch;
  warp.in[thread.x % 32] = value;
  if (++warp.arrived == 32) {
    std::memcpy(warp.out, warp.in, sizeof(warp.in));
    warp.arrived = 0;
    ++warp.epoch;
    progress();
  } else {
    wait_until([&] { return warp.epoch != epoch; });
  }
  return warp.out;
}

void named_barrier(int id, int count, bool wait) {
  NamedBarrier& barrier = barriers[id];
  const unsigned epoch = barrier.epoch;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    ++barrier.epoch;
    progress();
  } else if (wait) {
    wait_until([&] { return barrier.epoch != epoch; });
  }
}

void block_barrier() { named_barrier(16, threads, true); }

void issue(const Product& product) { self().open.push_back(product); }

void commit() {
  self().groups.push_back(std::move(self().open));
  self().open.clear();
}

void wait_for_products(int pending) {
  exchange(0);  // every lane has issued its part
  const uint32_t first = thread.x / 32 * 32;
  if (thread.x == first) {
    while (self().groups.size() > static_cast<size_t>(pending)) {
      for (size_t i = 0; i < self().groups.front().size(); ++i) {
        const Product* lanes[32];
        for (uint32_t lane = 0; lane < 32; ++lane) lanes[lane] = &fibers[first + lane].groups.front()[i];
        multiply(lanes, static_cast<int>(thread.x % 128 / 32));
      }
      for (uint32_t lane = 0; lane < 32; ++lane) fibers[first + lane].groups.erase(fibers[first + lane].groups.begin());
    }
  }
  exchange(0);
}

}  // namespace emulator

// ------------------------------------------------------------------------------------------------ tensor copies
static_assert(sizeof(MapRequest) <= sizeof(CUtensorMap), "the emulator's tensor map is the request itself");

Status encode_map(const MapRequest& request, CUtensorMap* map) {
  if (reinterpret_cast<uintptr_t>(request.base) % 16 != 0) {
    return make_status(StatusCode::kDeviceError, "a tensor map of memory that isn't aligned to 16 bytes");
  }
  std::memcpy(map, &request, sizeof(request));
  return {};
}

void copy_box(void* destination, const CUtensorMap& map, Barrier& full, int column, int row, int head, int batch,
              uint64_t) {
  MapRequest r;
  std::memcpy(static_cast<void*>(&r), &map, sizeof(r));
  const int row_bytes = r.box_columns * r.element_bytes;
  const uint32_t mask = r.swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 7 : 3;  // 64 bytes: two rows share a pattern
  const uint32_t to = smem_address(destination);
  if (to % 1024 != 0) emulator::fail("a tensor copy goes to shared memory that isn't aligned to a swizzle pattern");
  for (int i = 0; i < r.box_rows; ++i) {
    for (int j = 0; j < row_bytes; ++j) {
      const int64_t c = column + j / r.element_bytes, n = row + i;
      const bool inside = c < r.columns && n < r.rows && head < r.heads && batch < r.batch;
      const uint32_t at = to + static_cast<uint32_t>(i * row_bytes + j);
      const auto* from = static_cast<const uint8_t*>(r.base);
      raw[at ^ (at >> 7 & mask) << 4] =
          inside ? from[(batch * r.strides.batch + head * r.strides.head + n * r.strides.row + c) * r.element_bytes +
                        j % r.element_bytes]
                 : 0;
    }
  }
  full.landed(r.box_rows * row_bytes);
}

// ------------------------------------------------------------------------------------------------ implementation
namespace {

// Few, so that each walks over several tiles.
constexpr Gpu kGpu = {0, 9, 0, 3, 232448, 1 << 20, "an emulated Hopper"};

// Runs `kernel` for each block of a grid; `call` calls it.
template <class Call>
Status launch(const char* name, int64_t grid, int threads, int shared_bytes, Call&& call) {
  if (shared_bytes > kGpu.shared_bytes) {
    return make_status(StatusCode::kDeviceError, "%s wants %d bytes of shared memory", name, shared_bytes);
  }
  emulator::body = [](void* argument) { (*static_cast<Call*>(argument))(); };
  emulator::body_argument = &call;
  emulator::grid.x = static_cast<uint32_t>(grid);
  for (int64_t i = 0; i < grid; ++i) {
    emulator::block.x = static_cast<uint32_t>(i);
    std::memset(raw, 0xFF, sizeof(raw));  // NaN in every type
    if (const char* failure = emulator::run_block(threads)) {
      return make_status(StatusCode::kDeviceError, "%s, block %d: %s", name, static_cast<int>(i), failure);
    }
  }
  return {};
}

Status forward(const AttentionParams& params, const Execution&) {
  const Kernel* kernel = nullptr;
  Status status = choose_kernel(params, kGpu, &kernel);
  Plan plan;
  if (status.ok()) status = make_plan(params, *kernel, kGpu, &plan);
  if (!status.ok()) return status;
  const auto function = reinterpret_cast<void (*)(ForwardMaps, ForwardParams)>(const_cast<void*>(kernel->function));
  return launch(kernel->name, plan.grid, kernel->threads, kernel->shared_bytes,
                [&] { function(plan.maps, plan.params); });
}

template <bool MASKED>
Status backward(const AttentionGradParams& params, const Execution& execution) {
  const BackwardKernel* kernel = nullptr;
  Status status = choose_backward_kernel(params, MASKED, &kernel);
  BackwardPlan plan;
  if (status.ok()) status = make_backward_plan(params, *kernel, execution.workspace, &plan);
  using RowsFunction = void (*)(BackwardParams);
  const auto rows = [&](const void* function, int64_t grid, int threads) {
    return launch(kernel->name, grid, threads, 0,
                  [&] { reinterpret_cast<RowsFunction>(const_cast<void*>(function))(plan.params); });
  };
  if (status.ok()) status = rows(kernel->prepare, plan.prepare_grid, kernel->rows_threads);
  if (status.ok()) {
    const auto function = reinterpret_cast<void (*)(BackwardMaps, BackwardParams)>(const_cast<void*>(kernel->gradient));
    status = launch(kernel->name, plan.gradient_grid, kernel->threads, kernel->shared_bytes,
                    [&] { function(plan.maps, plan.params); });
  }
  if (status.ok()) status = rows(kernel->finish, plan.finish_grid, 128);
  return status;
}

void describe(const AttentionParams& params, const Execution&, char* name, size_t capacity) {
  const Kernel* kernel = nullptr;
  const Status status = choose_kernel(params, kGpu, &kernel);
  std::snprintf(name, capacity, "%s", status.ok() ? kernel->name : status.message);
}

}  // namespace

template <bool MASKED>
GradImplementation emulated_gradients(const char* name, uint32_t features) {
  const auto accepts = [](const AttentionGradParams& p) {
    const BackwardKernel* kernel = nullptr;
    return choose_backward_kernel(p, MASKED, &kernel);
  };
  const auto workspace_size = [](const AttentionGradParams& p, const Execution&) -> size_t {
    const BackwardKernel* kernel = nullptr;
    return choose_backward_kernel(p, MASKED, &kernel).ok() ? backward_workspace_bytes(p, *kernel) : 0;
  };
  return {name, features, 128, [] { return Status{}; }, accepts, workspace_size, backward<MASKED>, nullptr};
}

}  // namespace ortflash::sm90

namespace ortflash {

// The emulated library has this one implementation; in the CPU's list, because its tensors lie in ordinary memory.
ImplementationList cpu_implementations() {
  constexpr uint32_t kMissing = kFeatureFloat32 | kFeaturePrecise | kFeatureDropout;
  static const Implementation list[] = {{"sm90-emulated", kAllFeatures & ~kMissing, 512, [] { return Status{}; },
                                         [](const AttentionParams& p) {
                                           const sm90::Kernel* kernel = nullptr;
                                           return sm90::choose_kernel(p, sm90::kGpu, &kernel);
                                         },
                                         [](const AttentionParams&, const Execution&) -> size_t { return 0; },
                                         sm90::forward, sm90::describe}};
  return {list, 1};
}

GradImplementationList cpu_grad_implementations() {
  static const GradImplementation list[] = {
      sm90::emulated_gradients<false>("sm90-emulated", sm90::kBackwardFeatures),
      sm90::emulated_gradients<true>("sm90-masked-emulated", sm90::kMaskedBackwardFeatures)};
  return {list, 2};
}

}  // namespace ortflash
