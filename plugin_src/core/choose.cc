#include "choose.h"

#include <cstdio>

namespace ortflash {
namespace {

const char* feature_name(uint32_t feature) {
  switch (feature) {
    case kFeatureFloat32:
      return "float32";
    case kFeatureFloat16:
      return "float16";
    case kFeatureBFloat16:
      return "bfloat16";
    case kFeatureCausal:
      return "causal";
    case kFeatureWindow:
      return "window";
    case kFeatureSoftcap:
      return "softcap";
    case kFeatureBias:
      return "attn_bias";
    case kFeatureFloatBias:
      return "float32 attn_bias with a half query";
    case kFeatureMask:
      return "attn_mask";
    case kFeatureFiniteFill:
      return "finite mask_fill";
    case kFeatureKeyLengths:
      return "key_lengths";
    case kFeatureBlockMask:
      return "block_mask";
    case kFeatureSinks:
      return "sinks";
    case kFeatureGroupedHeads:
      return "grouped heads";
    case kFeatureSplitHeadSize:
      return "value head size other than head size";
    case kFeatureLse:
      return "softmax_lse";
    case kFeaturePrecise:
      return "precise float32";
    case kFeatureDropout:
      return "dropout";
    case kFeatureBiasGradient:
      return "gradient of attn_bias";
    case kFeatureSinksGradient:
      return "gradient of sinks";
    case kFeatureDeterministic:
      return "deterministic";
    default:
      return "unknown";
  }
}

}  // namespace

FeatureList::FeatureList(uint32_t features) {
  size_t used = 0;
  for (uint32_t bit = 1; bit != 0; bit <<= 1) {
    if ((features & bit) == 0) continue;
    const int written =
        std::snprintf(text + used, sizeof(text) - used, "%s%s", used == 0 ? "" : ", ", feature_name(bit));
    if (written < 0 || used + static_cast<size_t>(written) >= sizeof(text)) break;
    used += static_cast<size_t>(written);
  }
  if (used == 0) std::snprintf(text, sizeof(text), "nothing");
}

MachineName::MachineName(Device device) {
  if (device == Device::kCpu) return;
#ifdef ORTFLASH_WITH_CUDA
  cuda_device_name(text, sizeof(text));
#else
  std::snprintf(text, sizeof(text), "CUDA");
#endif
}

}  // namespace ortflash
