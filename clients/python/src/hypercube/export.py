"""Files for prune-model and cube-builder, from arrays of a trained model."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict, List, Mapping, Optional, Sequence

_NPY_TYPES = {"e": "<f2", "f": "<f4", "d": "<f8"}
_SAFETENSORS_TYPES = {"e": "F16", "f": "F32", "d": "F64", "q": "I64", "l": "I64", "Q": "U64", "L": "U64"}


def write_features(
    path: str,
    slots: Sequence[Mapping[str, Any]],
    *,
    dense: Optional[Mapping[str, Any]] = None,
    click: Optional[Mapping[str, Any]] = None,
    ids: Optional[Sequence[Mapping[str, Any]]] = None,
    scheme: str = "xxh64-concat",
    seed: int = 0,
    modulo: int = 0,
    separator: Optional[str] = None,
) -> None:
    """Writes features.json.

    slots: `{"name", "index", …}` in the order of a row; dense: `{"input", "features": [{"name", "missing", …}]}`;
    click: `{"output", "column"}`; ids: `[{"input", "slots"}]`. `prune-model` checks names and values.
    """
    content: Dict[str, Any] = {
        "format": 1,
        "hash": {"scheme": scheme, "seed": str(seed), "modulo": str(modulo)},
        "slots": [dict(slot) for slot in slots],
    }
    optional = {"separator": separator, "dense": dense, "click": click, "ids": ids}
    content.update({name: value for name, value in optional.items() if value is not None})
    _write(path, [(json.dumps(content, indent=1) + "\n").encode("utf-8")])


def write_npy_tables(folder: str, tables: Mapping[str, Any], keys: Optional[Mapping[str, Any]] = None) -> None:
    """Writes each table [rows, dim] (NumPy array or PyTorch tensor of floats) as `<folder>/<name>.npy`.

    keys: the 64-bit keys [rows] of tables whose rows are not addressed by their number (`<name>.keys.npy`)
    """
    os.makedirs(folder, exist_ok=True)
    for name, table in tables.items():
        view = _view(name, table, 2)
        if view.format not in _NPY_TYPES:
            raise ValueError(f"table {name}: expected 16, 32 or 64-bit floats, got format {view.format!r}")
        _write(os.path.join(folder, f"{_file_name(name)}.npy"), [_npy_head(_NPY_TYPES[view.format], view), view])
        if keys is not None and name in keys:
            key_view = _key_view(name, keys[name], view)
            code = "<u8" if key_view.format in ("Q", "L") else "<i8"
            _write(os.path.join(folder, f"{_file_name(name)}.keys.npy"), [_npy_head(code, key_view), key_view])


def write_safetensors(path: str, tables: Mapping[str, Any], keys: Optional[Mapping[str, Any]] = None) -> None:
    """Writes all tables, and keys as `<name>.keys`, into one safetensors file."""
    views: Dict[str, memoryview] = {}
    for name, table in tables.items():
        views[name] = _view(name, table, 2)
        if keys is not None and name in keys:
            views[f"{name}.keys"] = _key_view(name, keys[name], views[name])
    header: Dict[str, Any] = {}
    offset = 0
    for name, view in views.items():
        if view.format not in _SAFETENSORS_TYPES:
            raise ValueError(f"table {name}: cannot write format {view.format!r}; expected floats, or 64-bit keys")
        end = offset + view.nbytes
        header[name] = {
            "dtype": _SAFETENSORS_TYPES[view.format],
            "shape": list(view.shape or ()),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)
    _write(path, [struct.pack("<Q", len(text)), text, *views.values()])


def _view(name: str, array: Any, dimensions: int) -> memoryview:
    if hasattr(array, "detach"):  # a PyTorch tensor
        array = array.detach().cpu().numpy()
    view = memoryview(array)
    if view.ndim != dimensions:
        raise ValueError(f"table {name}: expected {dimensions} dimension(s), got {view.ndim}")
    if not view.c_contiguous:
        raise ValueError(f"table {name}: the array is not contiguous; pass numpy.ascontiguousarray(…)")
    return view


def _key_view(name: str, keys: Any, table: memoryview) -> memoryview:
    view = _view(f"{name} (keys)", keys, 1)
    if view.format not in ("q", "l", "Q", "L") or view.itemsize != 8:
        raise ValueError(f"table {name}: keys must be 64-bit integers")
    if view.shape[0] != table.shape[0]:
        raise ValueError(f"table {name}: {table.shape[0]} rows, but {view.shape[0]} keys")
    return view


def _npy_head(code: str, view: memoryview) -> bytes:
    shape = ", ".join(str(n) for n in view.shape) + ("," if view.ndim == 1 else "")
    text = f"{{'descr': '{code}', 'fortran_order': False, 'shape': ({shape}), }}"
    padding = -(len(text) + 11) % 64
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + padding + 1) + f"{text}{' ' * padding}\n".encode()


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"table {name!r}: the name cannot be a file name")
    return name


def _write(path: str, parts: List[Any]) -> None:
    """Writes a file whole or not at all."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
