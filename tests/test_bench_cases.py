"""What `clearhead bench` measures: the useful work is counted, not estimated, and everybody is asked the same question."""

from __future__ import annotations

import pytest
import torch

from clearhead.bench import candidates, engines
from clearhead.bench.candidates import Unavailable
from clearhead.bench.cases import CASES, Case, Inputs, document_sizes, selected
from clearhead.bench.run import candidates_for

SMALL = [
    Case("decode", torch.float32, 21, 4, 8, Hk=2, sees="all"),
    Case("forward", torch.float32, 21, 2, 8),
    Case("window", torch.float32, 21, 2, 8, sees="window", part=5),
    Case("window", torch.float32, 21, 2, 8, sees="window", part=30),
    Case("documents", torch.float32, 21, 2, 8, sees="documents", part=4),
    Case("documents", torch.float32, 21, 2, 8, sees="causal documents", part=4),
]


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", SMALL, ids=by_name)
def test_pairs_are_as_many_as_the_mask_lets_see(case):
    assert case.pairs == int(case.mask.dense(case.Tq, case.T).sum())


def test_useful_work_is_that_of_the_formulas():
    case = Case("forward", torch.float32, 100, 12, 64)
    assert case.useful_flops == 2 * 100 * 101 * 64 * 12
    assert Case("backward", torch.float32, 100, 12, 64).useful_flops == 3.5 * case.useful_flops
    decode = Case("decode", torch.float16, 8192, 32, 128, Hk=8, sees="all")
    assert decode.useful_bytes == 2 * 8 * 8192 * 128 * 2
    assert decode.useful_flops == 4 * 8192 * 128 * 32
    assert (decode.limit, case.limit) == ("read", "fma")


def test_documents_are_as_equal_as_they_can_be():
    assert document_sizes(8192, 8) == [1024] * 8
    assert sorted(document_sizes(21, 4)) == [5, 5, 5, 6]


@pytest.mark.parametrize("case", SMALL, ids=by_name)
def test_every_candidate_is_asked_the_same_question(case):
    inputs = Inputs(case)
    want = candidates.sdpa(case, inputs)()
    assert want.shape == (1, case.Hq, case.Tq, case.D)
    ours = (candidates.clearhead(), candidates.observing(), candidates.observing("tiled", light=True))
    for build in (*(candidate.build for candidate in ours), candidates.math):
        torch.testing.assert_close(build(case, inputs)(), want)
    if case.sees != "all":
        i, j = torch.arange(case.Tq)[:, None], torch.arange(case.T)
        zero = torch.zeros((), dtype=torch.int64)
        assert torch.equal(candidates._rule(case)(zero, zero, i, j), case.mask.dense(case.Tq, case.T)[0, 0])


@pytest.mark.parametrize("case", SMALL, ids=by_name)
def test_the_onnx_model_asks_it_too(case):
    """Run by onnx's own evaluator; that ONNX Runtime is quick is its affair."""
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    inputs = Inputs(case)
    model = onnx.load_from_string(engines._onnx_model(case, inputs))
    onnx.checker.check_model(model)
    feeds = {name: x.numpy() for name, x in engines._tensors(inputs).items()}
    got = torch.from_numpy(ReferenceEvaluator(model).run(None, feeds)[0])
    torch.testing.assert_close(got, candidates.sdpa(case, inputs)())


@pytest.mark.parametrize("case", SMALL, ids=by_name)
@pytest.mark.parametrize("engine", [engines.ONNXRUNTIME, engines.OPENVINO], ids=lambda engine: engine.name)
def test_an_installed_engine_gives_the_same_result(engine, case):
    pytest.importorskip(engine.name)
    inputs = Inputs(case)
    torch.testing.assert_close(engine.build(case, inputs)(), candidates.sdpa(case, inputs)())


@pytest.mark.parametrize("engine", [engines.ONNXRUNTIME, engines.OPENVINO], ids=lambda engine: engine.name)
def test_an_engine_that_is_not_installed_says_so(engine, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=f"{engine.name} is not installed"):
        engine.build(SMALL[1], Inputs(SMALL[1]))


def test_who_has_no_gradients_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    case = Case("backward", torch.float32, 8, 1, 4)
    for build in (candidates.flex, engines.onnxruntime, engines.openvino):
        with pytest.raises(Unavailable, match="has no gradients"):
            build(case, Inputs(case))


def test_the_math_path_is_left_out_where_its_weights_would_not_fit(monkeypatch):
    case = Case("forward", torch.float16, 21, 2, 8)
    monkeypatch.setattr(candidates, "WHOLE", 4 * 2 * 21 * 21)
    candidates.math(case, Inputs(case))
    monkeypatch.setattr(candidates, "WHOLE", 4 * 2 * 21 * 21 - 1)
    with pytest.raises(Unavailable, match="weights would take"):
        candidates.math(case, Inputs(case))


def test_openvino_is_left_out_where_its_mask_would_not_fit(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(candidates, "WHOLE", 4 * 21 * 21 - 1)
    with pytest.raises(Unavailable, match="its causal mask would take"):
        engines.openvino(SMALL[1], Inputs(SMALL[1]))


def test_inputs_are_the_same_every_time_and_in_float64():
    case = Case("backward", torch.bfloat16, 9, 2, 4)
    first, second, exact = Inputs(case), Inputs(case), Inputs(case, torch.float64)
    for name in ("query", "key", "value", "gradient"):
        one, two, three = (getattr(x, name) for x in (first, second, exact))
        assert one.dtype == torch.bfloat16
        assert torch.equal(one, two)
        assert torch.equal(one.double(), three)
    assert first.query.requires_grad
    assert not Inputs(Case("forward", torch.float32, 9, 2, 4)).query.requires_grad


def test_the_promised_cases_are_there():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for dtype in ("float32", "bfloat16", "float16"):
        for D in (64, 128):
            lengths = [c.T for c in CASES if c.name.startswith(f"forward {dtype} D={D} ")]
            assert lengths == [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    decodes = [(str(c.dtype), c.Hq, c.key_heads, c.T, c.D) for c in CASES if c.kind == "decode"]
    assert decodes == [
        ("torch.float32", 32, 32, 8192, 128),
        ("torch.float32", 32, 8, 8192, 128),
        ("torch.bfloat16", 32, 8, 8192, 128),
        ("torch.float16", 32, 8, 8192, 128),
    ]
    assert {c.name for c in CASES} >= {
        "window 256 float32 D=64 T=8192 H=4",
        "8 documents float32 D=64 T=8192 H=4",
        "overhead float32 D=64 T=8 H=4",
        "forward+backward float32 D=64 T=4096 H=8",
        "observe float32 D=64 T=8192 H=4",
    }


def test_cases_are_selected_by_a_part_of_their_name():
    assert selected() == CASES
    assert [c.kind for c in selected("DECODE")] == ["decode"] * 4
    quick = selected(quick=True)
    assert 0 < len(quick) < len(CASES) / 4
    assert {c.kind for c in quick} >= {"forward", "backward", "decode", "window", "overhead", "observe"}
    assert selected("banana") == []


def test_observing_is_compared_with_not_observing():
    found = candidates_for(Case("observe", torch.float32, 8, 1, 4), ["tiled"])
    names = [c.name for c in found]
    assert names == [
        "SDPA",
        "clearhead",
        "clearhead tiled",
        "observe",
        "observe light",
        "observe tiled",
        "observe light tiled",
    ]
    assert [c.unobserved for c in found[3:]] == ["clearhead", "clearhead", "clearhead tiled", "clearhead tiled"]
    names = [c.name for c in candidates_for(Case("forward", torch.float32, 8, 1, 4))]
    assert names == ["SDPA", "clearhead", "math", "flex", "onnxruntime", "openvino"]
