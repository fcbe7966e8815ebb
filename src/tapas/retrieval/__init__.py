"""Recommendations from a trained model, and exports for serving: encoder, rows, FAISS index."""

from tapas.retrieval.embeddings import Embeddings, export_embeddings, load_embeddings
from tapas.retrieval.encoder_export import ExportedEncoder, export_encoder, load_encoder
from tapas.retrieval.faiss_index import FaissIndex, build_index, load_index
from tapas.retrieval.lists import Lists
from tapas.retrieval.recommender import Recommender

__all__ = [
    "Embeddings",
    "ExportedEncoder",
    "FaissIndex",
    "Lists",
    "Recommender",
    "build_index",
    "export_embeddings",
    "export_encoder",
    "load_embeddings",
    "load_encoder",
    "load_index",
]
