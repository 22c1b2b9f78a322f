"""Measurements as one JSON document; schema in docs/reference/json.md."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import asdict

from clearhead.bench.cases import Case
from clearhead.bench.machine import Machine
from clearhead.bench.measure import Spread
from clearhead.bench.run import Result, Row, limit_percent
from clearhead.errors import dtype_name

SCHEMA = 1
PACKAGES = ("torch", "numpy", "numba", "onnxruntime", "openvino")


def as_document(machine: Machine, results: Sequence[Result], *, complete: bool) -> dict[str, object]:
    """Everything that was measured, with what it was measured on. `complete`: not interrupted."""
    from clearhead import __version__

    packages = {name: _version(name) for name in PACKAGES}
    return {
        "schema": SCHEMA,
        "complete": complete,
        "versions": {"clearhead": __version__, "python": platform.python_version()} | packages,
        "machine": {"system": platform.system(), "architecture": platform.machine()}
        | {name: _digits(x) if isinstance(x, float) else x for name, x in asdict(machine).items()},
        "cases": [_case(result, machine) for result in results],
    }


def _case(result: Result, machine: Machine) -> dict[str, object]:
    case: Case = result.case
    return {
        "name": case.name,
        "kind": case.kind,
        "dtype": dtype_name(case.dtype),
        "sees": case.sees,
        "part": case.part,
        "B": case.B,
        "Hq": case.Hq,
        "Hk": case.key_heads,
        "Tq": case.Tq,
        "Tk": case.T,
        "D": case.D,
        "pairs": case.pairs,
        "useful_flops": case.useful_flops,
        "useful_bytes": case.useful_bytes,
        "limit": case.limit,
        "rounds": result.rounds,
        "rows": [_row(row, machine) for row in result.rows],
    }


def _row(row: Row, machine: Machine) -> dict[str, object]:
    return {
        "candidate": row.candidate,
        "impl": row.impl,
        "status": row.status,
        "reason": row.reason,
        "calls": row.calls,
        "ms": _spread(row.ms),
        "gflops": _digits(row.gflops),
        "gbs": _digits(row.gbs),
        "limit_percent": _digits(limit_percent(row, machine)),
        "ratio": _spread(row.ratio),
        "cost": _spread(row.cost),
    }


def _spread(x: Spread | None) -> dict[str, float | None] | None:
    return None if x is None else {name: _digits(value) for name, value in x._asdict().items()}


def _digits(x: float | None) -> float | None:
    """Six digits: more than any clock gives."""
    return None if x is None else float(f"{x:.6g}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
