"""Two engines outside PyTorch, where they are installed: ONNX Runtime and OpenVINO, each running one attention operator."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from clearhead.bench.candidates import Candidate, Forward, Unavailable, need_room
from clearhead.bench.cases import Case, Inputs

REST = 0.005  # seconds: PyTorch's idle threads spin for some milliseconds on the cores that these engines want


def onnxruntime(case: Case, inputs: Inputs) -> Forward:
    """A model of one `Attention` operator of ONNX (opset 23)."""
    _need("onnxruntime", "onnx")
    _need_forward(case)
    if case.dtype == torch.bfloat16:
        raise Unavailable("its Attention operator takes no bfloat16 on a CPU")
    import onnxruntime as ort  # type: ignore[import-not-found,unused-ignore]

    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # or it would slow down the others
    options.log_severity_level = 4
    session = ort.InferenceSession(_onnx_model(case, inputs), options, providers=["CPUExecutionProvider"])
    feeds = {name: x.numpy() for name, x in _tensors(inputs).items()}
    return lambda: torch.from_numpy(session.run(None, feeds)[0])


def _onnx_model(case: Case, inputs: Inputs) -> bytes:
    from onnx import TensorProto, helper

    number = {torch.float32: TensorProto.FLOAT, torch.float16: TensorProto.FLOAT16}[case.dtype]
    given = [
        helper.make_tensor_value_info(name, TensorProto.BOOL if x.dtype == torch.bool else number, list(x.shape))
        for name, x in _tensors(inputs).items()
    ]
    node = helper.make_node("Attention", [x.name for x in given], ["output"], is_causal=int(case.sees == "causal"))
    output = helper.make_tensor_value_info("output", number, list(inputs.query.shape))
    graph = helper.make_graph([node], "attention", given, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return bytes(model.SerializeToString())


def openvino(case: Case, inputs: Inputs) -> Forward:
    """A model of one `ScaledDotProductAttention` operator, computing in the dtype of its inputs where the CPU can."""
    _need("openvino")
    _need_forward(case)
    if case.sees == "causal":
        need_room(case, 1, "causal mask")  # made with the model, from several matrices of this size
    import openvino as ov  # type: ignore[import-not-found,unused-ignore]
    from openvino import opset13  # type: ignore[import-not-found,unused-ignore]

    kinds = {
        torch.float32: ov.Type.f32,
        torch.float16: ov.Type.f16,
        torch.bfloat16: ov.Type.bf16,
        torch.bool: ov.Type.boolean,
    }
    tensors = _tensors(inputs)
    if (
        inputs.grouped
    ):  # its operator knows no groups; heads that read the same keys, all of them, are as good as more queries
        if case.sees != "all":
            raise Unavailable("its operator has no grouped heads under a mask")
        tensors["query"] = tensors["query"].reshape(case.B, case.key_heads, -1, case.D)
    out = torch.empty_like(tensors["query"])

    def view(x: Tensor) -> Any:
        raw = x.view(torch.int16) if x.dtype in (torch.bfloat16, torch.float16) else x
        return ov.Tensor(raw.numpy(), list(x.shape), kinds[x.dtype])

    given = [opset13.parameter(list(x.shape), kinds[x.dtype], name=name) for name, x in tensors.items()]
    node = opset13.scaled_dot_product_attention(*given, causal=case.sees == "causal")
    core = ov.Core()
    word = {torch.float16: "FP16", torch.bfloat16: "BF16"}.get(case.dtype)
    able = word in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        # Left to itself, or asked for a dtype that the CPU lacks, it would compute in the coarser bfloat16.
        "INFERENCE_PRECISION_HINT": kinds[case.dtype] if able else ov.Type.f32,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = core.compile_model(ov.Model([node], given, "attention"), "CPU", settings).create_infer_request()
    for n, x in enumerate(tensors.values()):
        request.set_input_tensor(n, view(x))
    request.set_output_tensor(view(out))

    def call() -> Tensor:
        request.infer()
        return out.view_as(inputs.query)

    return call


def _tensors(inputs: Inputs) -> dict[str, Tensor]:
    """What an operator is fed, in the operators' order."""
    fed = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
    return fed if inputs.visible is None else fed | {"mask": inputs.visible}


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"{package} is not installed")


def _need_forward(case: Case) -> None:
    if case.kind == "backward":
        raise Unavailable("has no gradients")


ONNXRUNTIME = Candidate("onnxruntime", onnxruntime, rest=REST)
OPENVINO = Candidate("openvino", openvino, rest=REST)
