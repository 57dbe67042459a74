"""Requests to the service of the knowledge graph, and its replies. They are not in the log.

They follow the same rules as the messages in oven_core.protocol.messages.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from oven_core.protocol.messages import Confidence, Message, MessagePart, Real, is_default

Phase: TypeAlias = Literal["", "pretrain", "sft", "grpo"]
"""The kind of training; empty if it is unknown."""


class Symptom(MessagePart):
    """A symptom, identified by its node in the knowledge graph."""

    id: str
    severity: Confidence = 1.0


class EvidencePath(MessagePart):
    """A path through the knowledge graph that is evidence for or against a change."""

    edges: tuple[str, ...] = Field(description="edge ids, in order")
    text: str = Field(description="the path in words, e.g. loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr")
    grade: Literal["A", "B", "C", "D"] = Field(description="grade of the weakest edge")
    sources: tuple[str, ...] = ()


class DiagnoseRequest(Message):
    """A request from an agent for causes and remedies of symptoms, on `oven.kg.diagnose`."""

    type: Literal["DiagnoseRequest"] = "DiagnoseRequest"
    phase: Phase = ""
    symptoms: tuple[Symptom, ...] = Field(min_length=1, max_length=64)
    actuators: tuple[str, ...] = Field(default=(), description="actuators that the run announces")
    metrics: tuple[str, ...] = Field(default=(), description="metrics that the run publishes")
    held_out: bool = Field(default=False, description="whether the run has a held-out metric")
    k: int = Field(default=5, ge=1, le=50, description="maximum number of remedies")


class Cause(MessagePart):
    """A likely cause of the symptoms."""

    id: str
    p: Real = Field(description="probability given the symptoms (noisy-OR); not calibrated, so for ranking only")


class Remedy(MessagePart):
    """A remedy for the symptoms, with its evidence."""

    id: str
    changes: tuple[str, ...] = Field(
        default=(), description='changes to make together, e.g. "optimizer.lr_scale:down"; empty: only advice'
    )
    score: Real = Field(description="weight of the evidence as log-odds from −2 to 2, for ranking only")
    unmet: tuple[str, ...] = Field(default=(), description="preconditions that this run does not meet")
    paths: tuple[EvidencePath, ...] = ()


class Diagnosis(Message):
    """The reply to a DiagnoseRequest: causes and remedies, most likely first."""

    type: Literal["Diagnosis"] = "Diagnosis"
    graph: str = Field(description="SHA-256 of the graph that answered")
    causes: tuple[Cause, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    unknown: tuple[str, ...] = Field(default=(), description="symptoms that are not in the graph")


class JudgeRequest(Message):
    """A request from an agent for the evidence for and against a change, on `oven.kg.judge`."""

    type: Literal["JudgeRequest"] = "JudgeRequest"
    phase: Phase = ""
    changes: str = Field(description='actuator and direction, e.g. "optimizer.lr_scale:down" or "run.rollback"')
    symptoms: tuple[Symptom, ...] = Field(default=(), max_length=64)
    actuators: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    held_out: bool = False
    in_flight: tuple[str, ...] = Field(default=(), max_length=64, description="changes in flight, in the same notation")


class Judgement(Message):
    """The reply to a JudgeRequest. `barred`: a precondition is unmet, or the change contradicts one in flight."""

    type: Literal["Judgement"] = "Judgement"
    graph: str
    verdict: Literal["support", "neutral", "object", "barred"]
    log_odds: Real = Field(description="weight of the evidence for the change, from −2 to 2")
    supports: tuple[EvidencePath, ...] = ()
    objections: tuple[EvidencePath, ...] = ()


class GraphInfoRequest(Message):
    """A request for a summary of the graph, on `oven.kg.info`."""

    type: Literal["GraphInfoRequest"] = "GraphInfoRequest"


class GraphInfo(Message):
    """The reply to a GraphInfoRequest. `contradictions` and `requirements` become rules of the run before it starts."""

    type: Literal["GraphInfo"] = "GraphInfo"
    graph: str
    nodes: dict[str, int] = Field(description="kind → count")
    edges: dict[str, int] = Field(description="relation → count")
    grades: dict[str, int] = Field(default_factory=dict, description="grade → number of edges")
    isolated: Real = Field(description="share of nodes without an edge")
    large: str = Field(
        default="",
        exclude_if=is_default,
        description="SHA-256 of a separate large graph that answers query, curriculum and token_prior; absent if none",
    )
    contradictions: tuple[tuple[str, str], ...] = ()
    requirements: tuple[tuple[str, str], ...] = Field(
        default=(), description='change → "actuator:NAME", "metric:PATTERN" or "held_out"'
    )


class Mastery(MessagePart):
    """Counts of correct and wrong answers on a topic. Part of CurriculumRequest."""

    topic: str = Field(min_length=1, max_length=200)
    successes: Real = Field(
        ge=0, allow_inf_nan=False, description="a count; fractional if older answers have less weight"
    )
    failures: Real = Field(ge=0, allow_inf_nan=False)


class CurriculumRequest(Message):
    """A request from an agent for sampling shares of topics, on `oven.kg.curriculum`."""

    type: Literal["CurriculumRequest"] = "CurriculumRequest"
    mastery: tuple[Mastery, ...] = Field(min_length=1, max_length=1024)
    prerequisites: tuple[tuple[str, str], ...] = Field(
        default=(), max_length=4096, description="(topic, prerequisite) pairs, in addition to those of the graph"
    )
    threshold: Confidence = Field(default=0.5, description="lower bound of mastery from which a topic is mastered")
    floor: Confidence = Field(
        default=0.05, description="share that is distributed evenly, so that every topic is sampled"
    )


class UnmetPrerequisite(MessagePart):
    """A topic with a prerequisite that is not mastered."""

    topic: str
    path: tuple[str, ...] = Field(
        description="path from the topic to the prerequisite that is not mastered, both included"
    )
    bound: Real = Field(description="lower bound (5 %) of the prerequisite's mastery, 0..1")


class Curriculum(Message):
    """The reply to a CurriculumRequest: sampling shares of the requested topics, which sum to 1."""

    type: Literal["Curriculum"] = "Curriculum"
    graph: str
    weights: dict[str, Real]
    unmet: tuple[UnmetPrerequisite, ...] = ()
    known: int = Field(
        default=0,
        ge=0,
        description="number of prerequisites among the requested topics, direct or indirect, including those in the "
        "request",
    )


class TokenPriorRequest(Message):
    """A request from the learner for scores of important tokens, on `oven.kg.token_prior`."""

    type: Literal["TokenPriorRequest"] = "TokenPriorRequest"
    method: Literal["unigram", "kg"] = "unigram"
    vocabulary: tuple[str, ...] = Field(
        default=(),
        max_length=300_000,
        description="text of each token, by id; only for `kg`, which searches the texts for labels of nodes",
    )
    counts: tuple[int, ...] = Field(
        default=(), max_length=300_000, description="how often each token occurs in the corpus; only for `unigram`"
    )
    vocabulary_sha: str = Field(
        default="",
        max_length=64,
        description="SHA-256 that the vocabulary must have; required if the vocabulary is not sent",
    )
    k: int = Field(default=358, ge=1, le=1024, description="number of tokens; fewer if they do not fit into a kilobyte")
    upload: str = Field(
        default="",
        max_length=64,
        exclude_if=is_default,
        description="id of a request that was uploaded in parts; its fields then replace those of this request",
    )


class RequestPart(Message):
    """A part of a TokenPriorRequest that is too large for one message, sent by the learner on `oven.kg.upload`.

    The joined parts are the request's JSON, compressed with zlib. A short TokenPriorRequest with their `upload` id
    follows."""

    type: Literal["RequestPart"] = "RequestPart"
    upload: str = Field(pattern=r"^[0-9a-f]{32}$", description="random id, the same for all parts of a request")
    part: int = Field(ge=0, description="index, from 0")
    parts: int = Field(ge=1, le=64, description="number of parts")
    data: str = Field(min_length=1, max_length=524_288, description="base64")


class PartTaken(Message):
    """The reply to a RequestPart: the part has arrived."""

    type: Literal["PartTaken"] = "PartTaken"
    upload: str
    missing: int = Field(ge=0, description="number of parts that have not arrived yet")


class TokenPrior(Message):
    """The reply to a TokenPriorRequest: scores of the most important tokens, in at most a kilobyte."""

    type: Literal["TokenPrior"] = "TokenPrior"
    graph: str
    method: Literal["unigram", "kg"]
    tokens: int
    bytes: int
    blob: str = Field(description="base64 of the format in oven_core/protocol/token_prior_format.py")
    ablation: str = Field(description="measured effect of this method, in one sentence")


class GraphQuery(Message):
    """A request to search the graph, on `oven.kg.query`."""

    type: Literal["GraphQuery"] = "GraphQuery"
    op: Literal["neighbors", "path", "ppr", "search"]
    node: str = Field(default="", max_length=200, description="the start node; for search, the words")
    to: str = Field(default="", max_length=200, description="the end node; only for path")
    relations: tuple[str, ...] = Field(
        default=(),
        max_length=64,
        exclude_if=is_default,
        description="relations whose edges neighbors and path follow; empty: all",
    )
    direction: Literal["both", "out", "in"] = Field(
        default="both",
        description="follow edges in both directions, forwards (out) or backwards (in); ignored by search; ppr accepts "
        "only both and out",
    )
    depth: int = Field(default=1, ge=1, le=8, description="maximum distance in edges; only for neighbors")
    limit: int = Field(default=20, ge=1, le=200, description="maximum number of rows")


class QueryRow(MessagePart):
    """A node in the answer to a query."""

    node: str
    kind: str
    text: str = ""
    edge: str = Field(
        default="", description="id of the edge to this node, or its position in the arrays of a large graph"
    )
    relation: str = ""
    towards: Literal["", "out", "in"] = Field(
        default="", description="whether the edge was followed forwards or backwards"
    )
    depth: int = Field(
        default=0,
        exclude_if=is_default,
        description="distance in edges; only for neighbors, if the request allowed more than one",
    )
    score: Real = Field(
        default=0.0,
        description="ppr: share of the walk; search: number of matching words; in a large graph: weight of the edge",
    )


class QueryAnswer(Message):
    """The reply to a GraphQuery. `more` is true if the limit cut off further rows."""

    type: Literal["QueryAnswer"] = "QueryAnswer"
    graph: str
    rows: tuple[QueryRow, ...] = ()
    more: bool = False
