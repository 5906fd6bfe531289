"""Keys of features, equal to those that the server computes."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence, Type, TypeVar

_T = TypeVar("_T")
_MASK = 0xFFFFFFFFFFFFFFFF
_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(accumulator: int, lane: int) -> int:
    return _rotate((accumulator + lane * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes, seed: int = 0) -> int:
    """xxh64 of `data`, an unsigned 64-bit integer."""
    length = len(data)
    at = 0
    if length >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at + 32 <= length:
            for i in range(4):
                lane = int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little")
                lanes[i] = _round(lanes[i], lane)
            at += 32
        result = sum(_rotate(lanes[i], bits) for i, bits in enumerate((1, 7, 12, 18))) & _MASK
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        result = (seed + _P5) & _MASK
    result = (result + length) & _MASK
    while at + 8 <= length:
        result ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        result = (_rotate(result, 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= length:
        result ^= int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK
        result = (_rotate(result, 23) * _P2 + _P3) & _MASK
        at += 4
    while at < length:
        result ^= data[at] * _P5 & _MASK
        result = _rotate(result, 11) * _P1 & _MASK
        at += 1
    result = (result ^ (result >> 33)) * _P2 & _MASK
    result = (result ^ (result >> 29)) * _P3 & _MASK
    return result ^ (result >> 32)


def hash_key(slot: int, feature: str, scheme: str = "xxh64-concat", seed: int = 0, modulo: int = 0) -> int:
    """The key of a feature in the slot with index `slot`: an unsigned 64-bit integer."""
    if scheme == "raw":
        key = int(feature)
        if not 0 <= key <= _MASK:
            raise ValueError(f"feature {feature!r}: with scheme raw it must be an integer from 0 to 2^64 - 1")
    elif scheme == "xxh64-concat":
        key = xxh64(f"{slot}{feature}".encode("utf-8"), seed)
    elif scheme == "xxh64-tagged":
        key = xxh64(f"{slot}\0{feature}".encode("utf-8"), seed)
    else:
        raise ValueError(f"unknown hash scheme {scheme!r}: use xxh64-concat, xxh64-tagged or raw")
    return key % modulo if modulo else key


def read_field(answer: Any, name: str, kind: Type[_T]) -> _T:
    """A field of an answer in JSON; ValueError without it or with a value of another type."""
    value = answer.get(name) if isinstance(answer, dict) else None
    if type(value) is not kind:  # not isinstance: True would be an int
        raise ValueError(f"the answer has no {name!r}, or its type is not {kind.__name__}")
    return value


class Features:
    """Slots, dense features and hashing of a model, as the server's `features` call describes them."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        """Raises ValueError where the description lacks what calls need."""
        self.description = description
        dense = description.get("dense") or {"features": []}
        slots = read_field(description, "slots", list)
        #: Names of the dense features, in the order of a row.
        self.dense: List[str] = [read_field(each, "name", str) for each in read_field(dense, "features", list)]
        #: Names of the slots (categorical features), in the order of a row.
        self.slots: List[str] = [read_field(slot, "name", str) for slot in slots]
        for slot in slots:
            read_field(slot, "index", int)
        read_field(read_field(description, "hash", dict), "scheme", str)
        click = read_field(description, "click", dict)
        read_field(click, "output", str)
        if "column" in click:
            read_field(click, "column", int)

    def hash_row(self, features: Sequence[str | None]) -> List[int]:
        """The keys of one row: one value (None or "": missing) per slot, in the order of `slots`.

        Slots that pool several values have no single key, and are refused.
        """
        slots = self.description["slots"]
        if len(features) != len(slots):
            raise ValueError(f"expected {len(slots)} features, one per slot, got {len(features)}")
        hashing = self.description["hash"]
        keys = []
        for slot, feature in zip(slots, features):
            if "pooling" in slot:
                raise ValueError(f"slot {slot['name']} pools several values: it has no single key")
            modulo = int(slot.get("modulo", hashing.get("modulo", "0")))
            text = feature if feature else slot.get("missing", "")
            keys.append(hash_key(slot["index"], text, hashing["scheme"], int(hashing.get("seed", "0")), modulo))
        return keys
