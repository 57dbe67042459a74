"""Requests to the knowledge graph, and its answers. None of them stands in the log.

The rules of oven_core.protocol.messages hold for them, too.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.messages import Confidence, Message, Real, is_default

Phase: TypeAlias = Literal["", "pretrain", "sft", "grpo"]
"""What kind of training a run is; empty where nobody said."""


class Symptom(BaseModel):
    """What was seen, by its node in the knowledge graph."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    severity: Confidence = 1.0


class EvidencePath(BaseModel):
    """A way through the knowledge graph that speaks for or against a change."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    edges: tuple[str, ...] = Field(description="edge ids, in order")
    text: str = Field(description="for people, e.g. loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr")
    grade: Literal["A", "B", "C", "D"] = Field(description="of its weakest edge")
    sources: tuple[str, ...] = ()


class DiagnoseRequest(Message):
    """agents → kg, as a request on `oven.kg.diagnose`."""

    type: Literal["DiagnoseRequest"] = "DiagnoseRequest"
    phase: Phase = ""
    symptoms: tuple[Symptom, ...] = Field(min_length=1, max_length=64)
    actuators: tuple[str, ...] = Field(default=(), description="what the run announces")
    metrics: tuple[str, ...] = Field(default=(), description="what the run publishes")
    held_out: bool = Field(default=False, description="the run has a held-out metric")
    k: int = Field(default=5, ge=1, le=50, description="remedies wanted")


class Cause(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    p: Real = Field(description="posterior given the symptoms (noisy-OR); a rank, not a calibrated probability")


class Remedy(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    changes: tuple[str, ...] = Field(
        default=(), description='what it stands for, all of it together, e.g. "optimizer.lr_scale:down"; empty: advice'
    )
    score: Real = Field(description="weight of evidence for it, as log-odds within ±2; ranks, and promises nothing")
    unmet: tuple[str, ...] = Field(default=(), description="preconditions that this run does not meet")
    paths: tuple[EvidencePath, ...] = ()


class Diagnosis(Message):
    """kg → agents. Causes and remedies, most likely first."""

    type: Literal["Diagnosis"] = "Diagnosis"
    graph: str = Field(description="SHA-256 of the graph that answered")
    causes: tuple[Cause, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    unknown: tuple[str, ...] = Field(default=(), description="symptoms that the graph does not know")


class JudgeRequest(Message):
    """agents → kg, as a request on `oven.kg.judge`."""

    type: Literal["JudgeRequest"] = "JudgeRequest"
    phase: Phase = ""
    changes: str = Field(description='actuator and direction, "optimizer.lr_scale:down" or "run.rollback"')
    symptoms: tuple[Symptom, ...] = Field(default=(), max_length=64)
    actuators: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    held_out: bool = False
    in_flight: tuple[str, ...] = Field(default=(), max_length=64, description="changes under way, spelt alike")


class Judgement(Message):
    """kg → agents. `barred`: a precondition is unmet, or it contradicts what is under way; `objections` says which."""

    type: Literal["Judgement"] = "Judgement"
    graph: str
    verdict: Literal["support", "neutral", "object", "barred"]
    log_odds: Real = Field(description="within ±2")
    supports: tuple[EvidencePath, ...] = ()
    objections: tuple[EvidencePath, ...] = ()


class GraphInfoRequest(Message):
    """anyone → kg, as a request on `oven.kg.info`."""

    type: Literal["GraphInfoRequest"] = "GraphInfoRequest"


class GraphInfo(Message):
    """kg → asker. `contradictions` and `requirements` become the run's rules before it starts."""

    type: Literal["GraphInfo"] = "GraphInfo"
    graph: str
    nodes: dict[str, int] = Field(description="kind → count")
    edges: dict[str, int] = Field(description="relation → count")
    grades: dict[str, int] = Field(default_factory=dict, description="grade → edges")
    isolated: Real = Field(description="share of nodes without an edge")
    large: str = Field(
        default="",
        exclude_if=is_default,
        description="SHA-256 of the large graph that answers query, curriculum and token_prior; absent: this one does",
    )
    contradictions: tuple[tuple[str, str], ...] = ()
    requirements: tuple[tuple[str, str], ...] = Field(
        default=(), description='change → "actuator:NAME", "metric:PATTERN" or "held_out"'
    )


class Mastery(BaseModel):
    """How often a topic was answered right. Part of CurriculumRequest."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    topic: str = Field(min_length=1, max_length=200)
    successes: Real = Field(ge=0, allow_inf_nan=False, description="a count; fractions if older answers weigh less")
    failures: Real = Field(ge=0, allow_inf_nan=False)


class CurriculumRequest(Message):
    """agents → kg, as a request on `oven.kg.curriculum`."""

    type: Literal["CurriculumRequest"] = "CurriculumRequest"
    mastery: tuple[Mastery, ...] = Field(min_length=1, max_length=1024)
    prerequisites: tuple[tuple[str, str], ...] = Field(
        default=(), max_length=4096, description="(topic, what it builds on), beside those that the graph knows"
    )
    threshold: Confidence = Field(
        default=0.5, description="what the lower bound of a prerequisite's mastery must reach"
    )
    floor: Confidence = Field(default=0.05, description="share that is spread evenly, so that every topic is tried")


class UnmetPrerequisite(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    topic: str
    path: tuple[str, ...] = Field(description="from the topic to what is not mastered yet, both ends in it")
    bound: Real = Field(description="lower bound (5 %) of its mastery, 0..1")


class Curriculum(Message):
    """kg → agents. Shares of the topics asked for; they sum to 1."""

    type: Literal["Curriculum"] = "Curriculum"
    graph: str
    weights: dict[str, Real]
    unmet: tuple[UnmetPrerequisite, ...] = ()
    known: int = Field(
        default=0,
        ge=0,
        description="prerequisites that are known among the topics asked for, direct or not, those that were sent "
        "included",
    )


class TokenPriorRequest(Message):
    """learner → kg, as a request on `oven.kg.token_prior`."""

    type: Literal["TokenPriorRequest"] = "TokenPriorRequest"
    method: Literal["unigram", "kg"] = "unigram"
    vocabulary: tuple[str, ...] = Field(
        default=(),
        max_length=300_000,
        description="the tokens' texts by id; for `kg`, which looks its labels up in them",
    )
    counts: tuple[int, ...] = Field(
        default=(), max_length=300_000, description="how often each token stands in the corpus; for `unigram`"
    )
    vocabulary_sha: str = Field(
        default="",
        max_length=64,
        description="SHA-256 of the vocabulary; needed where it is not sent, and compared with it where it is",
    )
    k: int = Field(default=358, ge=1, le=1024, description="tokens in it; fewer where a kilobyte does not hold them")
    upload: str = Field(
        default="",
        max_length=64,
        exclude_if=is_default,
        description="id of a request that was uploaded in parts: that one is answered, and no other field here counts",
    )


class RequestPart(Message):
    """learner → kg, as a request on `oven.kg.upload`: a part of a TokenPriorRequest that one message of the bus does
    not hold. The parts together are its JSON, compressed with zlib. TokenPriorRequest.upload then names it."""

    type: Literal["RequestPart"] = "RequestPart"
    upload: str = Field(
        pattern=r"^[0-9a-f]{32}$", description="drawn by the asker; the same for all parts of a request"
    )
    part: int = Field(ge=0, description="which one, from 0")
    parts: int = Field(ge=1, le=64, description="how many there are")
    data: str = Field(min_length=1, max_length=524_288, description="base64")


class PartTaken(Message):
    """kg → learner."""

    type: Literal["PartTaken"] = "PartTaken"
    upload: str
    missing: int = Field(ge=0, description="parts that have not come yet")


class TokenPrior(Message):
    """kg → learner. Scores of the tokens that matter most, in at most a kilobyte."""

    type: Literal["TokenPrior"] = "TokenPrior"
    graph: str
    method: Literal["unigram", "kg"]
    tokens: int
    bytes: int
    blob: str = Field(description="base64; its layout is in oven_core/protocol/token_scores.py")
    ablation: str = Field(description="what was measured of this method, in a sentence")


class GraphQuery(Message):
    """anyone → kg, as a request on `oven.kg.query`."""

    type: Literal["GraphQuery"] = "GraphQuery"
    op: Literal["neighbors", "path", "ppr", "search"]
    node: str = Field(default="", max_length=200, description="neighbors, path, ppr: where it starts; search: words")
    to: str = Field(default="", max_length=200, description="path: where it ends")
    relations: tuple[str, ...] = Field(
        default=(),
        max_length=64,
        exclude_if=is_default,
        description="neighbors, path: edges of these relations alone are followed; none: of all",
    )
    direction: Literal["both", "out", "in"] = Field(
        default="both",
        description="edges are followed in both directions, along them (out) or against them (in); not for search, and "
        "ppr takes both or out",
    )
    depth: int = Field(default=1, ge=1, le=8, description="neighbors: how many edges away a node may be")
    limit: int = Field(default=20, ge=1, le=200, description="rows wanted")


class QueryRow(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    node: str
    kind: str
    text: str = ""
    edge: str = Field(
        default="", description="id of the edge that led here; in a large graph its position in the graph's arrays"
    )
    relation: str = ""
    towards: Literal["", "out", "in"] = Field(default="", description="along the edge, or against it")
    depth: int = Field(
        default=0,
        exclude_if=is_default,
        description="neighbors: edges away, where it may be several; else absent",
    )
    score: Real = Field(
        default=0.0, description="ppr: share of the walk; search: words found; an edge of a large graph: its weight"
    )


class QueryAnswer(Message):
    """kg → asker. `more`: there was more than the limit let through."""

    type: Literal["QueryAnswer"] = "QueryAnswer"
    graph: str
    rows: tuple[QueryRow, ...] = ()
    more: bool = False
