// Sentences for TensorRT's log.
#pragma once

#include "core/attention.h"

namespace ortflash::trt {

// `finder` is what TensorRT passes to setLoggerFinder(); null forgets the last one.
void set_logger_finder(void* finder);

// Writes "FlashAttention node 'NAME': REASON." as an error into TensorRT's log, or to stderr where TensorRT has not
// told where its log is. A null or empty name is left out.
void log_error(const char* node_name, const Status& status);

}  // namespace ortflash::trt
