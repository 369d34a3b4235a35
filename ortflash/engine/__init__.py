"""TensorRT: our plugin in its registry (:mod:`.runtime`), and engines with the fused attention in them (:mod:`.build`).

::

    trt = ortflash.load_trt_plugin()  # then parse models and load engines as ever
    ortflash.build_engine("model.onnx", "model.plan", shapes={"input_ids": Range((1, 1), (4, 128), (8, 512))})

Nothing here is imported before it is used: neither ``import ortflash`` nor the command line needs TensorRT.
"""
