"""Client of Hypercube serving, its key hashing, and helpers that export trained models for it."""

from .client import Client, Prediction
from .errors import HypercubeError
from .export import write_features, write_npy_tables, write_safetensors
from .hashing import Features, hash_key, xxh64

__all__ = [
    "Client",
    "Features",
    "HypercubeError",
    "Prediction",
    "hash_key",
    "write_features",
    "write_npy_tables",
    "write_safetensors",
    "xxh64",
]
