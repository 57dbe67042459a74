"""The learner asks the prior service for scores of tokens, on a real server with the permissions of both roles."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol import names
from oven_core.protocol.graph_requests import (
    DiagnoseRequest,
    Diagnosis,
    GraphQuery,
    QueryAnswer,
    RequestPart,
    Symptom,
    TokenPrior,
    TokenPriorRequest,
)
from oven_core.protocol.names import kg_inbox
from oven_core.protocol.rules import Rules
from oven_core.protocol.token_prior_format import MAX_BYTES, decode, vocabulary_sha
from oven_core.security.credentials import Credentials
from oven_kg.arrays.array_builder import Builder
from oven_kg.arrays.graph_folder import open_folder, write
from oven_kg.checked_graph import load
from oven_kg.service.endpoints import PriorService, open_large
from oven_kg.service.service_process import run_service
from oven_kg.service.token_prior_process import GraphPaths
from oven_learner.link.find_controller import Connection
from oven_recipes.pretrain.token_prior import MAX_REQUEST_BYTES, request_token_prior
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder

# nats-py's micro service asks for utcnow, which Python 3.12 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")

BASE = ("loss", "rate", "learning", "clip", "gradient", " loss", " rate", "e", "s")
LARGE = (*BASE, *(f"{number:x} filler {number * 7919:x}" for number in range(150_000 - len(BASE))))
"""As long as the vocabularies of today's models; its JSON is over the bus's 1 MiB."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    folder = ServerFolder(tmp_path / "nats", "r")
    for role in ("learner", "kg", "monitor"):
        folder.add_user(role, role)
    folder.add_user("agent", "lr")
    started = await EmbeddedServer.start(folder, tmp_path / "nats-server.log")
    yield started
    await started.stop()


@contextlib.asynccontextmanager
async def connected(server: EmbeddedServer, name: str, inbox: str = "") -> AsyncIterator[Bus]:
    key = Credentials.load(server.folder.creds / f"{name}.nk")
    async with Bus.connect(server.url, key, inbox=inbox) as bus:
        yield bus


async def served_prior(server: EmbeddedServer, vocabulary: tuple[str, ...], **more: object) -> TokenPrior:
    """As the learner's process asks: in a thread here, where the service answers on this loop."""
    key = Credentials.load(server.folder.creds / "learner.nk")
    connection = Connection(url=server.url, run="r", credentials=key, rules=Rules())
    return await asyncio.to_thread(request_token_prior, connection, vocabulary, **more)  # type: ignore[arg-type]


def scores_of(answer: TokenPrior, vocabulary: tuple[str, ...]) -> dict[int, float]:
    return decode(base64.b64decode(answer.blob), len(vocabulary), vocabulary_sha(vocabulary))


async def test_a_vocabulary_larger_than_a_message_is_uploaded_in_parts(server: EmbeddedServer, tmp_path: Path) -> None:
    async with connected(server, "kg") as bus, run_service(bus, PriorService(load())):
        small = await served_prior(server, BASE)
        assert len(TokenPriorRequest(method="kg", vocabulary=LARGE).wire()) > 2 * MAX_REQUEST_BYTES
        large = await served_prior(server, LARGE)
        assert bus.errors == [], "the role's permissions are enough"
    assert small.graph == large.graph == load().sha
    scores, few = scores_of(large, LARGE), scores_of(small, BASE)
    assert max(scores.values()) == 1 and large.bytes <= MAX_BYTES
    assert {LARGE[id_] for id_ in scores} >= {BASE[id_] for id_ in few} >= {" loss", "learning"}
    assert "Violation" not in (tmp_path / "nats-server.log").read_text()


async def test_a_large_graph_has_its_own_hash_and_scoring_delays_no_other_request(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    folder, builder = tmp_path / "graph", Builder()
    builder.add_edges(["loss", "spike"], ["CAUSES", "REQUIRES"], ["spike", "rate"])
    write(folder, builder.finish())
    answers = PriorService(load(), large=open_large(folder))
    sha = open_folder(folder).sha
    asking = GraphQuery(op="neighbors", node="spike").wire()
    seen = DiagnoseRequest(symptoms=(Symptom(id="loss_spike"),)).wire()
    async with (
        connected(server, "kg") as bus,
        run_service(bus, answers, GraphPaths(large=folder)),
        connected(server, "lr") as agent,
    ):
        scoring = asyncio.create_task(served_prior(server, LARGE))
        while not scoring.done() and not bus.client.stats["in_msgs"]:
            await asyncio.sleep(0)
        diagnosis = Diagnosis.model_validate_json(await agent.request(names.kg("diagnose"), seen))
        neighbors = QueryAnswer.model_validate_json(await agent.request(names.kg("query"), asking))
        assert not scoring.done()
        prior = await scoring
    assert diagnosis.graph == load().sha != neighbors.graph == prior.graph == sha
    assert [row.node for row in neighbors.rows] == ["rate", "loss"]
    assert {LARGE[id_] for id_ in scores_of(prior, LARGE)} >= {"loss", " loss", "rate", " rate"}


async def test_an_unanswerable_request_is_refused_in_one_sentence(server: EmbeddedServer) -> None:
    request = TokenPriorRequest(method="kg", vocabulary=BASE, vocabulary_sha=vocabulary_sha((*BASE, "x")))
    packed = base64.b64encode(zlib.compress(request.wire())).decode()
    part = RequestPart(upload="0" * 32, part=0, parts=1, data=packed)
    subject = names.kg("token_prior")
    async with (
        connected(server, "kg") as bus,
        run_service(bus, PriorService(load())),
        connected(server, "learner", kg_inbox("learner")) as learner,
    ):
        with pytest.raises(BusError, match=r"vocabulary_sha says .* send the vocabulary of the tokenizer"):
            await learner.request(subject, request.wire(), 60)
        with pytest.raises(BusError, match=r"there is no upload '0000"):
            await learner.request(subject, TokenPriorRequest(upload="0" * 32).wire())
        await learner.request(names.kg("upload"), part.wire())
        with pytest.raises(BusError, match="send the vocabulary of the tokenizer"):
            await learner.request(subject, TokenPriorRequest(upload="0" * 32).wire(), 60)
        with pytest.raises(BusError, match="no token of the vocabulary is in a label"):
            await learner.request(subject, TokenPriorRequest(method="kg", vocabulary=("\x00",)).wire(), 60)


async def test_only_the_learner_may_ask_for_scores_and_for_nothing_else(server: EmbeddedServer) -> None:
    for name, endpoint in (("lr", "token_prior"), ("lr", "upload"), ("monitor", "token_prior"), ("learner", "judge")):
        async with connected(server, name, kg_inbox(name) if name == "learner" else "") as stranger:
            with pytest.raises(BusError):
                await stranger.request(names.kg(endpoint), b"{}", 0.2)
            assert "ermission" in str(stranger.errors[-1])


async def test_without_the_service_the_request_fails_at_once(server: EmbeddedServer) -> None:
    with pytest.raises(BusError, match=r"nothing answers on oven\.kg\.token_prior"):
        await served_prior(server, BASE)
