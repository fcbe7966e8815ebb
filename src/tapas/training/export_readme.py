"""README.txt of an exported folder: what is in it, and a program that uses it without tapas."""

from typing import Any

from tapas.version import __version__

FILES = """\
Exported by tapas-softmax {version} from checkpoint step {step:,}. Other programs need torch and
numpy to use it{faiss}; tapas-softmax itself is needed for `tapas recommend` only, and runs no
program from this folder.

Items have numbers, 0 to {last}, in the same order in all files.

encoder.pt2             histories to queries, a program for torch.export: load it only if you
                        trust whoever wrote it
                          items    (B, {history}) int64: the last {history} items of each history,
                                   the oldest first, padded at the end with 0
                          lengths  (B,) int64: how many of these are real, 1 to {history}
                          result   (B, {dim}) float32
encoder.safetensors     the weights of the same encoder, for `tapas recommend`
embeddings.safetensors  weight ({items}, {dim}) and bias ({items},); the score of an item is
                        query . weight + bias. keys: the keys of all items, JSON as bytes
items.parquet           columns key and count; row i is item i
{counting}{index}export.json             sizes and format, for programs
{rare}
Histories contain known items only: leave others out. For the best items of a history:

"""

COUNTING = """\
counting.safetensors    counts of items, which `tapas recommend` mixes into its lists; those of
                        other programs, such as the one below, go by the scores alone
"""

INDEX = """\
index.faiss             {words};
                        search(queries, k) gives scores and numbers of items
index.keys.json         a list: the key of item i is entry i
"""

RARE = """
All rare items together have one number. Its key is "(rare)" in embeddings.safetensors, and null
in items.parquet{index}. It is not an item to recommend.
"""

START = """\
import json

import numpy as np
import torch

"""

WITH_INDEX = """\
import faiss

keys = json.load(open("index.keys.json", encoding="utf-8"))
index = faiss.read_index("index.faiss")
"""

WITHOUT_INDEX = """\
from safetensors.numpy import load_file

rows = load_file("embeddings.safetensors")
keys = json.loads(rows["keys"].tobytes())
"""

ENCODE = """\
number = {{key: i for i, key in enumerate(keys)}}
encoder = torch.export.load("encoder.pt2").module()

def recommend(history, k=20):
    known = [number[key] for key in history if key in number][-{history}:]
    items = np.zeros((1, {history}), dtype=np.int64)
    items[0, : len(known)] = known
    with torch.no_grad():
        query = encoder(torch.from_numpy(items), torch.tensor([len(known)])).numpy()
"""

SEARCH_INDEX = """\
    scores, found = index.search(query, k)
    return [keys[i] for i in found[0] if i >= 0]
"""

SEARCH_ALL = """\
    scores = query[0] @ rows["weight"].T + rows["bias"]
    best = [keys[i] for i in np.argsort(-scores)[: k + 1]]
    return [key for key in best if key != "(rare)"][:k]
"""


def export_readme(
    step: int, numbers: dict[str, Any], *, index: str | None, has_rare: bool, has_counts: bool
) -> str:
    """The text for an export with these `numbers`; `index` describes its FAISS index, if any."""
    rare = RARE.format(index="" if index is None else " and index.keys.json")
    files = FILES.format(
        version=__version__,
        step=step,
        last=numbers["items"] - 1,
        faiss=" (and safetensors)" if index is None else ", FAISS for the index",
        rare=rare if has_rare else "",
        counting=COUNTING if has_counts else "",
        index="" if index is None else INDEX.format(words=index),
        **{name: numbers[name] for name in ("items", "dim", "history")},
    )
    program = (
        START
        + (WITHOUT_INDEX if index is None else WITH_INDEX)
        + "\n"
        + ENCODE.format(history=numbers["history"])
        + (SEARCH_ALL if index is None else SEARCH_INDEX)
    )
    return files + "".join(f"    {line}".rstrip() + "\n" for line in program.splitlines())
