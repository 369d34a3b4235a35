// In the place of libnvinfer_plugin.so.8, which the parser of TensorRT 8.6 is linked against for this one function (the
// registration of TensorRT's own plugins), and which would bring cuBLAS and cuDNN along.
extern "C" __attribute__((visibility("default"))) bool initLibNvInferPlugins(void*, const char*) { return true; }
