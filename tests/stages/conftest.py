"""A small corpus of real sentences, the same on every machine, and a way to run the line on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The Declaration of Independence (1776), the Gettysburg Address (1863), the beginnings of Alice's
# Adventures in Wonderland (1865) and Moby-Dick (1851): public domain.
SENTENCES = """
When in the Course of human events, it becomes necessary for one people to dissolve the political bands which have connected them with another, a decent respect to the opinions of mankind requires that they should declare the causes which impel them to the separation.
We hold these truths to be self-evident, that all men are created equal, that they are endowed by their Creator with certain unalienable Rights, that among these are Life, Liberty and the pursuit of Happiness.
That to secure these rights, Governments are instituted among Men, deriving their just powers from the consent of the governed.
Prudence, indeed, will dictate that Governments long established should not be changed for light and transient causes.
But when a long train of abuses and usurpations, pursuing invariably the same Object evinces a design to reduce them under absolute Despotism, it is their right, it is their duty, to throw off such Government.
The history of the present King of Great Britain is a history of repeated injuries and usurpations.
To prove this, let Facts be submitted to a candid world.
He has refused his Assent to Laws, the most wholesome and necessary for the public good.
He has dissolved Representative Houses repeatedly, for opposing with manly firmness his invasions on the rights of the people.
He has plundered our seas, ravaged our Coasts, burnt our towns, and destroyed the lives of our people.
In every stage of these Oppressions We have Petitioned for Redress in the most humble terms.
Our repeated Petitions have been answered only by repeated injury.
We must, therefore, acquiesce in the necessity, which denounces our Separation.
And for the support of this Declaration, we mutually pledge to each other our Lives, our Fortunes and our sacred Honor.
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and dedicated to the proposition that all men are created equal.
Now we are engaged in a great civil war, testing whether that nation, or any nation so conceived and so dedicated, can long endure.
We are met on a great battle-field of that war.
It is altogether fitting and proper that we should do this.
The brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or detract.
The world will little note, nor long remember what we say here, but it can never forget what they did here.
It is for us the living, rather, to be dedicated here to the unfinished work which they who fought here have thus far so nobly advanced.
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do.
Once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it.
So she was considering in her own mind, as well as she could, for the hot day made her feel very sleepy and stupid, whether the pleasure of making a daisy-chain would be worth the trouble of getting up and picking the daisies.
There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the Rabbit say to itself.
In another moment down went Alice after it, never once considering how in the world she was to get out again.
The rabbit-hole went straight on like a tunnel for some way, and then dipped suddenly down.
Either the well was very deep, or she fell very slowly, for she had plenty of time as she went down to look about her and to wonder what was going to happen next.
First, she tried to look down and make out what she was coming to, but it was too dark to see anything.
Down, down, down.
Would the fall never come to an end?
Call me Ishmael.
Some years ago, never mind how long precisely, having little or no money in my purse, and nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of the world.
It is a way I have of driving off the spleen and regulating the circulation.
Whenever I find myself growing grim about the mouth; whenever it is a damp, drizzly November in my soul, then, I account it high time to get to sea as soon as I can.
This is my substitute for pistol and ball.
With a philosophical flourish Cato throws himself upon his sword; I quietly take to the ship.
There is nothing surprising in this.
If they but knew it, almost all men in their degree, some time or other, cherish very nearly the same feelings towards the ocean with me.
""".strip().split("\n")


def documents(count: int, first: int = 0) -> list[list[str]]:
    """Document d has 4 + (5d mod 23) sentences; which ones follows from d alone."""
    made = []
    for d in range(first, first + count):
        length = 4 + (5 * d) % 23
        made.append([SENTENCES[(11 * d + (3 + d % 5) * s) % len(SENTENCES)] for s in range(length)])
    return made


def write_sentences(path: Path, docs: Sequence[Sequence[str]]) -> None:
    """google-research/bert's format."""
    path.write_text("\n\n".join("\n".join(doc) for doc in docs) + "\n", encoding="utf-8")


SMALL = (
    "corpus=sentences",
    "corpus.shards=3",
    "corpus.validation_share=0.3",
    "vocab.size=600",
    "pairs.max_seq_length=64",
    "model=tiny",
    "model.hidden_size=32",
    "train.steps=30",
    "train.global_batch_size=8",
    "train.checkpoint_every_steps=10",
    "train.evaluate_every_steps=20",
    "train.log_every_steps=5",
    "evaluate.sentences=['Call me [MASK].']",
    "seed=7",
)
"""Overrides of a run that takes seconds a stage."""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of documents, 240 in all."""
    folder = tmp_path_factory.mktemp("corpus")
    write_sentences(folder / "a.txt", documents(150))
    write_sentences(folder / "b.txt", documents(90, first=150))
    return folder


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def clozeline(corpus: Path, tmp_path: Path) -> Run:
    """Runs `clozeline ...` in `tmp_path` on the small corpus; output is text."""

    def run(*words: str, cwd: Path = tmp_path, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline", words[0], *words[1:]]
        if words[0] in ("run", "plan", "status", "why"):
            command += [*SMALL, f"corpus.paths=['{corpus}']"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if check is not None:
            assert done.returncode == check, f"{done.stdout}\n{done.stderr}"
        return done

    return run
