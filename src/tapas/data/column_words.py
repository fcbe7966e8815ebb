"""Words for user, item and time in the names of columns, in several languages."""

import re
import unicodedata
from collections.abc import Sequence


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# in lower case without punctuation, spaces and accents; earlier words win
EXACT_NAMES = {
    "user": """user userid uid visitor visitorid customer customerid household householdid
        householdkey member memberid account accountid client clientid reviewer reviewerid player
        playerid author authorid session sessionid""",
    "item": """item itemid iid product productid movie movieid article articleid sku track trackid
        song songid artist artistid book bookid isbn asin parentasin business businessid recipe
        recipeid game gameid video videoid news newsid content contentid listing listingid poi
        poiid venue venueid url page""",
    "time": """timestamp time ts datetime date eventtime eventtimestamp eventdate createdat created
        unixtime unixreviewtime transactiontimestamp transactiondate invoicedate orderdate
        purchasedate purchasetime ratedat tdat day""",
}
WORDS = {
    "user": """user usr customer cust client member visitor shopper buyer purchaser consumer
        subscriber listener viewer reader player gamer reviewer rater voter borrower patron guest
        passenger traveler traveller learner student patient follower household account profile
        person author session
        kunde kunden nutzer benutzer anwender kaufer kaeufer besteller besucher mitglied horer
        hoerer leser spieler zuschauer abonnent teilnehmer haushalt konto person gast
        usuario usuaria cliente comprador visitante miembro socio jugador oyente lector
        utilisateur utilisatrice acheteur visiteur membre abonne joueur auditeur lecteur adherent
        utente acquirente visitatore membro giocatore ascoltatore abbonato
        ouvinte assinante jogador leitor
        gebruiker klant bezoeker koper lid luisteraar lezer speler
        uzytkownik klient uzivatel zakaznik anvandare kund bruger bruker kayttaja asiakas kullanici
        musteri felhasznalo vasarlo
        пользователь клиент покупатель посетитель читатель слушатель игрок
        用户 客户 会员 ユーザー 顧客 사용자 고객""",
    "item": """item product prod article sku asin isbn ean gtin upc track song movie film title
        book game video episode show podcast recipe news story post listing offer course lesson
        app hotel restaurant venue poi destination content document url page album artist
        artikel produkt ware titel lied buch spiel sendung rezept film angebot
        producto articulo pelicula cancion libro juego receta
        produit chanson livre jeu recette
        prodotto articolo canzone libro gioco ricetta
        produto artigo filme musica livro jogo
        boek liedje spel recept
        towar zbozi vara vare tuote urun termek cikk
        товар продукт артикул фильм книга песня игра трек
        商品 产品 物品 電影 アイテム 상품""",
    "time": """timestamp datetime time date ts epoch moment when occurred
        zeitstempel zeitpunkt zeit datum kaufdatum bestelldatum buchungsdatum rechnungsdatum
        fechahora fecha marcadetiempo horodatage dateheure dataora datahora data momento
        tijdstip tijd tijdstempel dato tidspunkt tidsstampel tid czas datas cas paivamaara
        aika tarih zaman idopont
        времясобытия датавремя дата время
        时间 日期 日時 日付 時刻 시간 날짜""",
}
IDS = _words("""id ids uid uuid guid key nr no num number nummer numer numero code codigo kod hash
    ref idx index sk pk hashed anon name title titel nom nombre nome naam""")
TIME_ENDINGS = _words("at on time date datetime timestamp ts dt zeit datum")
NOT_TIMES = ("birth", "geburt", "naiss", "nacim", "nascit", "dob", "expir")
EVENT_NAMES = _words("""eventtype event type action actiontype eventname behavior behaviour
    behaviortype interaction interactiontype activity activitytype kind operation
    ereignis ereignistyp aktion typ evento accion tipo evenement""")
Rank = tuple[int, int]


def plain(name: str) -> str:
    """In lower case, without accents, punctuation and spaces."""
    return "".join(tokens(name))


def tokens(name: str) -> list[str]:
    """
    >>> tokens("Kunden-Nr."), tokens("movieId"), tokens("ID_Käufer")
    (['kunden', 'nr'], ['movie', 'id'], ['id', 'kaufer'])
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    name = unicodedata.normalize("NFKD", name.casefold())
    name = "".join(c for c in name if not unicodedata.combining(c))
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFC", name))


def find_column(role: str, present: Sequence[str]) -> str | None:
    """The column of `present` for `role`, user or item, by its name."""
    return find_exact(role, present) or next(iter(find_by_words(role, present)), None)


def find_exact(role: str, present: Sequence[str]) -> str | None:
    """The column with the most usual name for `role`."""
    names = {"".join(c for c in name.lower() if c.isalnum()): name for name in reversed(present)}
    return next((names[name] for name in EXACT_NAMES[role].split() if name in names), None)


def find_by_words(role: str, present: Sequence[str]) -> list[str]:
    """The columns with a word for `role` in their name that fit best, in the order of the file."""
    ranks = {name: rank for name in present if (rank := _rank(role, name)) is not None}
    best = min(ranks.values(), default=None)
    return [name for name in present if ranks.get(name) == best is not None]


def is_word(role: str, name: str) -> bool:
    """Whether a name is one of the words for `role` and nothing else."""
    return plain(name) in WORDS[role].split()


def could_be_id(name: str) -> bool:
    """Whether a name says that the column holds ids, which are never times."""
    return any(token in IDS for token in tokens(name)) or plain(name).endswith("id")


def is_no_event_time(name: str) -> bool:
    """Whether a name says that the column holds other times than those of the events."""
    return any(word in plain(name) for word in NOT_TIMES)


def is_event_type(name: str) -> bool:
    return plain(name) in EVENT_NAMES


def _rank(role: str, name: str) -> Rank | None:
    """How well `name` fits: a word (0), one beside others (1); then the place of the word."""
    words = {word: place for place, word in reversed(list(enumerate(WORDS[role].split())))}
    parts = tokens(name)
    if role == "time":
        if is_no_event_time(name):
            return None
        whole = "".join(parts)
        if whole in words:
            return 0, words[whole]
        if len(parts) > 1 and parts[-1] in TIME_ENDINGS:
            return 1, 0
        beside = [words[part] for part in (parts[:1] + parts[-1:]) if part in words]
        return (2, min(beside)) if beside else None
    kept = [part for part in parts if part not in IDS] or parts
    whole = "".join(kept)
    for word in (whole, *_without_ids(whole)):
        if word in words:
            return 0, words[word]
    if kept[-1:] and kept[-1] in words:
        return 1, words[kept[-1]]
    return None


def _without_ids(joined: str) -> list[str]:
    """
    >>> _without_ids("kundennr"), _without_ids("idusuario")
    (['kunden'], ['usuario'])
    """
    found = [joined.removesuffix(affix) for affix in IDS if joined.endswith(affix)]
    return found + [joined.removeprefix(affix) for affix in IDS if joined.startswith(affix)]
