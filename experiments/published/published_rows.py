"""What others have published for these sets, and where it was read.

All rank every item. Rows of the Amazon sets leave the last event of each user for test and mask the
history. Metrics that a source does not give are left out.
"""

from dataclasses import dataclass

TIGER = "TIGER's table, from copies by others that agree"
ICSREC = "ICSRec's table, from a copy by others"
ESASREC = "README of blondered/transformer_benchmark (eSASRec)"
ICLREC = "README of salesforce/ICLRec"
BSAREC = "output log in yehjin-shin/BSARec"
RECBOLE = "RUCAIBox/DuoRec#3 and RUCAIBox/RecBole#1290"
ANTKLEN = "README of antklen/sasrec-bert4rec-recsys23"
GCE_GNN = "GCE-GNN's paper (Wang et al. 2020), quoted from memory and not checked"
USERS = ("recall@5", "ndcg@5", "recall@10", "ndcg@10")
SESSIONS = ("recall@20", "mrr@20")


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A model's metrics on one set."""

    model: str
    source: str
    metrics: dict[str, float]


def _row(model: str, source: str, names: tuple[str, ...], *values: float) -> PublishedRow:
    return PublishedRow(model, source, dict(zip(names, values, strict=True)))


_AT_10 = USERS[2:]
ROWS: dict[str, list[PublishedRow]] = {
    "beauty": [
        _row("SASRec, one negative", TIGER, USERS, 0.0387, 0.0249, 0.0605, 0.0318),
        _row("TIGER", TIGER, USERS, 0.0454, 0.0321, 0.0648, 0.0384),
        _row("SASRec, full softmax, RecBole", RECBOLE, USERS, 0.0555, 0.0326, 0.0830, 0.0415),
        _row("ICLRec", ICLREC, USERS, 0.0500, 0.0326, 0.0744, 0.0403),
        _row("DuoRec", ICSREC, _AT_10, 0.0851, 0.0441),
        _row("HSTU", ESASREC, _AT_10, 0.0788, 0.0439),
        _row("SASRec, 256 uniform negatives", ESASREC, _AT_10, 0.0921, 0.0531),
        _row("eSASRec", ESASREC, _AT_10, 0.0928, 0.0523),
        _row("ICSRec", ICSREC, _AT_10, 0.0960, 0.0579),
        _row("BSARec", BSAREC, USERS, 0.0736, 0.0523, 0.1008, 0.0611),
    ],
    "sports": [
        _row("SASRec, one negative", TIGER, USERS, 0.0233, 0.0154, 0.0350, 0.0192),
        _row("TIGER", TIGER, USERS, 0.0264, 0.0181, 0.0400, 0.0225),
        _row("ICLRec", ICLREC, USERS, 0.0290, 0.0191, 0.0437, 0.0238),
        _row("DuoRec", ICSREC, _AT_10, 0.0466, 0.0244),
        _row("HSTU", ESASREC, _AT_10, 0.0437, 0.0243),
        _row("SASRec, 256 uniform negatives", ESASREC, _AT_10, 0.0569, 0.0314),
        _row("eSASRec", ESASREC, _AT_10, 0.0560, 0.0323),
        _row("ICSRec", ICSREC, _AT_10, 0.0565, 0.0335),
    ],
    "toys": [
        _row("SASRec, one negative", TIGER, USERS, 0.0463, 0.0306, 0.0675, 0.0374),
        _row("TIGER", TIGER, USERS, 0.0521, 0.0371, 0.0712, 0.0432),
        _row("ICLRec", ICLREC, USERS, 0.0598, 0.0404, 0.0834, 0.0480),
        _row("DuoRec", ICSREC, _AT_10, 0.0959, 0.0490),
        _row("HSTU", ESASREC, _AT_10, 0.0778, 0.0450),
        _row("eSASRec", ESASREC, _AT_10, 0.0939, 0.0538),
        _row("SASRec, 256 uniform negatives", ESASREC, _AT_10, 0.0970, 0.0580),
    ],
    "yelp": [_row("ICLRec", ICLREC, USERS, 0.0240, 0.0153, 0.0409, 0.0207)],
    "bert4rec-beauty": [
        _row("SASRec, one negative", ANTKLEN, _AT_10, 0.0246, 0.0126),
        _row("BERT4Rec", ANTKLEN, _AT_10, 0.0338, 0.0187),
        _row("SASRec, 3,000 negatives", ANTKLEN, _AT_10, 0.0490, 0.0295),
        _row("SASRec, full softmax", ANTKLEN, _AT_10, 0.0533, 0.0327),
    ],
    "tmall": [
        _row("GRU4Rec", GCE_GNN, SESSIONS, 0.1093, 0.0589),
        _row("NARM", GCE_GNN, SESSIONS, 0.2330, 0.1070),
        _row("SR-GNN", GCE_GNN, SESSIONS, 0.2757, 0.1372),
        _row("GCE-GNN", GCE_GNN, SESSIONS, 0.3342, 0.1542),
    ],
    "nowplaying": [
        _row("GRU4Rec", GCE_GNN, SESSIONS, 0.0792, 0.0448),
        _row("NARM", GCE_GNN, SESSIONS, 0.1859, 0.0693),
        _row("SR-GNN", GCE_GNN, SESSIONS, 0.1887, 0.0747),
        _row("GCE-GNN", GCE_GNN, SESSIONS, 0.2237, 0.0840),
    ],
}
