// How a call is cut into items for threads to take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tile_kernel.h"

namespace ortflash::cpu {

// Items are pieces of `rows` queries of `heads` heads against all keys, or against one of `splits` ranges of them.
// Neither heads nor splits depends on the number of threads, and so no rounding does.
struct Plan {
  int64_t heads;   // query heads of an item, all of one key/value head's group
  int64_t rows;    // queries of each
  int64_t chunks;  // items that cover a group's heads
  int64_t pieces;  // items that cover a head's queries
  int64_t splits;  // ranges of keys; their partials are combined in the end
  bool few;        // no item has more than kFewQueries
  int64_t items;

  int64_t outputs() const { return items / splits; }  // items that are left when the partials are combined
};

Plan make_plan(const AttentionParams& params, const TileKernel& kernel, int64_t threads);

// The partials of one item, in floats; 0 where keys are not split.
int64_t partial_floats(const AttentionParams& params, const Plan& plan);

// Item `index` of plan.items; `partials` has partial_floats() an item.
Item make_item(const AttentionParams& params, const Plan& plan, int64_t index, float* partials);

}  // namespace ortflash::cpu
