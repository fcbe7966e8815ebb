"""What clients send and get. Types are limits: what does not fit them is refused with a 4xx."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MOST_LISTS = 1_000  # users or histories of a request
MOST_ITEMS = 10_000  # of a history, and to allow or deny
MOST_EVENTS = 100_000  # of all histories of a request
LONGEST_LIST = 1_000
MOST_BYTES = 1 << 21  # of a request

Text = Annotated[str, Meta(max_length=1_000)]
Key = Text | int
Keys = Annotated[list[Key], Meta(max_length=MOST_ITEMS)]
Length = Annotated[
    int,
    Meta(ge=1, le=LONGEST_LIST, description="Items of a list. Default: 20, or all if fewer."),
]
Model = Annotated[
    Text, Meta(description="Name of one of the served models. Default: the first one.")
]


class Recommend(Struct, forbid_unknown_fields=True, kw_only=True):
    """Lists for `users` of the log, or for `histories`; one of the two."""

    users: Annotated[list[Key], Meta(min_length=1, max_length=MOST_LISTS)] | UnsetType = UNSET
    histories: (
        Annotated[
            list[Keys],
            Meta(
                min_length=1,
                max_length=MOST_LISTS,
                description="Item keys, the oldest first. Unknown items are named in the answer.",
            ),
        ]
        | UnsetType
    ) = UNSET
    k: Length | UnsetType = UNSET
    exclude_seen: (
        Annotated[
            bool,
            Meta(description="Leave out items of the history. Default: as the run was trained."),
        ]
        | UnsetType
    ) = UNSET
    allow: Annotated[Keys, Meta(min_length=1, description="List these items only.")] | UnsetType = (
        UNSET
    )
    deny: Annotated[Keys, Meta(description="Never list these items.")] | UnsetType = UNSET
    cold: Annotated[
        Literal["error", "popular"],
        Meta(
            description="What unknown users and histories without a known item get: an error, or "
            "the most popular items of training. Default: an error."
        ),
    ] = "error"
    explain: Annotated[
        bool, Meta(description="Say what each part of the model adds to a probability.")
    ] = False
    model: Model | UnsetType = UNSET


class Similar(Struct, forbid_unknown_fields=True, kw_only=True):
    """Items whose vectors have the highest cosine with those of `items`."""

    items: Annotated[list[Key], Meta(min_length=1, max_length=MOST_LISTS)]
    k: Length | UnsetType = UNSET
    model: Model | UnsetType = UNSET


class ListedItem(Struct, omit_defaults=True, gc=False):
    """An item of a list, the best first."""

    item: Key
    probability: float | UnsetType = UNSET  # that it is the very next item
    score: float | UnsetType = UNSET  # of a method without probabilities
    parts: dict[str, float] | UnsetType = UNSET  # of the probability


class ItemList(Struct, omit_defaults=True, gc=False):
    """The list of a user, or of a history."""

    items: list[ListedItem]
    user: Key | UnsetType = UNSET
    popular: bool = False  # nothing was known to predict from
    unknown_items: list[Key] | UnsetType = UNSET  # left out, or read as rare items


class Recommended(Struct, omit_defaults=True, gc=False):
    """A list for each user or history, in their order."""

    model: str
    step: int | None  # of the checkpoint; null for an export
    lists: list[ItemList]
    unknown_items: list[Key] | UnsetType = UNSET  # of `allow` and `deny`
    approximate: bool = False  # an index searched for the items


class SimilarItem(Struct, gc=False):
    item: Key
    cosine: float


class SimilarList(Struct, gc=False):
    item: Key
    items: list[SimilarItem]


class SimilarItems(Struct):
    """A list for each item, in their order."""

    model: str
    step: int | None
    lists: list[SimilarList]


class ItemFacts(Struct):
    """What the models know of an item."""

    item: Key
    name: str | None
    count: int  # events in training
    rank: int  # 1 is the most frequent item
    columns: dict[str, str]  # of the table of items
    similar: list[SimilarItem]


class ServedModelFacts(Struct):
    name: str
    step: int | None
    items: int


class Health(Struct):
    """Whether requests are answered."""

    status: Literal["ok", "stopping"]
    models: list[ServedModelFacts]


class Error(Struct):
    """What was wrong, in one sentence."""

    error: str
