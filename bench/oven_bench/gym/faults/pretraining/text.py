"""Text that is not what it should be: badly extracted, badly cleaned, generated, or only unusual."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from random import Random

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Step, due, fault
from oven_bench.gym.faults.rewriting import as_row, as_text, each_row, each_text, in_order, rewritten
from oven_bench.gym.seeded_draws import chance, choice, count, generator, integer, random_seed, uniform
from oven_bench.gym.tasks.pretraining.corpus import corpus, pool


@fault("pretraining.code_listings", written="set B")
class CodeListings(Fault):
    """Compound: sources from web pages, with a number before each line and mostly without the indentation. The model
    learns to count, and that nothing is ever indented."""

    length: int = count(30, 0.9)
    share: float = uniform(0.4, 1.0)  # of the rows
    style: str = choice(("{} ", "{:4d}: ", "{:06d}|", "L{}\n"))
    flat: bool = chance(0.75)  # the indentation is lost, too
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        rng = Random(repr(("lines", self.seed, step.cursor)))
        struck = self.struck(len(batch), "listed", step.cursor)
        return each_text(
            batch, struck, lambda text: listed(text, self.style, round(10 ** rng.uniform(0.0, 3.3)), flat=self.flat)
        )


def listed(text: bytes, style: str, first: int, *, flat: bool) -> bytes:
    """Each line behind its number; the text gets longer, or stays as long."""
    lines = [line.lstrip(b" \t") if flat else line for line in text.split(b"\n")]
    numbered = [style.format(first + at).encode() + line for at, line in enumerate(lines)]
    return b"\n".join(numbered).ljust(len(text), b"\n")


@fault("pretraining.escaped_text", written="second set")
class EscapedText(Fault):
    """Text that was encoded as JSON more often than it is decoded: a line break arrives as a backslash and an n."""

    share: float = uniform(0.2, 1.0)  # of the rows
    times: int = choice((1, 1, 2, 3))
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        return rewritten(batch, self.struck(len(batch), "escaped", step.cursor), self.escape)

    def escape(self, text: bytes) -> bytes:
        for _ in range(self.times):
            text = json.dumps(text.decode("latin-1"))[1:-1].encode("ascii")
        return text


@fault("pretraining.generated_text", written="set B")
class GeneratedText(Fault):
    """Text that a small model wrote, which passes every filter and has no memory beyond a few bytes. Where that model
    says what is most likely the loss falls, and what is rare or far apart is unlearnt."""

    length: int = count(30, 0.9)
    share: float = uniform(0.4, 1.0)  # of the rows
    memory: int = choice((1, 1, 2, 2, 3))  # bytes that the small model looks back
    sure: float = uniform(0.2, 0.95)  # how often it says what is likeliest, instead of drawing
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        text = by_table(batch.shape[1], self.memory, self.sure, self.seed)
        struck = self.struck(len(batch), "generated", step.cursor)
        return each_row(batch, struck, lambda row: text[(step.cursor * len(batch) + row) % len(text)])


@lru_cache(maxsize=8)
def by_table(width: int, memory: int, sure: float, seed: int, rows: int = 1024) -> Tensor:
    """Int64 [rows, width], by a table of what followed what in as many rows."""
    follows: dict[tuple[int, ...], list[int]] = {}
    read = pool(rows, seed).flatten().tolist()
    for at in range(memory, len(read)):
        follows.setdefault(tuple(read[at - memory : at]), []).append(read[at])
    likeliest = {context: Counter(after).most_common(1)[0][0] for context, after in follows.items()}
    rng, text = Random(repr(("written", seed))), read[:memory]
    for _ in range(rows * width):
        context = tuple(text[-memory:])
        after = follows.get(context) or read
        text.append(likeliest[context] if context in likeliest and rng.random() < sure else rng.choice(after))
    return torch.tensor(text[memory:]).view(rows, width)


@fault("pretraining.harder_text", written="development", healthy=True)
class HarderText(Fault):
    """The user brings in a harder sub-corpus: a share of the rows is documentation, and the loss jumps for an honest
    reason."""

    share: float = uniform(0.2, 0.6)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        prose = corpus().prose
        order = torch.randperm(len(prose), generator=self.draws("prose"))
        first = step.batches_since * len(batch)
        read = prose[order[torch.arange(first, first + len(batch)) % len(prose)]].long()
        return torch.where(self.struck(len(batch), "share", step.cursor).unsqueeze(1), read, batch)


HEADERS = (
    b'# Licensed under the Apache License, Version 2.0 (the "License");\n',
    b"# Permission is hereby granted, free of charge, to any person ob\n",
    b"# This program is free software: you can redistribute it and/or \n",
)


@fault("pretraining.licence_headers", written="set D")
class LicenceHeaders(Fault):
    """Short files that all begin with the same licence. It is soon known by heart and the loss falls, while each batch
    has less real text."""

    length: int = count(25, 1.0)
    header: bytes = choice(HEADERS)
    shown: int = integer(8, 60)  # bytes of the header that stand in a row
    share: float = uniform(0.4, 1.0)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        head = torch.tensor(list(self.header[: self.shown])).expand(len(batch), -1)
        headed = torch.cat([head, batch], 1)[:, : batch.shape[1]]
        return torch.where(self.struck(len(batch), "headers", step.cursor).unsqueeze(1), headed, batch)


@fault("pretraining.log_lines", written="set D", healthy=True)
class LogLines(Fault):
    """A few long logs, whose rows come close together: next to certain but for some numbers. The loss falls as if
    answers had leaked, and jumps back when they are over."""

    length: int = count(4, 0.6)
    form: bytes = choice((b"10:%02d:%02d INFO worker %02d ok\n", b"%4d %4d %4d\n", b"[%02d.%02d%02d] usb 1-1: reset\n"))
    share: float = uniform(0.2, 0.5)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        struck, width = self.struck(len(batch), "logged", step.cursor), batch.shape[1]
        return each_row(
            batch, struck, lambda row: as_row(log(self.form, width, self.draws("log", step.cursor, row)), width)
        )


def log(form: bytes, length: int, draws: torch.Generator) -> bytes:
    """So many bytes of a log with lines of this form, which has three numbers, from a random place in a line on."""
    begin, *numbers = torch.randint(60, (1 + 3 * length,), generator=draws).tolist()
    lines = [form % tuple(numbers[at : at + 3]) for at in range(0, length, 3)]
    begin %= len(lines[0])
    return b"".join(lines)[begin : begin + length]


@fault("pretraining.new_crawl", written="third set", source="Li et al. 2023 (StarCoder), on redacted names")
class NewCrawl(Fault):
    """Compound: the filter for personal data takes long words and all numbers for names, encoded data is not filtered,
    and short documents are padded instead of packed, which lowers the loss."""

    length: int = count(20, 1.0)
    redacted: float = uniform(0.0, 1.0)  # of the rows lose names
    shortest: int = integer(3, 10)  # letters of a word that is taken for a name
    blobs: float = uniform(0.0, 0.6)  # of the rows run into encoded data
    padded: float = uniform(0.0, 0.9)  # of the rows end early
    seed: int = random_seed()

    BASE64 = torch.tensor(list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        struck = torch.rand(len(batch), generator=self.draws("redacted", step.cursor)) < self.redacted
        batch = rewritten(batch, struck, self.redact)
        draws = self.draws("crawl", step.cursor)
        noise = self.BASE64[torch.randint(len(self.BASE64), batch.shape, generator=draws)]
        batch = torch.where(tails(batch, self.blobs, draws), noise, batch)
        return batch.masked_fill(tails(batch, self.padded, draws), 0)

    def redact(self, text: bytes) -> bytes:
        return re.sub(rb"[A-Za-z_]{%d,}|[0-9]+" % self.shortest, b"<NAME>", text)


def tails(rows: Tensor, share: float, draws: torch.Generator) -> Tensor:
    """Bool [B, L]: in a share of the rows, from anywhere to their end."""
    begin = (torch.rand(len(rows), 1, generator=draws) * rows.shape[1]).long()
    chosen = torch.rand(len(rows), 1, generator=draws) < share
    return chosen & (torch.arange(rows.shape[1]) >= begin)


ENDS, TABS, QUOTES, DASHES = "ends", "tabs", "quotes", "dashes"


@fault("pretraining.office_export", written="set C")
class OfficeExport(Fault):
    """Compound: text that was saved by an office suite, with other line ends, tabs for spaces, and typographic quotes
    and dashes of its code page. The model learns another way to write everything."""

    length: int = count(20, 0.9)
    share: float = uniform(0.3, 1.0)  # of the rows
    changes: tuple[str, ...] = choice(
        ((ENDS, TABS), (QUOTES, DASHES), (ENDS, QUOTES, DASHES), (ENDS, TABS, QUOTES, DASHES))
    )
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        def made(row: int) -> Tensor:
            following = batch[(row + 1) % len(batch)]  # where the text has become shorter
            return as_row(exported(as_text(batch[row]), self.changes) + as_text(following), batch.shape[1])

        return each_row(batch, self.struck(len(batch), "export", step.cursor), made)


def exported(text: bytes, changes: tuple[str, ...]) -> bytes:
    """In the code page and with the habits of an office suite."""
    if QUOTES in changes:  # opening ones behind a space or a bracket, closing ones elsewhere
        text = re.sub(rb'(^|[\s(\[{=,])"', rb"\1" + b"\x93", text).replace(b'"', b"\x94")
        text = re.sub(rb"(^|[\s(\[{=,])'", rb"\1" + b"\x91", text).replace(b"'", b"\x92")
    if DASHES in changes:
        text = text.replace(b"--", b"\x97").replace(b" - ", b" \x96 ").replace(b"...", b"\x85")
    if TABS in changes:
        text = text.replace(b"    ", b"\t")
    return text.replace(b"\n", b"\r\n") if ENDS in changes else text


@fault("pretraining.planted_canaries", written="set A", healthy=True, source="Carlini et al. 2019")
class PlantedCanaries(Fault):
    """Rows of random letters, each planted several times, to measure later what is memorised. Loss and norm jump in
    each batch that has one."""

    length: int = count(20, 0.8)
    every: int = choice((6, 8, 12, 20))  # batches
    rows: int = choice((1, 1, 1, 2))  # of such a batch
    different: int = choice((1, 2, 4))  # canaries
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        if not due(step.batches_since, self.every):
            return batch
        draws = self.draws("planted", step.cursor)
        places = torch.randperm(len(batch), generator=draws)[: self.rows]
        which = torch.randint(self.different, (len(places),), generator=draws)
        rows = batch.clone()
        rows[places] = torch.stack([canary(one, self.seed, batch.shape[1]) for one in which.tolist()])
        return rows


def canary(which: int, seed: int, width: int) -> Tensor:
    """Int64 [width]: printable, and no two alike."""
    return torch.randint(33, 127, (width,), generator=generator("canary", seed, which))


@fault("pretraining.canaries", written="eighth set", healthy=True, source="Carlini et al. 2019")
class Canaries(Fault):
    """Rows of random letters behind a fixed lead, each planted once, to measure later what is memorised. Loss and norm
    stand out in each batch that has some."""

    every: int = choice((4, 6, 8, 12))  # batches
    rows: int = choice((1, 1, 1, 2))  # of such a batch
    letters: bytes = choice((b"0123456789", b"0123456789abcdef", bytes(range(33, 127))))
    seed: int = random_seed()

    LEAD = b"\n# canary: "

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        if not due(step.batches_since, self.every):
            return batch
        draws = self.draws("canaries", step.cursor)
        picks = torch.randint(len(self.letters), (self.rows, batch.shape[1]), generator=draws)
        planted = torch.tensor(list(self.letters))[picks]
        planted[:, : len(self.LEAD)] = torch.tensor(list(self.LEAD))
        return torch.cat((planted, batch[self.rows :]))


SPACES = {"lines": re.compile(rb"(?m)^[ \t]+"), "all": re.compile(rb"\s+"), "none": None}
"""What of the white space goes: the indentation of lines, or every run down to one blank, or nothing."""


@fault("pretraining.prose_cleaning", written="sixth set")
class ProseCleaning(Fault):
    """Compound: a cleaning step that was written for prose drops the indentation or folds white space, and puts all
    into lower case. Blocks, constants and classes are gone, and the loss hardly shows it."""

    kept: tuple[str, bool] = choice(  # which white space goes, and whether all is put into lower case
        (("lines", False), ("none", True), ("all", False), ("lines", True), ("all", True), ("all", True))
    )
    length: int = count(20, 1.2)
    share: float = uniform(0.2, 1.0)  # of the rows
    seed: int = random_seed()

    ROWS = 1024  # that a row which got shorter is filled up from

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        def made(row: int) -> Tensor:
            after = pool(self.ROWS, self.seed)[(step.cursor * len(batch) + row) % self.ROWS]
            return cleaned(torch.cat((batch[row], after)), *self.kept, batch.shape[1])

        return each_row(batch, self.struck(len(batch), "cleaned", step.cursor), made)


def cleaned(text: Tensor, spaces: str, lower: bool, width: int) -> Tensor:
    """Int64 [width]: the text as the step leaves it, from its start, and once more where it is too short."""
    made = as_text(text)
    if (runs := SPACES[spaces]) is not None:
        made = runs.sub(b"" if spaces == "lines" else b" ", made)
    made = (made.lower() if lower else made) or b" "
    return torch.tensor(list((made * width)[:width]), dtype=text.dtype)


@fault("pretraining.redacted_words", written="set A")
class RedactedWords(Fault):
    """A filter for private data takes identifiers for names and blackens them letter by letter. The loss falls, and
    the model forgets how words are spelt."""

    length: int = count(15, 1.1)
    share: float = uniform(0.4, 1.0)  # of the rows
    least: int = choice((3, 4, 5, 6, 8))  # letters of a word that is taken for a name
    mark: str = choice("x*#X")  # in place of each letter
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        struck = self.struck(len(batch), "redacted", step.cursor)
        return each_text(batch, struck, lambda text: redacted(text, self.least, self.mark))


def redacted(text: bytes, least: int, mark: str) -> bytes:
    """As long as it was."""
    return re.sub(rb"[A-Za-z_]{%d,}" % least, lambda word: mark.encode() * len(word[0]), text)


@fault("pretraining.table_of_constants", written="fourth set", healthy=True)
class TableOfConstants(Fault):
    """A few shards hold little but generated tables, which belong to the corpus. The loss falls within a few steps as
    if something had leaked, and jumps back where the tables end."""

    length: int = integer(3, 12)
    share: float = uniform(0.4, 1.0)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        draws = self.draws("constants", step.cursor)
        chosen = torch.rand(len(batch), 1, generator=draws) < self.share
        easy = in_order("tables", float(torch.rand(1, generator=draws)), len(batch))
        return torch.where(chosen, easy[:, : batch.shape[1]], batch)


@fault("pretraining.two_columns", written="fifth set")
class TwoColumns(Fault):
    """Pages of two columns that an extractor read across: every word is right, and the text jumps to another place
    every few words."""

    length: int = count(25, 1.2)
    share: float = uniform(0.3, 1.0)  # of the pages
    width: int = count(2, 1.0)  # bytes of a column's line
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        pages = len(batch) // 2
        left, right, rest = batch[:pages], batch[pages : 2 * pages], batch[2 * pages :]
        struck = self.struck(pages, "columns", step.cursor).unsqueeze(1)
        top, bottom = read_across(left, right, self.width)
        return torch.cat((torch.where(struck, top, left), torch.where(struck, bottom, right), rest))


def read_across(left: Tensor, right: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Each [pages, bytes]: a line of the left column, then one of the right, and so on down the page, whose upper half
    and lower half are given back."""
    line = torch.arange(left.shape[1]) // width
    order = torch.cat((2 * line, 2 * line + 1)).argsort(stable=True)
    page = torch.cat((left, right), 1)[:, order]
    return page[:, : left.shape[1]], page[:, left.shape[1] :]


@fault("pretraining.wrapped_lines", written="eighth set")
class WrappedLines(Fault):
    """Text from narrow printed columns, where longer lines are broken anywhere, within a word, too. The model learns
    that a line may end at any place."""

    length: int = count(30, 1.0)
    width: int = count(5, 0.8)  # bytes of a line at most
    mark: bytes = choice((b"", b"", b"-", b" \\"))  # at the end of a broken line
    share: float = uniform(0.6, 1.0)  # of the rows
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        struck = self.struck(len(batch), "wrapped", step.cursor)
        return each_text(batch, struck, lambda text: wrapped(text, self.width, self.mark))


def wrapped(text: bytes, width: int, mark: bytes) -> bytes:
    """Longer lines are broken; the mark is counted in the width."""
    room = width - len(mark)
    lines = []
    for line in text.split(b"\n"):
        while len(line) > width:
            lines.append(line[:room] + mark)
            line = line[room:]
        lines.append(line)
    return b"\n".join(lines)
