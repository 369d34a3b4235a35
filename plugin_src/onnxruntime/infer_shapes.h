// Output shapes of a node while its model is loaded, from what is known of its inputs' shapes.
#pragma once

#include "onnxruntime/api.h"

namespace ortflash::ort {

// Sets what can be known, symbols included, and leaves the rest open. Never fails: ONNX Runtime before 1.23 drops a
// status from here, and the kernel checks the real shapes with a better message.
void infer_output_shapes(const OrtApi& api, OrtShapeInferContext& context);

// The same for the gradient: each output has the shape of its input.
void infer_gradient_shapes(const OrtApi& api, OrtShapeInferContext& context);

}  // namespace ortflash::ort
