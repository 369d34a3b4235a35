"""Find attention in ONNX graphs and replace it by one fused node; needs no GPU and no built library."""
