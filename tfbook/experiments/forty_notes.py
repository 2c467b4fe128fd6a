"""Does a head that points find answers in texts of another kind than those it was trained on?

Forty notes were written by hand, each with a question, the answers that count, and the names of
persons and places in it. The seven notes with which chapter 13 begins are the first of them. No
note and no whole name in them is used for training.

A reader of `answers`, two scores for each token on the last three layers of MiniLM, is trained on
synthetic sentences put together from many verbs, things, times and reasons, with many names. It
reads the forty notes, and new sentences of the same kind with names that were kept out of training.

An answer counts if it is one of those written down, but for capitals, articles and marks. Each
note also has its question in other words, for the search. Nothing was chosen by what came out.

Explained in: chapters/13_language, section "Where is the answer?".
"""

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from tfbook import pretrained
from tfbook.experiments import answers
from tfbook.experiments.answers import Example

__all__ = ["NOTES", "SMOKE", "Note", "exact", "examples", "labelled", "run", "told"]

SMOKE = {"seeds": (0,), "n_train": 2, "n_test": 1, "passes": 1, "count": 1}
CARD = {
    "model": "the last {TOP} layers of MiniLM-L6 and a linear layer, 5,324,162 parameters",
    "data": "{n_train} questions on synthetic texts",
    "steps": "{passes} epochs",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}

BATCH, RATE, TOP = answers.BATCH, answers.RATE, answers.TOP


class Note(NamedTuple):
    """A note, a question in two wordings, the answers that count, and the names in the note."""

    text: str
    question: str
    reworded: str
    wanted: tuple[str, ...]
    persons: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


def _note(line: str) -> Note:
    text, question, reworded, *rest = (part.strip() for part in line.split("|"))
    lists = (tuple(filter(None, part.split("/"))) for part in rest)
    return Note(text, question, reworded, *lists)


NOTES = tuple(map(_note, """
Siobhan hated the naïve film she saw in Dublin.|In which city did Siobhan see the film?
  |Where did she watch a movie that she disliked?|Dublin/in Dublin|Siobhan|Dublin
Omar loved the concert in Lisbon and stayed to the end.|Who stayed to the end of the concert?
  |Which guest heard the whole musical evening?|Omar|Omar|Lisbon
The cinema in Oslo has been closed since last winter.|Since when has the cinema been closed?
  |How long has nobody been able to watch movies there?|last winter/since last winter||Oslo
Ines left her umbrella on the night train to Madrid.|What did Ines leave on the train?
  |Which thing was forgotten on the railway?|umbrella/her umbrella|Ines|Madrid
Siobhan bakes bread for her neighbours every Sunday.|On which day does Siobhan bake bread?
  |When are the people next door given loaves?|Sunday/every Sunday|Siobhan|
He cut the board with a saw and painted it blue.|In which colour did he paint the board?
  |What shade did the sawn wood get?|blue||
Hugo missed the play in London because he fell asleep.|Why did Hugo miss the play?
  |What kept him from the theatre?|he fell asleep/because he fell asleep/fell asleep|Hugo|London
Mary Robinson lent her ladder to the painter on Friday.|Who got the ladder of Mary Robinson?
  |To whom was something for climbing lent?|painter/the painter|Mary Robinson|
The ferry to Bergen leaves at six in the morning.|At what time does the ferry leave?
  |When does the ship depart?|six/six in the morning/at six/at six in the morning||Bergen
Tariq Nasser sold his old camera in Geneva for ninety francs.|For how much did Tariq Nasser sell \
his camera?
  |What price did he get for the thing that takes pictures?|ninety francs/\
for ninety francs|Tariq Nasser|Geneva
Ludmila has two brothers and a sister in Warsaw.|How many brothers does Ludmila have?
  |How many male siblings has she?|two/two brothers|Ludmila|Warsaw
The museum in Buenos Aires is free on the first Monday of each month.|Where is the museum?
  |Where can one see exhibits without paying?|Buenos Aires/in Buenos Aires||Buenos Aires
Because of the snow, the bus from Zagreb came three hours late.|Why was the bus late?
  |What delayed the coach?|snow/the snow/because of the snow||Zagreb
Dmitri Volkov proposed to Saskia on the bridge at midnight.|To whom did Dmitri Volkov propose?
  |Who was asked to marry him?|Saskia/to Saskia|Dmitri Volkov/Saskia|
Our cat sleeps in the basket under the stairs.|Where does the cat sleep?
  |Where does the pet rest?|in the basket under the stairs/the basket under the stairs/\
basket under the stairs/in the basket/the basket||
The key to the cellar hangs behind the kitchen door.|What hangs behind the kitchen door?
  |Which object is found near the place for cooking?|key/the key/key to the cellar/\
the key to the cellar||
Wei Zhang planted forty apple trees behind the school.|How many apple trees did Wei Zhang plant?
  |How many fruit plants were set by the pupils' building?|forty/forty apple trees|Wei Zhang|
In Marseille, Odile teaches chemistry to nurses.|What does Odile teach?
  |Which subject do hospital workers learn from her?|chemistry|Odile|Marseille
Caoimhe wrote the song that her brother sings.|Who wrote the song?
  |Who composed the music?|Caoimhe|Caoimhe|
The thief came through the bathroom window while they were dancing.|How did the thief get in?
  |Which way did the burglar take?|through the bathroom window/the bathroom window/\
bathroom window||
Bartek won the race although he had lost a shoe.|What had Bartek lost?
  |What was missing from the runner's foot?|a shoe/shoe|Bartek|
Between the two lectures Anneke drank a glass of milk.|What did Anneke drink?
  |Which drink did she have between classes?|milk/a glass of milk/glass of milk|Anneke|
The wedding of Rahel and Jonah was in Salt Lake City.|In which city was the wedding?
  |Where did the couple marry?|Salt Lake City/in Salt Lake City|Rahel/Jonah|Salt Lake City
Nobody but Ottoline knew the number of the safe.|Who knew the number of the safe?
  |Who could open the strongbox?|Ottoline/nobody but Ottoline|Ottoline|
Agnieszka flew from Seville to Reykjavik with a broken arm.|To which city did Agnieszka fly?
  |Where did the injured passenger land?|Reykjavik/to Reykjavik|Agnieszka|Seville/Reykjavik
The old bakery was turned into a library in 1987.|When did the bakery become a library?
  |In which year did books replace the loaves?|1987/in 1987||
Thabo borrowed a tent from his aunt in Durban.|From whom did Thabo borrow the tent?
  |Which relative owns the thing for camping?|his aunt/aunt/from his aunt/\
his aunt in Durban|Thabo|Durban
Two of the five windows were broken by hail.|What broke the windows?
  |What smashed the glass?|hail||
Freya Lindqvist speaks Dutch with her parents and Greek with her wife.|Which language does Freya \
Lindqvist speak with her wife?
  |In what tongue does she talk to her spouse?|Greek|Freya Lindqvist|
The bridge at Mostar was built of white stone.|Of what was the bridge built?
  |Which material was used for crossing the river?|white stone/stone/of white stone||Mostar
After the storm Eamon found a boat on his roof.|Where did Eamon find a boat?
  |Where had the wind put the vessel?|his roof/on his roof/roof|Eamon|
The bank gave Leocadia a loan for a new roof.|For what did Leocadia get a loan?
  |What was the borrowed money for?|new roof/a new roof/for a new roof|Leocadia|
They named the puppy Biscuit after its colour.|What is the name of the puppy?
  |What is the young dog called?|Biscuit||
Ngozi fixed the radio that Pieter had thrown away.|Who fixed the radio?
  |Who mended the thing that plays the news?|Ngozi|Ngozi/Pieter|
Ngozi met Pieter at a chess club in Utrecht.|Where did Ngozi meet Pieter?
  |Where did two players get to know each other?|chess club/a chess club/at a chess club/Utrecht/\
in Utrecht/at a chess club in Utrecht/a chess club in Utrecht|Ngozi/Pieter|Utrecht
The doctor told Solveig to walk an hour a day.|Who told Solveig to walk?
  |Who recommended daily exercise?|doctor/the doctor|Solveig|
Rashida paid for the dinner with a gold coin.|With what did Rashida pay?
  |What was given for the meal?|gold coin/a gold coin/with a gold coin|Rashida|
The last letter of Viktor Amsel arrived from New Delhi in May.|From which city did the letter \
come?
  |Where did he post his final message?|New Delhi/from New Delhi|Viktor Amsel|New Delhi
Ilse prefers tea, but her guests drank coffee.|What did the guests drink?
  |What beverage did the visitors take?|coffee|Ilse|
The choir of Tallinn sang for the miners for two hours.|For whom did the choir sing?
  |Who listened to the singers?|the miners/miners/for the miners||Tallinn
""".strip().replace("\n  |", "|").splitlines()))  # fmt: skip

# Of the training texts; every fifth name is kept for testing.
GIVEN = """
Ralph Rosa Astrid Simon Angela Walter Aurora Rebecca Cora Lena Antonia Claudia Dora Viola Anton
Miguel Lidia Elias Alina Jonathan Louis Colin Brian George Adam Naomi Noah Ella Aisha Patricia Asha
Monica Wanda Isaac Hassan Ibrahim Zoe Emma Amy Olga Pedro Andre Charles Ingrid Fabian Lydia Jasper
David Yara Edith Oliver Harold Ivy Michael Claire Hector Joseph Leo Alex Gloria Leonard Camille Mia
Wendy Gabriel Henry Veronica Eli Robert Carlos Laura Gustav Lea Daniel Sandra Leon Barbara Jana Hana
Judith Abigail Vera Martin Enzo Heidi Richard Jonas Marc Bella Marta Matteo Thomas Paul Boris Nora
Roberto James Kenji Raul Gerda Sofia Hannah Una Pia Katya Irma Sergio Oscar Beatrice Melissa Mohamed
Peter Tom Joan Denis Penelope Anna Edgar John Cecilia Leila Ana Samuel Chiara Linda Elisa Miriam Ida
Jamal Kofi Amara Sanjay Deepa Hiroshi Yuki Tomasz Zofia Pavel Milan Ferenc Ilona Aoife Niamh Ciaran
Fergus Morag Bjorn Sigrid Ragnhild Emre Aylin Farid Soraya Chidi Nkem Wanjiru Otieno Mei Jian Thuy
""".split()
FAMILY = """
Hill Lund Stone Berg Brown Garcia Novak Silva Rossi Weber Larsen Murphy Okafor Mensah Tanaka Suzuki
Kim Nguyen Chen Patel Sharma Khan Haddad Cohen Kowalski Horvat Popescu Ivanov Petrov Jansen Dubois
Moreau Lopez Torres Costa Walsh Byrne Campbell Fraser Evans Baker Carter Cooper Fisher Mason Parker
Turner Walker Young Wood Price Bell Reed Ward West North Fox Wolf King Marsh Field Brook Forest Snow
""".split()
PLACES = (
    """
Paris Berlin Rome Vienna Prague Athens Cairo Lima Kyoto Turin Cardiff Nairobi Boston Chicago Denver
Sydney Perth Mumbai Lagos Accra Tunis Riga Vilnius Helsinki Stockholm Hamburg Cologne Munich Zurich
Lyon Nice Milan Naples Venice Florence Porto Valencia Bilbao Leeds Glasgow Bristol York Oxford Cork
Galway Brussels Antwerp Rotterdam Krakow Budapest Sofia Bucharest Belgrade Istanbul Ankara Beirut
Amman Damascus Tehran Kolkata Dhaka Bangkok Hanoi Manila Seoul Osaka Tokyo Beijing Shanghai
Toronto Montreal Quito Bogota Havana Santiago Montevideo Brasilia Recife Dakar Kampala Lusaka Harare
Auckland Hobart Quebec Seattle Dallas Miami Portland Memphis Houston Tampere Malmo Aarhus Dresden
""".split()
    + """
New York,San Marino,New Haven,Los Angeles,San Francisco,Cape Town,Hong Kong,Porto Novo
Mexico City,Las Vegas,St Petersburg,Kuala Lumpur,Ho Chi Minh City,Santa Fe,Rio Grande,Tel Aviv
Addis Ababa,Port Moresby,Little Rock,Baton Rouge,Cape Coral,San Jose,La Paz,El Paso,Fort Worth
Novi Sad,Banja Luka,Monte Carlo,Palma Nova,Costa Rica,Sierra Leone,Saint Louis,Green Bay
""".replace("\n", ",")
    .strip(",")
    .split(",")
)
# Past form, base form, and what it is done to.
VERBS = [
    tuple(part.strip() for part in line.split("|")) for line in """
watched|watch|film,play,match,parade,race,show,opera
enjoyed|enjoy|film,concert,opera,party,meal,walk,dance,museum
disliked|dislike|film,play,song,soup,speech,hotel,novel
praised|praise|film,play,cook,singer,novel,choir,teacher
left early|leave early|concert,play,party,meeting
lost|lose|ring,wallet,passport,watch,scarf,ticket,glove
forgot|forget|bag,hat,coat,laptop,book,phone
found|find|coin,ring,map,dog,wallet,letter,shell
bought|buy|bicycle,violin,lamp,carpet,horse,clock,sofa
sold|sell|car,piano,house,farm,boat,painting,guitar
repaired|repair|roof,clock,engine,fence,bicycle,chair
painted|paint|door,wall,gate,boat,portrait
built|build|shed,bridge,table,boat,tower
cooked|cook|soup,rice,dinner,fish,stew
broke|break|vase,window,cup,plate,mirror
opened|open|shop,school,office,hotel
closed|close|cinema,shop,factory,museum
visited|visit|museum,castle,market,garden,temple
studied|study|law,music,physics,history,biology
met|meet|singer,judge,teacher,farmer,pilot
borrowed|borrow|drill,tent,book,car,suitcase
planted|plant|tree,rose,hedge,vine
wrote|write|letter,poem,report,novel
sang|sing|song,hymn,ballad
won|win|race,prize,match,election
""".strip().splitlines()
]  # fmt: skip
ADJECTIVES = "old,new,small,red,green,long,dull,silly,expensive,famous,heavy,strange,blue,quiet"
TIMES = (
    "on Monday,on Tuesday,on Thursday,in June,in April,in October,last year,last summer,yesterday,"
    "at noon,at nine,at dawn,two weeks ago,in 1994,in 2011,after lunch,every Saturday"
)
REASONS = (
    "it was raining,the train was late,the tickets were cheap,the children were ill,"
    "the lights went out,there was no heating,a friend had asked,the price had fallen,"
    "the road was blocked,it was too loud,the money was gone,the door was locked,"
    "nobody else wanted to,the weather was fine"
)
WITH = "with a friend,with two cousins,with a neighbour,with the children,with a colleague"


def names(kept: bool) -> tuple[list[str], list[str], list[str]]:
    """Return given names, family names and places, those kept for the test or the others."""
    given, family, places = (
        [w for i, w in enumerate(every) if (i % 5 == 4) == kept]
        for every in (GIVEN, FAMILY, PLACES)
    )
    return given, family, places


class _Event(NamedTuple):
    """What one sentence says."""

    who: str
    past: str
    base: str
    adjective: str
    thing: str
    where: str
    when: str
    why: str
    company: str


def _draw(generator: random.Random, kept: bool, verb=None, taken: Sequence[str] = ()) -> _Event:
    given, family, places = names(kept)
    pick = generator.choice
    who = pick([name for name in given if name not in taken])
    if generator.random() < 0.35:
        who += f" {pick(family)}"
    past, base, things = verb or pick(VERBS)
    adjective = pick(ADJECTIVES.split(",")) if generator.random() < 0.5 else ""
    some = [
        pick(part.split(",")) if generator.random() < share else ""
        for part, share in ((TIMES, 0.4), (REASONS, 0.3), (WITH, 0.25))
    ]
    where = pick(places) if generator.random() < 0.85 else ""
    return _Event(who, past, base, adjective, pick(things.split(",")), where, *some)


def _say(event: _Event, generator: random.Random) -> str:
    """Return an event as a sentence."""
    past, _, particle = event.past.partition(" ")
    thing = f"{event.adjective} {event.thing}".strip()
    done = f"{past} the {thing} {particle}".strip()
    where = f"in {event.where}" if event.where else ""
    order = [where, event.company, event.when]
    if generator.random() < 0.3:
        order = [event.company, where, event.when]
    front = ""
    if event.where and generator.random() < 0.15:
        front, order = f"In {event.where} ", [event.company, event.when]
    elif event.when and generator.random() < 0.2:
        front, order = f"{event.when[0].upper()}{event.when[1:]} ", order[:2]
    behind = " ".join(part for part in order if part)
    why = f"because {event.why}" if event.why else ""
    parts = [f"{front}{event.who} {done}", behind, why]
    if where and not front and generator.random() < 0.15:
        said = f"The {thing} that {event.who} {past} {particle}".strip() + f" was {where}"
        parts = [said, event.company, event.when, why]
    return " ".join(part for part in parts if part) + "."


def _questions(event: _Event) -> list[tuple[str, str]]:
    """Return what one can ask about an event, each with its answer."""
    base, _, particle = event.base.partition(" ")
    who, thing, past = event.who, event.thing, event.past.partition(" ")[0]
    did = f"did {who} {base} the {thing} {particle}".strip()
    asked = [(f"Who {past} the {thing} {particle}".strip() + "?", who)]
    if event.where:
        asked += [(f"{w} {did}?", event.where) for w in ("Where", "In which city", "In what city")]
        asked += [(f"What did {who} {base} {particle}".strip() + f" in {event.where}?", thing)]
        asked += [(f"Who {past} something {particle}".strip() + f" in {event.where}?", who)]
    else:
        asked += [(f"What did {who} {base} {particle}".strip() + "?", thing)]
    if event.when:
        asked += [(f"When {did}?", event.when)]
    if event.why:
        asked += [(f"Why {did}?", event.why)] * 2
    if event.company:
        asked += [(f"With whom {did}?", event.company.removeprefix("with "))]
    return asked


def examples(count: int, *, kept: bool = False, generator: random.Random) -> list[Example]:
    """Draw questions on texts of one to three sentences, half of them about the same kind of act.

    Args:
        count: how many.
        kept: whether the names are those kept for the test.
        generator: of the random choices.
    """
    found: list[Example] = []
    while len(found) < count:
        verb = generator.choice(VERBS) if generator.random() < 0.5 else None
        events: list[_Event] = []
        for _ in range(generator.randint(1, 3)):
            taken = [event.who.split()[0] for event in events]
            events.append(_draw(generator, kept, verb, taken))
        said = [_say(event, generator) for event in events]
        k = generator.randrange(len(events))
        question, answer = generator.choice(_questions(events[k]))
        if "something" in question or question.startswith("Who"):
            # Another sentence may give the same question another answer.
            alike = [(e.past, e.thing, e.where) for e in events]
            past, thing, where = alike[k]
            if sum(a[0] == past and (a[1] == thing or a[2] == where) for a in alike) > 1:
                continue
        inside = re.search(rf"\b{re.escape(answer)}\b", said[k], re.IGNORECASE)
        if inside is None:
            continue
        start = sum(len(text) + 1 for text in said[:k]) + inside.start()
        found.append(Example(question, " ".join(said), start, start + len(answer)))
    return found


def told(count: int, *, kept: bool = False, generator: random.Random) -> list[tuple[list, list]]:
    """Draw sentences as words with their BIO labels of persons and places."""
    found = []
    while len(found) < count:
        event = _draw(generator, kept)
        places = [event.where] if event.where else []
        found.append(labelled(_say(event, generator), [event.who], places))
    return found


def labelled(text: str, persons: Sequence[str], places: Sequence[str]) -> tuple[list, list]:
    """Return the words of a text and their BIO labels."""
    words = re.findall(r"\w+", text)
    labels = ["O"] * len(words)
    for mark, group in (("PER", persons), ("LOC", places)):
        for name in (each.split() for each in group):
            for i in range(len(words) - len(name) + 1):
                if words[i : i + len(name)] == name:
                    rest = [f"I-{mark}"] * (len(name) - 1)
                    labels[i : i + len(name)] = [f"B-{mark}", *rest]
    return words, labels


def exact(answer: str, wanted: Sequence[str]) -> bool:
    """Return whether an answer is one of those wanted, but for capitals, articles and marks."""
    return any(answers.same(answer, each) for each in wanted)


def point(
    language: pretrained.Pretrained, seed: int, n_train: int, n_test: int, passes: int, count: int
) -> dict:
    """Train a reader on many wordings and names, and return what it answers."""
    reader = answers.train(language, examples(n_train, generator=random.Random(seed)), passes, seed)
    test = examples(n_test, kept=True, generator=random.Random(1000))
    found = {"new": answers.measure(reader, test)["exact"]}
    for way in ("question", "reworded"):
        found[way] = [reader.read(getattr(n, way), n.text).answer for n in NOTES[:count]]
    return found


def run(
    *,
    seeds: tuple[int, ...] = (0, 1),
    n_train: int = 800,
    n_test: int = 60,
    passes: int = 4,
    count: int = len(NOTES),
) -> tuple[dict, None]:
    """Train readers on many wordings and names, and let them answer the notes' questions.

    Args:
        seeds: of the training questions, and of the weights that are drawn.
        n_train: questions to train on.
        n_test: synthetic questions with other names.
        passes: over the training questions.
        count: how many of the notes' questions are asked.

    Returns:
        the log: `read`, for each seed the answers to the notes' questions (`question`), to the
        same `reworded`, and the share of `new` synthetic questions that are answered.
    """
    language = pretrained.load("minilm-l6")
    sizes = {"n_train": n_train, "n_test": n_test, "passes": passes}
    read = [point(language, seed=seed, count=count, **sizes) for seed in seeds]
    return {"seeds": list(seeds), **sizes, "read": read}, None
