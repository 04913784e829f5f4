"""What is drawn, with which probability, and that it is nobody else's business."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from hysweep.embedded import build
from hysweep.embedded.assets import RECIPE
from hysweep.embedded.sampling import Completion, Request, Seeds, choose, generate

pytestmark = pytest.mark.verl

ENDS = {"eos_ids": frozenset({1}), "pad_id": 0}


@pytest.fixture(scope="module")
def tokenizer():
    return build.make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    made = build.make_model(RECIPE, len(tokenizer))
    build.warm_start(made, tokenizer, dataclasses.replace(RECIPE, warm_start_steps=15))
    return made.eval()


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [
        tokenizer(text)["input_ids"] for text in ("copy 47=", "copy 9", "a longer one than the others: copy 12=", "c")
    ]


def request(prompt, **kwargs):
    return Request(prompt, **{"max_tokens": 6, "seed": 7, **kwargs})


def logits_of(model, prompt, completion: Completion):
    """The logits that each token was drawn from, by one pass over the whole, with no cache and no padding."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0].float()
    return logits[len(prompt) - 1 : -1]


def test_greedy_is_the_likeliest_token(model, prompts):
    requests = [request(p, temperature=0) for p in prompts]
    for prompt, completion in zip(prompts, generate(model, requests, **ENDS), strict=True):
        assert completion.token_ids == logits_of(model, prompt, completion).argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0, 1.5])
def test_log_probs_are_those_of_one_pass_over_the_whole(model, prompts, temperature):
    requests = [request(p, temperature=temperature) for p in prompts]
    for prompt, completion in zip(prompts, generate(model, requests, **ENDS), strict=True):
        expected = (logits_of(model, prompt, completion) / (temperature or 1)).log_softmax(-1)
        expected = expected.gather(1, torch.tensor(completion.token_ids)[:, None]).squeeze(1)
        assert completion.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9}, {"top_k": 5}])
def test_a_request_is_answered_alike_whoever_shares_its_batch(model, prompts, sampling):
    mine = [request(p, seed=seed, **sampling) for p in prompts for seed in range(4)]
    others = [request(p, seed=99, temperature=0.5, max_tokens=3) for p in prompts]
    alone = [generate(model, [r], **ENDS)[0] for r in mine]
    crowd = [*mine, *others]
    random.Random(0).shuffle(crowd)
    answers = dict(zip(map(id, crowd), generate(model, crowd, **ENDS), strict=True))
    for r, expected in zip(mine, alone, strict=True):
        assert answers[id(r)].token_ids == expected.token_ids
        assert answers[id(r)].log_probs == pytest.approx(expected.log_probs, abs=1e-4)


def test_another_seed_draws_otherwise(model, prompts):
    drawn = generate(model, [request(prompts[0], seed=seed) for seed in range(20)], **ENDS)
    assert len({tuple(c.token_ids) for c in drawn}) > 5


def test_it_ends_at_the_end_of_sequence_and_at_max_tokens(model, prompts):
    requests = [
        request(prompts[0], seed=s, max_tokens=n, ignore_eos=i) for s in range(10) for n in (1, 5) for i in (0, 1)
    ]
    for r, c in zip(requests, generate(model, requests, **ENDS), strict=True):
        assert c.is_whole
        assert len(c.token_ids) == len(c.log_probs) <= r.max_tokens
        ended = not r.ignore_eos and c.token_ids[-1] == 1
        assert ended or len(c.token_ids) == r.max_tokens
        assert r.ignore_eos or 1 not in c.token_ids[:-1]


def test_an_interruption_leaves_what_there_is(model, prompts):
    calls = iter([False, False, True])
    [c] = generate(model, [request(prompts[0], ignore_eos=True)], **ENDS, is_interrupted=lambda: next(calls))
    assert len(c.token_ids) == 2
    assert not c.is_whole


def frequencies(logits, **sampling):
    """How often each token is drawn by numbers that are spread evenly."""
    count = 20000
    requests = [request([1], **sampling)] * count
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, log_probs = choose(torch.tensor([logits]).expand(count, -1), requests, uniforms)
    shares = torch.bincount(tokens, minlength=len(logits)) / count
    said = torch.zeros(len(logits)).scatter(0, tokens, log_probs.exp().float())
    return shares.tolist(), said.tolist()


PROBS = [0.1, 0.4, 0.05, 0.3, 0.15]
LOGITS = torch.tensor(PROBS).log().tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, PROBS),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 0}, PROBS),
        ({"top_k": 50}, PROBS),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_p": 0.7}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.71}, [0, 0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85]),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
        # of the two that top-k leaves, the first has 4/7: more than a half, so it stays alone
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.5}, [p**2 / sum(q**2 for q in PROBS) for p in PROBS]),
        ({"temperature": 0}, [0, 1, 0, 0, 0]),
    ],
)
def test_each_token_is_drawn_as_often_as_it_should_and_says_so(sampling, expected):
    shares, said = frequencies(LOGITS, **sampling)
    assert shares == pytest.approx(expected, abs=2e-4)
    if sampling.get("temperature") != 0:
        assert said == pytest.approx(expected, abs=1e-6)


def test_the_last_number_below_one_draws_a_token_that_is_left():
    uniforms = torch.tensor([1 - 2**-53], dtype=torch.float64)
    token, log_prob = choose(torch.tensor([LOGITS]), [request([1], top_k=3)], uniforms)
    assert token.item() in {1, 3, 4}
    assert log_prob.isfinite()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1}, "temperature = -1"),
        ({"top_p": 0}, "top_p = 0"),
        ({"top_p": 1.1}, "top_p = 1.1"),
        ({"top_k": -2}, "top_k = -2"),
        ({"max_tokens": 0}, "max_tokens = 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(wrong, message):
    with pytest.raises(ValueError, match=message):
        request([1], **wrong)


def test_seeds_depend_on_what_is_asked_and_not_on_the_order():
    asked = ["a", "b", "a", "c", "b", "a"]
    orders = [asked, sorted(asked), asked[::-1]]
    given = []
    for order in orders:
        seeds = Seeds((42, 0))
        by_question: dict[str, list[int]] = {}
        for question in order:
            by_question.setdefault(question, []).append(seeds.take(question))
        given.append(by_question)
    assert given[0] == given[1] == given[2]
    assert len({seed for seeds in given[0].values() for seed in seeds}) == len(asked)


def test_seeds_are_other_ones_for_another_root_and_the_same_after_forgetting():
    one, other = Seeds((42, 0)), Seeds((43, 0))
    first = one.take("a")
    assert first != other.take("a")
    assert first != one.take("a")
    one.forget()
    assert first == one.take("a")
