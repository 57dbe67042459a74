"""`examples/judge_server.py` generates over real HTTP: held to a format, with log-probabilities of its own logits."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oven_llm.judges.judge_probe import probe
from oven_llm.providers import connect
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.remote_model import RemoteModel
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import NO_KEY, catalogue, endpoint_of

SERVER = Path(__file__).resolve().parents[3] / "examples" / "judge_server.py"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "enum": ["Ünal", "Zoë"]},
        "scores": {"type": "array", "items": {"type": "integer", "enum": [0, 5, 10]}, "minItems": 2, "maxItems": 2},
    },
    "required": ["name", "scores"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """Its address and the module, with a model of random weights over bytes: only the grammar gives it a form."""
    folder = tmp_path_factory.mktemp("judge")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {letter: number for number, letter in enumerate(alphabet)} | {"<end>": 256}
    backend = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=backend, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    ends: dict[str, Any] = {"eos_token_id": 256, "pad_token_id": 256, "bos_token_id": None}
    LlamaForCausalLM(LlamaConfig(vocab_size=257, max_position_embeddings=4096, **sizes, **ends)).save_pretrained(folder)
    spec = spec_from_file_location("judge_server", SERVER)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["judge_server"] = module
    spec.loader.exec_module(module)
    module.Handler.judge = module.Generation(module.Local(folder), 1.0)
    http = ThreadingHTTPServer(("127.0.0.1", 0), module.Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_address[1]}/v1", module
    http.shutdown()
    http.server_close()
    del sys.modules["judge_server"]


def provider(url: str, top_logprobs: int = 0) -> RemoteModel:
    settings = endpoint_of("critic", MemberSettings(provider="compatible", model="local", base_url=url), catalogue())
    return connect("critic", settings, NO_KEY, top_logprobs)


async def ask(model: RemoteModel, schema: dict[str, Any] = SCHEMA, tokens: int = 60) -> ModelReply:
    try:
        return await model.ask(Conversation.question("Judge.", "Who?", schema, tokens), 60)
    finally:
        await model.close()


async def test_replies_follow_the_schema_whatever_the_model(server: tuple[str, Any]) -> None:
    for _ in range(3):
        answer = await ask(provider(server[0]))
        assert answer.finish == "stop"
        jsonschema.validate(json.loads(answer.text), SCHEMA)
        assert answer.usage is not None
        # Of one byte each, with the end: the prompt has the two messages and the empty line between them.
        assert answer.usage.output_tokens == len(answer.text.encode()) + 1
        assert answer.usage.input_tokens == len(b"Judge.\n\nWho?")


async def test_log_probabilities_equal_the_models(server: tuple[str, Any]) -> None:
    url, module = server
    answer = await ask(provider(url, 4))
    assert answer.logprobs is not None
    text = answer.text.encode()
    assert b"".join(token.data for token in answer.logprobs) == text, "bytes, also within a letter"
    local = module.Handler.judge.local
    prompt, tokens = local.tokenizer.encode("Judge.\n\nWho?"), local.tokenizer.encode(answer.text)
    with torch.inference_mode():
        logits = local.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]  # (C, V)
    log_p = logits.log_softmax(-1)
    expected = log_p.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert [token.logprob for token in answer.logprobs] == pytest.approx(expected.tolist(), abs=1e-4)
    best = log_p.topk(4).values
    for token, row in zip(answer.logprobs, best.tolist(), strict=True):
        assert [logprob for _, logprob in token.top] == pytest.approx(row, abs=1e-4), "before the grammar's mask"


async def test_json_object_mode_returns_any_object(server: tuple[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "providers.yaml"
    file.write_text("compatible: {schema: json_object}")
    settings = endpoint_of(
        "critic", MemberSettings(provider="compatible", model="m", base_url=server[0]), catalogue(file)
    )
    answer = await ask(connect("critic", settings, NO_KEY), tokens=400)
    assert answer.text.startswith("{")
    if answer.finish == "stop":  # a model of random weights may not come to an end
        assert isinstance(json.loads(answer.text), dict)


async def test_the_probe_detects_the_enforced_schema(server: tuple[str, Any]) -> None:
    """With no mind to judge: what it says is in form, and names the wrong answers."""
    model = provider(server[0], 2)
    result = await probe(model, timeout_s=60)
    await model.close()
    assert result.failure in ("wrong_ids", "truncated") and not result.can_judge
    if result.failure == "wrong_ids":
        assert (result.schema, result.top_logprobs) == ("strict", 2)


async def test_unsupported_requests_are_refused(server: tuple[str, Any]) -> None:
    url, module = server
    judge = module.Handler.judge
    about = {"messages": [{"role": "user", "content": "?"}]}
    for body, words in (
        ({"response_format": {"type": "xml"}}, "is not served"),
        ({"logprobs": True, "top_logprobs": 21}, "0 to 20"),
        ({"stream": True}, "no stream"),
    ):
        with pytest.raises(ValueError, match=words):
            judge.reply(about | body)
    model = provider(url)
    assert (await ask(model, {"type": "nonsense"})).text.startswith("{")
    assert model.terms.current.schema == "json_object", "a schema that cannot be followed is refused, over HTTP, too"
