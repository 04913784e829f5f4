"""The rollout server, without Ray: what it answers, what it refuses, and the weights that it takes."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest
import torch

from hysweep.embedded import build
from hysweep.embedded.assets import RECIPE
from hysweep.embedded.rollout import EmbeddedServer, EmbeddedServerAdapter, fuse_experts

pytestmark = pytest.mark.verl

PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


@pytest.fixture(scope="module")
def tokenizer():
    return build.make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    made = build.make_model(RECIPE, len(tokenizer))
    build.warm_start(made, tokenizer, dataclasses.replace(RECIPE, warm_start_steps=10))
    return made.eval()


def make_server(model, tokenizer, **config) -> EmbeddedServer:
    defaults = {
        "dtype": "float32",
        "seed": 1,
        "max_num_seqs": 64,
        "max_model_len": 64,
        "prompt_length": 32,
        "response_length": 8,
    }
    model_config = SimpleNamespace(
        hf_config=model.config, generation_config=model.generation_config, tokenizer=tokenizer, local_path=None
    )
    return EmbeddedServer(SimpleNamespace(**(defaults | config)), model_config, 0, has_own_weights=False)


def ask(model, tokenizer, prompts, params=PARAMS, **config):
    """The answers to prompts that are asked for one after the other, and awaited together."""

    async def run():
        server = make_server(model, tokenizer, **config)
        await server.load_weights(model.state_dict(), global_steps=3)
        return await asyncio.gather(*[server.generate(p, dict(params), "id", image_data=None) for p in prompts])

    return asyncio.run(run())


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tokenizer(f"copy {i}{j}=")["input_ids"] for i in range(3) for j in range(4, 6)]


def test_a_group_draws_the_same_whatever_its_order_and_its_batches(model, tokenizer, prompts):
    asked = [p for p in prompts for _ in range(4)]
    orders = (asked, asked[::-1])
    answers = [ask(model, tokenizer, order, max_num_seqs=size) for order in orders for size in (3, 64)]
    found = []
    for order, outputs in zip([orders[0], orders[0], orders[1], orders[1]], answers, strict=True):
        pairs = zip(order, outputs, strict=True)
        found.append(sorted((tuple(p), tuple(o.token_ids), [round(x, 4) for x in o.log_probs]) for p, o in pairs))
    assert found[0] == found[1] == found[2] == found[3]
    assert len({tuple(o.token_ids) for o in answers[0][:4]}) > 1


def test_an_answer_has_what_verl_reads(model, tokenizer, prompts):
    [output] = ask(model, tokenizer, prompts[:1])
    assert output.stop_reason == "completed"
    assert len(output.log_probs) == len(output.token_ids) <= 8
    assert output.extra_fields["global_steps"] == 3
    [quiet] = ask(model, tokenizer, prompts[:1], {**PARAMS, "logprobs": False})
    assert quiet.log_probs is None
    assert quiet.token_ids == output.token_ids


def test_responses_keep_to_the_limits(model, tokenizer, prompts):
    [short] = ask(model, tokenizer, prompts[:1], {**PARAMS, "max_tokens": 2, "ignore_eos": True})
    assert len(short.token_ids) == 2
    [cramped] = ask(model, tokenizer, prompts[:1], {**PARAMS, "ignore_eos": True}, max_model_len=len(prompts[0]) + 3)
    assert len(cramped.token_ids) == 3
    [default] = ask(model, tokenizer, prompts[:1], {**PARAMS, "ignore_eos": True})
    assert len(default.token_ids) == 8


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"min_p": 0.1}, "min_p.*knows temperature"),
        ({"top_p": 0.0}, "top_p = 0"),
    ],
)
def test_what_it_cannot_do_is_refused(model, tokenizer, prompts, params, message):
    with pytest.raises(ValueError, match=message):
        ask(model, tokenizer, prompts[:1], {**PARAMS, **params})


def test_a_prompt_that_fills_the_context_is_refused(model, tokenizer):
    with pytest.raises(ValueError, match=r"prompt of 64 tokens.*context of 64"):
        ask(model, tokenizer, [[5] * 64])


def test_one_bad_batch_does_not_end_the_server(model, tokenizer, prompts):
    async def run():
        server = make_server(model, tokenizer)
        await server.load_weights(model.state_dict())
        with pytest.raises(Exception, match="out of range"):
            await server.generate([10**6], dict(PARAMS), "id")
        return await server.generate(prompts[0], dict(PARAMS), "id")

    assert asyncio.run(run()).token_ids


def test_it_does_not_generate_before_it_has_weights_or_with_ones_that_do_not_fit(model, tokenizer, prompts):
    async def run():
        server = make_server(model, tokenizer)
        with pytest.raises(RuntimeError, match="before it was given weights"):
            await server.generate(prompts[0], dict(PARAMS), "id")
        state = dict(model.state_dict())
        state["model.strange.weight"] = state.pop("model.norm.weight")
        with pytest.raises(
            RuntimeError, match=r"missing \['model.norm.weight'\], unexpected \['model.strange.weight'\]"
        ):
            await server.load_weights(state)

    asyncio.run(run())


def test_an_abort_holds_what_comes_until_it_is_over_or_turns_it_away(model, tokenizer, prompts):
    async def run():
        server = make_server(model, tokenizer)
        await server.load_weights(model.state_dict())
        await server.abort_all_requests()
        held = asyncio.create_task(server.generate(prompts[0], dict(PARAMS), "id"))
        await asyncio.sleep(0.1)
        assert not held.done()
        await server.resume_generation()
        assert (await held).stop_reason == "completed"
        await server.abort_all_requests(reject_request=True)
        turned_away = await server.generate(prompts[0], dict(PARAMS), "id")
        assert (turned_away.stop_reason, turned_away.token_ids) == ("aborted", [])

    asyncio.run(run())


def test_an_unknown_dtype_is_refused_with_the_known_ones(model, tokenizer):
    with pytest.raises(ValueError, match=r"dtype = fp4: .*float32, bfloat16, float16"):
        make_server(model, tokenizer, dtype="fp4")


def test_experts_that_the_trainer_took_apart_are_put_together_again(model):
    from verl.workers.engine.fsdp.utils import unfuse_moe_params

    whole = model.state_dict()
    apart = dict(unfuse_moe_params(whole.items()))
    assert apart.keys() != whole.keys()
    again = fuse_experts(iter(apart.items()))
    assert again.keys() == whole.keys()
    assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_a_saved_checkpoint_has_the_names_that_are_put_together(model, tmp_path):
    from safetensors.torch import load_file

    model.save_pretrained(tmp_path)
    again = fuse_experts(load_file(tmp_path / "model.safetensors").items())
    fused = {name for name in model.state_dict() if ".experts." in name}
    assert fused <= again.keys()
    assert all(torch.equal(again[name], model.state_dict()[name]) for name in fused)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"wire_format": "delta_flush"}, "backend=naive"), ({"peft_config": {"r": 8}}, "lora.merge = False")],
)
def test_weights_that_it_cannot_take_are_refused_with_the_cure(kwargs, message):
    adapter = object.__new__(EmbeddedServerAdapter)
    with pytest.raises(ValueError, match=message):
        asyncio.run(adapter.update_weights(iter(()), **kwargs))
