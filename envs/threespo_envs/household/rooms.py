"""What the rooms of a household are made of: kinds of places, kinds of things, what fits where, and where things usually are.

The vocabulary and the rules (which kind of place can hold which kind of thing, what can be heated, ...) are those of the ALFWorld
games. The tables are texts because they are read by people more often than by the program; each is parsed once, on first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

ROOMS = ("kitchen", "bedroom", "livingroom", "bathroom")

OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})
"""Kinds of place that can be opened and closed; all of them start closed."""

LAMP = "DeskLamp"
"""The kind of lamp that the look-at tasks ask for."""

LAMP_PLACES = ("Desk", "SideTable", "Dresser", "Shelf", "CoffeeTable", "DiningTable")
"""Where such a lamp can stand."""

APPLIANCE = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
"""The kind of place where a thing gets its state."""


def _kinds(names: str) -> frozenset[str]:
    return frozenset(names.split())


CLEANABLE = _kinds("Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot Potato SoapBar Spatula Spoon Tomato")
HEATABLE = _kinds("Apple Bread Cup Egg Mug Plate Potato Tomato")
COOLABLE = _kinds("Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle")
SLICEABLE = _kinds("Apple Bread Egg Lettuce Potato Tomato")
VESSELS = _kinds("Bowl Box Cup Mug Pan Plate Pot")
"""Things that are receptacles themselves (the domain's isReceptacleObject)."""

AFFORDING = {"clean": CLEANABLE, "heat": HEATABLE, "cool": COOLABLE}
"""The kinds that can be cleaned, heated and cooled."""


@dataclass(frozen=True, slots=True)
class RoomPlan:
    """How a room is furnished.

    Attributes:
        core: kinds that every room of this sort has, in the order in which a small room gets them.
        extras: kinds that may be added, with the weight and the greatest number of each (the core's one included).
    """

    core: tuple[str, ...]
    extras: tuple[tuple[str, int, int], ...]


PLANS = {
    "kitchen": RoomPlan(
        core=("Fridge", "Microwave", "SinkBasin", "CounterTop", "GarbageCan", "Cabinet"),
        extras=(
            ("Cabinet", 30, 12),
            ("Drawer", 24, 10),
            ("CounterTop", 10, 3),
            ("StoveBurner", 12, 4),
            ("DiningTable", 10, 2),
            ("CoffeeMachine", 12, 1),
            ("Toaster", 6, 1),
            ("Shelf", 6, 3),
            ("SideTable", 4, 1),
        ),
    ),
    "bedroom": RoomPlan(
        core=("Bed", "Desk", "Drawer", "GarbageCan", "SideTable", "Shelf"),
        extras=(
            ("Drawer", 30, 12),
            ("Shelf", 14, 8),
            ("SideTable", 6, 2),
            ("Dresser", 8, 1),
            ("Desk", 3, 2),
            ("ArmChair", 4, 2),
            ("LaundryHamper", 5, 1),
            ("Safe", 5, 1),
            ("Cabinet", 8, 6),
            ("DiningTable", 2, 1),
        ),
    ),
    "livingroom": RoomPlan(
        core=("Sofa", "CoffeeTable", "SideTable", "ArmChair", "GarbageCan", "Drawer"),
        extras=(
            ("Drawer", 24, 10),
            ("Shelf", 14, 8),
            ("ArmChair", 8, 3),
            ("SideTable", 10, 4),
            ("DiningTable", 6, 2),
            ("Dresser", 6, 1),
            ("TVStand", 5, 1),
            ("Cabinet", 10, 6),
            ("Ottoman", 3, 1),
            ("Safe", 2, 1),
        ),
    ),
    "bathroom": RoomPlan(
        core=("SinkBasin", "Toilet", "CounterTop", "GarbageCan", "Cabinet", "ToiletPaperHanger"),
        extras=(
            ("Cabinet", 26, 10),
            ("Drawer", 20, 10),
            ("HandTowelHolder", 12, 2),
            ("TowelHolder", 8, 2),
            ("BathtubBasin", 10, 1),
            ("Shelf", 10, 4),
            ("SinkBasin", 4, 2),
            ("Cart", 4, 1),
            ("Dresser", 3, 1),
            ("SideTable", 3, 1),
        ),
    ),
}

_CAN_CONTAIN = """
ArmChair: Book Box CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl
BathtubBasin: Cloth DishSponge HandTowel SoapBar
Bed: BaseballBat BasketBall Book CellPhone Laptop Pillow TennisRacket
Cabinet: Book Bowl Box CD Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Ladle Mug Newspaper Pan PepperShaker Plate Plunger Pot SaltShaker
    SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Vase WateringCan WineBottle
Cart: Candle Cloth DishSponge HandTowel Plunger SoapBar SoapBottle SprayBottle TissueBox ToiletPaper
CoffeeMachine: Mug
CoffeeTable: Book Bowl Box Candle CellPhone CreditCard KeyChain Laptop Newspaper Pen Pencil Plate RemoteControl Statue TissueBox Vase Watch
    WateringCan
CounterTop: AlarmClock Apple Book Bowl Bread ButterKnife CD Candle CellPhone Cloth CreditCard Cup DishSponge Egg Fork Glassbottle HandTowel Kettle
    KeyChain Knife Ladle Laptop Lettuce Mug Pan Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon
    SprayBottle Statue TissueBox ToiletPaper Tomato Vase WineBottle
Desk: AlarmClock BasketBall Book Bowl Box CD CellPhone Cloth CreditCard KeyChain Laptop Mug Pen Pencil RemoteControl Statue TennisRacket TissueBox
    Vase Watch WateringCan
DiningTable: AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth CreditCard Cup DishSponge Egg Fork
    Glassbottle Kettle KeyChain Knife Ladle Laptop Lettuce Mug Newspaper Pan Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker
    SoapBottle Spatula Spoon SprayBottle Statue TennisRacket TissueBox Tomato Vase Watch WateringCan WineBottle
Drawer: Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Fork HandTowel KeyChain Knife Ladle Newspaper Pen Pencil PepperShaker
    RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle TissueBox ToiletPaper Watch WateringCan
Dresser: AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard KeyChain Laptop Mug Newspaper Pen Pencil Plate RemoteControl
    SprayBottle Statue TennisRacket TissueBox ToiletPaper Vase Watch WateringCan
Fridge: Apple Bowl Bread Cup Egg Glassbottle Lettuce Mug Pan Plate Pot Potato Tomato WineBottle
GarbageCan: Apple Bread CD Cloth DishSponge Egg HandTowel Lettuce Newspaper Pen Pencil Potato SoapBar SoapBottle SprayBottle TissueBox ToiletPaper
    Tomato WineBottle
HandTowelHolder: HandTowel
LaundryHamper: Cloth
Microwave: Apple Bowl Bread Cup Egg Glassbottle Mug Plate Potato Tomato
Ottoman: Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl
Safe: CD CellPhone CreditCard KeyChain Statue Vase Watch
Shelf: AlarmClock Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup DishSponge Glassbottle HandTowel Kettle KeyChain Mug Newspaper Pen Pencil
    PepperShaker Plate Pot RemoteControl SaltShaker SoapBar SoapBottle SprayBottle Statue TissueBox ToiletPaper Vase Watch WateringCan WineBottle
SideTable: AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth CreditCard Cup DishSponge Egg Fork
    HandTowel Kettle KeyChain Knife Laptop Lettuce Mug Newspaper Pan Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar
    SoapBottle Spatula Spoon SprayBottle Statue TennisRacket TissueBox ToiletPaper Tomato Vase Watch WateringCan WineBottle
SinkBasin: Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Glassbottle HandTowel Kettle Knife Ladle Lettuce Mug Pan Plate Pot Potato SoapBar
    Spatula Spoon Tomato
Sofa: Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl
StoveBurner: Kettle Pan Pot
TVStand: TissueBox
Toilet: Candle Cloth DishSponge HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper
ToiletPaperHanger: ToiletPaper
TowelHolder: Towel
"""
"""Kind of place: kinds of thing that can be put there."""

_USUALLY = {
    "kitchen": """
Apple: CounterTop 25 Fridge 24 DiningTable 15 Microwave 13 GarbageCan 12 SinkBasin 9 SideTable 2
Book: CounterTop 65 Cabinet 14 DiningTable 11 Drawer 5 Shelf 4
Bowl: Cabinet 36 CounterTop 21 Fridge 20 DiningTable 15 SinkBasin 3 Microwave 3 Shelf 2
Bread: CounterTop 55 DiningTable 31 Fridge 12
ButterKnife: CounterTop 59 DiningTable 27 Drawer 8 SinkBasin 5
CellPhone: Drawer 43 CounterTop 41 DiningTable 17
CreditCard: CounterTop 46 Drawer 37 Shelf 17
Cup: Cabinet 23 CounterTop 21 Fridge 21 DiningTable 15 SinkBasin 9 Microwave 7 SideTable 2 Shelf 2
DishSponge: CounterTop 26 Cabinet 24 Drawer 21 DiningTable 13 SinkBasin 7 GarbageCan 5 Shelf 3
Egg: Fridge 25 CounterTop 24 SinkBasin 13 GarbageCan 13 Microwave 12 DiningTable 12 SideTable 2
Fork: CounterTop 44 DiningTable 24 Drawer 22 SinkBasin 9 SideTable 2
Glassbottle: Cabinet 31 CounterTop 27 DiningTable 14 SinkBasin 9 Fridge 9 GarbageCan 7 Shelf 4
Kettle: StoveBurner 41 CounterTop 25 Cabinet 24 DiningTable 7 SinkBasin 2
Knife: CounterTop 48 DiningTable 25 Drawer 21 SinkBasin 5
Ladle: CounterTop 41 Cabinet 25 Drawer 17 DiningTable 14 SinkBasin 2
Lettuce: CounterTop 41 DiningTable 28 Fridge 23 SinkBasin 5 SideTable 2
Mug: CounterTop 28 CoffeeMachine 17 Cabinet 16 Fridge 14 DiningTable 10 Microwave 7 SinkBasin 6
Pan: StoveBurner 52 CounterTop 33 Cabinet 7 DiningTable 4 Fridge 4
PaperTowelRoll: CounterTop 57 DiningTable 16 GarbageCan 15 Shelf 9 SideTable 2
Pen: CounterTop 39 DiningTable 34 Drawer 21 GarbageCan 5
Pencil: Drawer 41 CounterTop 30 DiningTable 19 GarbageCan 10
PepperShaker: Cabinet 33 CounterTop 30 DiningTable 16 Drawer 15 Shelf 3 SideTable 2
Plate: Cabinet 40 CounterTop 30 DiningTable 16 Fridge 9 SinkBasin 2 Shelf 2
Pot: StoveBurner 73 CounterTop 14 Fridge 4 DiningTable 4 Cabinet 3
Potato: CounterTop 28 Fridge 26 DiningTable 17 SinkBasin 11 Microwave 10 GarbageCan 6
SaltShaker: CounterTop 32 Cabinet 32 DiningTable 18 Drawer 14 Shelf 3 SideTable 2
SoapBottle: CounterTop 32 Cabinet 31 DiningTable 21 GarbageCan 10 Shelf 3
Spatula: CounterTop 45 DiningTable 25 Drawer 21 SinkBasin 9
Spoon: CounterTop 38 Drawer 28 DiningTable 22 SinkBasin 11 SideTable 2
SprayBottle: Cabinet 33 CounterTop 33 DiningTable 22 GarbageCan 12
Statue: CounterTop 51 Shelf 44 DiningTable 5
Tomato: Fridge 33 CounterTop 30 DiningTable 20 GarbageCan 9 SinkBasin 7 SideTable 2
Vase: CounterTop 34 Shelf 32 Cabinet 31 DiningTable 3
WineBottle: CounterTop 37 Cabinet 25 DiningTable 24 GarbageCan 9 Shelf 3
""",
    "bedroom": """
AlarmClock: Desk 34 Shelf 21 SideTable 19 Dresser 17 DiningTable 7
Book: Bed 51 Desk 19 Drawer 12 Dresser 5 SideTable 4 Cabinet 3 DiningTable 2 ArmChair 2 Shelf 2
Bowl: Desk 43 Shelf 30 Dresser 15 DiningTable 6 SideTable 4 CounterTop 2
Box: Desk 58 Shelf 42
CD: Drawer 28 Desk 20 Dresser 14 SideTable 13 GarbageCan 8 Shelf 7 DiningTable 6 Cabinet 2 ArmChair 2
CellPhone: Bed 29 Desk 17 Drawer 17 Dresser 10 SideTable 10 Shelf 8 DiningTable 3 ArmChair 3 Safe 2
CreditCard: Drawer 29 Shelf 18 Desk 18 SideTable 16 Dresser 12 DiningTable 3 ArmChair 3
DeskLamp: Desk 35 SideTable 28 Dresser 25 Shelf 11
KeyChain: Drawer 26 Desk 18 SideTable 16 Shelf 16 Dresser 13 DiningTable 4 Safe 4 ArmChair 3
Laptop: Bed 74 Desk 19 Dresser 4 DiningTable 2
Mug: Desk 36 Shelf 18 SideTable 16 Dresser 16 DiningTable 9 Cabinet 4
Pen: Desk 28 Drawer 18 Shelf 16 Dresser 15 SideTable 14 DiningTable 6 GarbageCan 2
Pencil: Desk 24 Drawer 18 SideTable 18 Shelf 17 Dresser 11 DiningTable 6 GarbageCan 5
Pillow: Bed 99
RemoteControl: Drawer 34 Desk 29 SideTable 15 CounterTop 8 ArmChair 6 DiningTable 4 Dresser 2
Statue: Shelf 43 Dresser 27 Desk 26 SideTable 5
TeddyBear: Bed 100
TissueBox: Desk 37 Drawer 26 DiningTable 15 Shelf 12 SideTable 9 Dresser 2
Vase: Shelf 45 Dresser 36 Desk 11 SideTable 9
Watch: Drawer 31 Shelf 20 DiningTable 16 Desk 15 Dresser 11 SideTable 6
""",
    "livingroom": """
Book: CoffeeTable 29 Dresser 24 Sofa 17 ArmChair 11 DiningTable 9 SideTable 8
Bowl: DiningTable 37 CoffeeTable 27 TVStand 20 SideTable 9 Shelf 8
Box: DiningTable 26 Sofa 24 CoffeeTable 23 SideTable 8 Cabinet 4 Shelf 4 Dresser 3 ArmChair 3 TVStand 3
Candle: SideTable 41 CoffeeTable 28 DiningTable 20 TVStand 6 Drawer 3 Dresser 2
CellPhone: Dresser 19 SideTable 17 CoffeeTable 17 Sofa 14 Drawer 13 DiningTable 9 ArmChair 4 Ottoman 4 Shelf 2 TVStand 2
CreditCard: Sofa 19 CoffeeTable 15 ArmChair 13 Drawer 13 SideTable 10 DiningTable 9 TVStand 7 Dresser 7 Shelf 5
DeskLamp: SideTable 91 CoffeeTable 9
KeyChain: CoffeeTable 20 SideTable 16 Drawer 16 Sofa 12 ArmChair 9 TVStand 7 DiningTable 7 Dresser 6 Shelf 5
Laptop: Sofa 27 CoffeeTable 25 DiningTable 21 Dresser 8 SideTable 7 TVStand 5 ArmChair 5 Ottoman 2
Newspaper: Sofa 20 CoffeeTable 18 DiningTable 17 SideTable 14 Shelf 11 Dresser 8 ArmChair 7 TVStand 3 Drawer 2
Pen: CoffeeTable 34 Dresser 22 SideTable 20 TVStand 6 Drawer 6 GarbageCan 4 Shelf 4 DiningTable 4
Pencil: SideTable 32 CoffeeTable 27 Drawer 10 Dresser 7 GarbageCan 6 TVStand 6 Shelf 6 DiningTable 4
Pillow: Sofa 80 ArmChair 20
Plate: DiningTable 50 CoffeeTable 24 Shelf 13 SideTable 11 TVStand 2
RemoteControl: CoffeeTable 24 Sofa 19 SideTable 13 DiningTable 11 Dresser 8 TVStand 8 ArmChair 8 Drawer 4 Shelf 3
Statue: CoffeeTable 26 Shelf 20 DiningTable 20 SideTable 19 TVStand 9 Dresser 8
TissueBox: CoffeeTable 36 DiningTable 19 SideTable 19 Shelf 11 TVStand 8 Drawer 3 Dresser 2
Vase: Shelf 36 CoffeeTable 20 DiningTable 15 SideTable 12 Dresser 11 TVStand 5 Cabinet 2
Watch: CoffeeTable 26 Drawer 21 SideTable 18 DiningTable 11 Dresser 11 TVStand 10 Shelf 4
WateringCan: CoffeeTable 53 Shelf 38 SideTable 9
""",
    "bathroom": """
Candle: CounterTop 31 Toilet 30 Cabinet 13 Drawer 13 Shelf 7 SideTable 2 Cart 2
Cloth: BathtubBasin 30 Cabinet 20 CounterTop 17 Drawer 15 SinkBasin 8 Shelf 4 Toilet 3
DishSponge: CounterTop 20 Drawer 20 BathtubBasin 18 SinkBasin 10 Shelf 10 Toilet 8 Cabinet 5 Cart 5 GarbageCan 4
HandTowel: HandTowelHolder 96 CounterTop 4
PaperTowelRoll: CounterTop 35 Toilet 31 Shelf 17 GarbageCan 11 Cart 6
SoapBar: CounterTop 20 Toilet 16 SinkBasin 15 Cabinet 12 BathtubBasin 12 Drawer 11 GarbageCan 7 Shelf 4 SideTable 2
SoapBottle: CounterTop 30 Toilet 24 Cabinet 20 Shelf 9 GarbageCan 9 Drawer 3 Dresser 2
SprayBottle: CounterTop 32 Toilet 27 Cabinet 16 GarbageCan 10 Shelf 7 Cart 4 SideTable 3 Dresser 2
TissueBox: CounterTop 36 Shelf 29 Drawer 20 Cabinet 5 Cart 4 SideTable 4 Toilet 3
ToiletPaper: Toilet 23 CounterTop 23 ToiletPaperHanger 12 Drawer 11 Cabinet 11 GarbageCan 9 Shelf 5 Dresser 2 Cart 2
Towel: TowelHolder 97 CounterTop 3
""",
}
"""Per room: kind of thing, then the kinds of place where it is found at the start and how often (per cent, from 2), in the 3,553 games of
ALFWorld's training split; no evaluation split was looked at."""


@cache
def can_contain() -> frozenset[tuple[str, str]]:
    """The pairs (kind of place, kind of thing) of the domain's canContain."""
    pairs: set[tuple[str, str]] = set()
    place = ""
    for line in _CAN_CONTAIN.strip().splitlines():
        head, colon, rest = line.partition(":")
        place, things = (head, rest) if colon else (place, line)
        pairs.update((place, thing) for thing in things.split())
    return frozenset(pairs)


@cache
def usual_places(room: str) -> dict[str, dict[str, int]]:
    """Kind of thing -> kind of place -> how often it is found there, in ``room``; only places that can hold it by the rules."""
    table: dict[str, dict[str, int]] = {}
    for line in _USUALLY[room].strip().splitlines():
        thing, _, rest = line.partition(":")
        words = rest.split()
        places = {place: int(weight) for place, weight in zip(words[::2], words[1::2], strict=True)}
        table[thing.strip()] = {place: weight for place, weight in places.items() if (place, thing.strip()) in can_contain()}
    return {thing: places for thing, places in table.items() if places}


@cache
def usual_weight(place: str, thing: str) -> float:
    """How likely a place of kind ``place`` is to hold a thing of kind ``thing``, over all rooms: common sense for a search."""
    weights = _usual_over_rooms()
    return weights.get((place.lower(), thing.lower()), 0.0)


@cache
def _usual_over_rooms() -> dict[tuple[str, str], float]:
    total: dict[tuple[str, str], float] = {(place.lower(), thing.lower()): 1.0 for place, thing in can_contain()}
    for room in ROOMS:
        for thing, places in usual_places(room).items():
            for place, weight in places.items():
                total[place.lower(), thing.lower()] += weight
    return total | {(place.lower(), LAMP.lower()): 100.0 for place in LAMP_PLACES}


@cache
def fits(place: str, thing: str) -> bool:
    """Whether a place of kind ``place`` can hold a thing of kind ``thing``; kinds in lower case."""
    return (place, thing) in _fits_lower()


@cache
def _fits_lower() -> frozenset[tuple[str, str]]:
    return frozenset((place.lower(), thing.lower()) for place, thing in can_contain())
