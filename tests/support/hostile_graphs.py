"""Hostile and damaged graph files, each with a part of the error message that `kg import` has to print."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HEADER: Final = b"s,p,o,w\n"
GRAPHML: Final = (
    '<graphml><key id="w" for="edge" attr.name="weight"/><graph edgedefault="directed">{}</graph></graphml>'
)
RDF: Final = '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">{}</rdf:RDF>'
AB: Final = '<node id="a" label="a"/><node id="b" label="b"/>'
TEN_GB: Final = 10**10
LAUGHS: Final = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 9))


@dataclass(frozen=True)
class Case:
    file: str
    """Its name, which says the format where the content does not."""
    content: bytes | str | Callable[[Path], object]
    words: str
    """What the error says, beside the path."""
    args: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        path = folder / self.file
        if callable(self.content):
            self.content(path)
        else:
            path.write_bytes(self.content.encode() if isinstance(self.content, str) else self.content)
        return path


def long_line(first: bytes, size: int = TEN_GB) -> Callable[[Path], object]:
    """Write a line without an end as a sparse file, which needs no disk space."""

    def write(path: Path) -> None:
        path.write_bytes(first)
        os.truncate(path, size)

    return write


def bomb(pack: Callable[[bytes], bytes], times: int) -> Callable[[Path], object]:
    """Write `times` MB of one short line, in as many compressed members."""
    return lambda path: path.write_bytes(pack(HEADER) + pack(b"x,y,z,1\n" * 2**17) * times)


def claims(rows: int) -> Callable[[Path], object]:
    """Write a Parquet file whose footer declares more rows than it has."""

    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        held, true = io.BytesIO(), 12_345
        pq.write_table(pa.table({name: [name] * true for name in "spo"}), held, write_statistics=False)
        body = held.getvalue()
        size = int.from_bytes(body[-8:-4], "little")
        footer = body[-8 - size : -8].replace(_varint(2 * true), _varint(2 * rows))
        path.write_bytes(body[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")

    return write


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def parquet(**columns: object) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), path, compression="zstd")

    return write


def _cut(write: Callable[[Path], object]) -> Callable[[Path], object]:
    def cut(path: Path) -> None:
        write(path)
        os.truncate(path, path.stat().st_size * 2 // 3)

    return cut


def _array(path: Path) -> None:
    import numpy as np

    np.save(path.with_suffix(""), np.array([{}], object), allow_pickle=True)


LINKS: Final = {"directed": True, "nodes": [{"id": "a"}, {"id": "b"}], "links": [{"source": "a", "target": "b"}]}
CONCEPT: Final = "/a/x\t/r/{}\t/c/en/{}\t/c/en/{}\t{}\n"
NT: Final = b"<http://a/b> <http://a/c> <http://a/d> .\n"
DOCTYPE: Final = "declares a document type or entities"

CASES: Final[Mapping[str, Case]] = {
    # Bombs
    "laughs, GraphML": Case("g.graphml", f"<!DOCTYPE g [{LAUGHS}]><graphml>&l8;</graphml>", DOCTYPE),
    "laughs, RDF": Case("g.rdf", f"<!DOCTYPE g [{LAUGHS}]>{RDF.format('&l8;')}", DOCTYPE),
    "a file as an entity": Case(
        "g.graphml", '<!DOCTYPE g [<!ENTITY x SYSTEM "file:///etc/passwd">]><graphml/>', DOCTYPE
    ),
    "gzip bomb": Case("g.csv.gz", bomb(gzip.compress, 10_000), "decompresses to more than 100 times its size"),
    "bzip2 bomb": Case("g.csv.bz2", bomb(bz2.compress, 10_000), "decompresses to more than 100 times its size"),
    "a billion rows": Case("g.parquet", claims(10**9), "claims 1,000,000,000 rows"),
    "rows that are not there": Case("g.parquet", claims(90_000_000), "g.parquet"),
    "a long text, often": Case(
        "g.parquet", lambda path: _repeated_text(path), "a name of 5,000,000 bytes; the limit is 1000 characters"
    ),
    "deep JSON": Case("g.json", '{"nodes": ' + "[" * 500_000, "g.json is not valid JSON: it is nested too deeply"),
    "deep XML": Case("g.graphml", "<graphml>" + "<a>" * 5_000, "nests elements 65 deep"),
    "deep Turtle": Case("g.ttl", b"@prefix a: <http://a/> .\na:b a:c " + b"( " * 600_000, "nested brackets"),
    "deep Turtle, between comments": Case(
        "g.ttl", b"@prefix a: <http://a/> .\na:b a:c " + b'( "\\")" # x.\n' * 60_000, "nested brackets"
    ),
    "deep JSON-LD": Case("g.jsonld", '{"@graph": ' + "[" * 500_000, "is not valid RDF"),
    # A line of 10 GB
    "long line, CSV": Case("g.csv", long_line(HEADER + b"x,y,z,1\n"), "line 3 has more than"),
    "long first line": Case("g.csv", long_line(b"s,p,o"), "line 1 has more than 65,536 bytes"),
    "long line, JSON lines": Case("g.jsonl", long_line(b'{"s":"x","p":"y","o":"z"}\n{"s":"'), "line 2 has more than"),
    "long line, N-Triples": Case("g.nt", long_line(NT + b"<http://a/"), "g.nt"),
    "long text, Turtle": Case("g.ttl", long_line(b'@prefix a: <http://a/> .\na:b a:c """'), "g.ttl"),
    "long text, JSON-LD": Case("g.jsonld", long_line(b'{"@id": "'), "g.jsonld"),
    "long text, node-link": Case("g.json", long_line(b'{"nodes": [{"id": "'), "bytes of JSON"),
    "long text, GraphML": Case(
        "g.graphml", lambda path: _endless_text(path, b"<graphml><graph>"), "bytes in one element"
    ),
    "long text, RDF/XML": Case("g.rdf", lambda path: _endless_text(path, RDF[:-12].encode()), "bytes in one element"),
    "long name": Case("g.csv", HEADER + b"x" * 2_000 + b",y,z,1\n", "line 2: the node 'xxxx"),
    # Weights
    "not a number": Case("g.csv", HEADER + b"x,y,z,much\n", "line 2: the weight 'much' is not a number"),
    "NaN, CSV": Case("g.csv", HEADER + b"x,y,z,1\nx,y,z,nan\n", "line 3: the weight nan is not usable"),
    "negative, CSV": Case("g.csv", HEADER + b"x,y,z,-1\n", "line 2: the weight -1.0 is not usable"),
    "NaN, JSON lines": Case("g.jsonl", '{"s":"x","p":"y","o":"z","w":NaN}', "line 1: the weight nan is not usable"),
    "NaN, ConceptNet": Case("g.tsv", CONCEPT.format("Causes", "a", "b", '{"weight": NaN}'), "line 1: the weight nan"),
    "NaN, Parquet": Case("g.parquet", parquet(s=["x"], p=["y"], o=["z"], w=[float("nan")]), "row 1: the weight nan"),
    "NaN, node-link": Case(
        "g.json", json.dumps(LINKS | {"links": [{"source": "a", "target": "b", "weight": float("nan")}]}), "weight nan"
    ),
    # Order and ids
    "no such node, GraphML": Case(
        "g.graphml", GRAPHML.format('<node id="a"/>\n<edge source="a" target="b"/>'), "line 2: the edge ends at 'b'"
    ),
    "one id twice, GraphML": Case(
        "g.graphml", GRAPHML.format(AB + "\n" + AB), "line 2: the node 'a' is declared twice"
    ),
    "a circle, CSV": Case(
        "g.csv", b"s,p,o\na,causes,b\nc,requires,a\na,requires,b\nb,requires,c\n", "REQUIRES edges form a cycle"
    ),
    "a circle, ConceptNet": Case(
        "g.tsv",
        "".join(CONCEPT.format("HasPrerequisite", *pair, '{"weight": 1}') for pair in ("ab", "ba")),
        "g.tsv: REQUIRES edges form a cycle: a → b → a",
        ("--languages", "en"),
    ),
    "needs itself": Case("g.csv", b"s,p,o\na,requires,a\n", "g.csv: REQUIRES edges form a cycle: a → a"),
    # Half a file
    "half a gzip": Case("g.csv.gz", gzip.compress(HEADER + os.urandom(0) + b"x,y,z,1\n" * 999)[:-9], "is truncated"),
    "a wrong gzip": Case("g.csv.gz", gzip.compress(HEADER)[:-8] + b"\0" * 8, "cannot be decompressed"),
    "half a Parquet": Case(
        "g.parquet", _cut(parquet(s=["x"] * 99, p=["y"] * 99, o=["z"] * 99)), "check whether it is truncated"
    ),
    "half a GraphML": Case("g.graphml", "<graphml><graph>", "line 1 is not valid GraphML: no element found"),
    "half an N-Triples": Case("g.nt", NT + NT[:-9], "line 2 is not valid RDF"),
    "half a Turtle": Case("g.ttl", "@prefix a: <http://a/> .\na:b a:c", "is not valid RDF"),
    "half a row": Case("g.csv", HEADER + b"x,y,z,1\nx,y", "line 3 has 2 columns instead of 4"),
    "an open quote": Case("g.csv", HEADER + b'x,y,z,1\n"x,y,z,1\n', "line 3 has 1 columns"),
    "a longer open quote": Case("g.csv", HEADER + b'"x,y,z,1\n' + b"x,y,z,1\n" * 600_000, "line 2 opens a quote"),
    "nothing": Case("g.csv", b"", "has the columns none"),
    "a header": Case("g.csv", HEADER, "no edges to import"),
    # Texts
    "Latin-1, CSV": Case("g.csv", HEADER + b"x,y,z,1\n\xe9t\xe9,y,z,1\n", "line 3 is not UTF-8 (byte 0xe9)"),
    "Latin-1, GraphML": Case(
        "g.graphml", GRAPHML.format('<node id="\xe9"/>').encode("latin-1"), "line 1 is not valid GraphML"
    ),
    "Latin-1, N-Triples": Case("g.nt", NT.replace(b"d", b"\xe9"), "line 1 is not valid RDF: "),
    "bytes, Parquet": Case("g.parquet", parquet(s=[b"\xe9"], p=[b"y"], o=[b"z"]), "row 1 is not UTF-8 (byte 0xe9)"),
    "UTF-16": Case("g.csv", "s,p,o\nx,y,z\n".encode("utf-16"), "is in UTF-16, which is not supported"),
    "half a letter": Case(
        "g.jsonl", r'{"s":"\ud83d","p":"y","o":"z"}', "line 1: the node '\\ud83d' is not valid Unicode"
    ),
    "no name": Case("g.csv", HEADER + b",y,z,1\n", "line 2: a node without a name"),
    # No graphs
    "a pickle": Case("g.csv", pickle.dumps([1]), "is a pickle, which is not supported"),
    "an array of objects": Case("g.npy", _array, "is a numpy array, which is not supported"),
    "an archive": Case("g.csv", b"PK\x03\x04" + bytes(99), "is a zip archive, which is not supported"),
    "something else": Case("g.txt", "Once upon a time", "is unknown; use --format"),
    "no lists": Case("g.json", '{"nodes": 3}', "has no lists `nodes` and `edges`"),
    "a node without id": Case("g.json", '{"nodes": [{}], "edges": []}', "node 1: the id is None"),
    "no Parquet": Case("g.parquet", b"PAR1" + b"x" * 50 + b"PAR1", "is not a readable Parquet file"),
    "a remote context": Case("g.jsonld", '{"@context": "http://localhost/x", "@id": "http://a/b"}', "is not valid RDF"),
    "a pipe": Case("g.csv", os.mkfifo, "it is not a regular file"),
    "a folder": Case("g", lambda path: path.mkdir(), "is a folder that `kg import` did not write"),
}


def _repeated_text(path: Path) -> None:
    import pyarrow as pa

    long = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), pa.array(["x" * 5_000_000]))
    parquet(s=long, p=long, o=long)(path)


def _endless_text(path: Path, first: bytes, size: int = 8 * 2**20) -> None:
    """Return letters, because XML allows no null bytes; more than any reader reads."""
    path.write_bytes(first + b"x" * size)
