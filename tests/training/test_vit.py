"""The vision transformer: equal to a plain transcription, of the published size, and looked at without a trace."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.oracles.rounding import rounding

from tokenmargin.data.images import ImageSet, make_glyphs
from tokenmargin.training.vision.learner import ImageData, VisionConfig, VisionLearner, epoch_moves, shift_and_mirror
from tokenmargin.training.vision.observed_training import train_vision_observed
from tokenmargin.training.vision.vit import SIZES, VisionTransformer, ViTShape, vit_shape

SHAPE = ViTShape(width=12, depth=2, heads=3, patch=4, image=8, classes=5)
CONFIG = VisionConfig(size="nano", patch=16, epochs=4, batch=20, rate=2e-3, warmup=1.0, precision="float32")


def reference(parameters: dict[str, torch.Tensor], shape: ViTShape, image: torch.Tensor) -> tuple[torch.Tensor, list]:
    """One image through the network, patch by patch and head by head."""
    tokens = [parameters["cls"][0, 0]]
    for top in range(0, shape.image, shape.patch):
        for left in range(0, shape.image, shape.patch):
            patch = image[top : top + shape.patch, left : left + shape.patch].reshape(-1)
            tokens.append(parameters["patches.weight"] @ patch + parameters["patches.bias"])
    x = [token + place for token, place in zip(tokens, parameters["positions"][0], strict=True)]

    def normal(name: str, v: torch.Tensor) -> torch.Tensor:
        centred = v - v.mean()
        scaled = centred / torch.sqrt((centred**2).mean() + 1e-6)
        return scaled * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]

    def linear(name: str, v: torch.Tensor) -> torch.Tensor:
        return parameters[f"{name}.weight"] @ v + parameters[f"{name}.bias"]

    attention = []
    size = shape.width // shape.heads
    for b in range(shape.depth):
        normed = [normal(f"blocks.{b}.norm1", v) for v in x]
        mixed = [linear(f"blocks.{b}.attention.qkv", v) for v in normed]
        outputs: list[list[torch.Tensor]] = [[] for _ in x]
        rows = []
        for h in range(shape.heads):
            q, k, v = (
                [m[part * shape.width + h * size : part * shape.width + (h + 1) * size] for m in mixed]
                for part in range(3)
            )
            for i in range(len(x)):
                logits = torch.stack([q[i] @ k[j] / math.sqrt(size) for j in range(len(x))])
                weights = torch.exp(logits) / torch.exp(logits).sum()
                outputs[i].append(sum(weights[j] * v[j] for j in range(len(x))))
                if i == 0:
                    rows.append(weights)
        attention.append(torch.stack(rows))
        x = [v + linear(f"blocks.{b}.attention.out", torch.cat(o)) for v, o in zip(x, outputs, strict=True)]
        hidden = [linear(f"blocks.{b}.widen", normal(f"blocks.{b}.norm2", v)) for v in x]
        gelu = [0.5 * v * (1 + torch.erf(v / math.sqrt(2))) for v in hidden]
        x = [v + linear(f"blocks.{b}.narrow", g) for v, g in zip(x, gelu, strict=True)]
    return linear("head", normal("norm", x[0])), attention


def test_outputs_gradients_and_attention_equal_a_plain_transcription():
    """In float64 both differ by rounding alone."""
    rng = torch.Generator().manual_seed(0)
    model = VisionTransformer(SHAPE).double()
    with torch.no_grad():
        for parameter in model.parameters():  # away from the small start, so that attention is far from uniform
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    images = torch.randn(2, 8, 8, 3, generator=rng, dtype=torch.float64)
    target = torch.randn(2, 5, generator=rng, dtype=torch.float64)
    (model(images) * target).sum().backward()
    few = rounding(2000, 2)  # two blocks of some ten products of 12 to 48 numbers each, of sizes up to two
    copies = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    found = [reference(copies, SHAPE, image) for image in images]
    (torch.stack([logits for logits, _ in found]) * target).sum().backward()
    torch.testing.assert_close(model(images), torch.stack([f[0] for f in found]), rtol=few, atol=few)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, copies[name].grad, rtol=few, atol=few, msg=name)
    weights = model.class_attention(images)
    assert weights.shape == (2, 2, 3, 5)
    for n, (_, attention) in enumerate(found):
        torch.testing.assert_close(weights[:, n], torch.stack(attention), rtol=few, atol=few)
    assert weights.max() > 0.5


def test_base_has_the_published_number_of_parameters():
    """86,567,656 is ViT-base on 224 x 224 with patches of 16 and 1000 classes; the blocks do not depend on these."""

    def count(shape: ViTShape) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in VisionTransformer(shape).parameters())

    published = count(ViTShape(*SIZES["base"], patch=16, image=224, classes=1000))
    assert published == 86_567_656
    ends = 16 * 16 * 3 * 768 + 196 * 768 + 768 * 1000 + 1000  # of the first layer, the positions and the head
    ours = 2 * 2 * 3 * 768 + 256 * 768 + 768 * 10 + 10
    assert count(vit_shape("base")) == published - ends + ours == 85_271_818
    assert count(ViTShape(*SIZES["small"], patch=16, image=224, classes=1000)) == 22_050_664
    assert count(ViTShape(*SIZES["tiny"], patch=16, image=224, classes=1000)) == 5_717_416
    assert vit_shape("base").tokens == 256


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"width": 10}, "multiple of heads"), ({"patch": 3}, "multiple of the patch")],
)
def test_shapes_that_do_not_fit_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(SHAPE, **changes)
    with pytest.raises(ValueError, match="size must be one of nano, tiny, small, base, got 'huge'"):
        vit_shape("huge")


def test_shifting_is_cropping_from_a_padded_image():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
    moves = epoch_moves(9, seed=1, epoch=2)
    moved = shift_and_mirror(torch.as_tensor(images), torch.as_tensor(moves)).numpy()
    for image, (down, across, mirrored), ours in zip(images, moves, moved, strict=True):
        window = np.pad(image, ((4, 4), (4, 4), (0, 0)))[down : down + 8, across : across + 8]
        assert (ours == (window[:, ::-1] if mirrored else window)).all()
    assert set(moves[:, 2].tolist()) == {0, 1}
    assert (moves == epoch_moves(9, seed=1, epoch=2)).all()
    assert (moves != epoch_moves(9, seed=1, epoch=3)).any()


def glyphs(n: int = 90, held_out: int = 30) -> ImageSet:
    made = make_glyphs(n, rng=np.random.default_rng(0))
    return ImageSet(made.images, made.labels, held_out)


def test_images_come_to_mean_zero_and_deviation_one():
    data = ImageData.of(glyphs())
    normal = data.normal(data.images, torch.float64)
    # Means over some 30,000 pixels of size one, in any order.
    of_means = rounding(normal[..., 0].numel())
    np.testing.assert_allclose(normal.mean(dim=(0, 1, 2)), 0, rtol=0, atol=of_means)
    np.testing.assert_allclose(normal.std(dim=(0, 1, 2), correction=0), 1, rtol=of_means)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_looking_does_not_change_training(tmp_path, optimizer):
    """The same losses and parameters, bit for bit, whether looked at after every epoch, after the last, or never."""
    config = replace(CONFIG, optimizer=optimizer)
    often, _, _ = train_vision_observed(config, glyphs(), folder=tmp_path / "often")
    rarely, _, _ = train_vision_observed(config, glyphs(), folder=tmp_path / "rarely", observe_at=lambda e: e == 4)
    data = ImageData.of(glyphs())
    learner = VisionLearner(data, config)
    from tokenmargin.training.epochs import EpochLoop

    never = EpochLoop(learner, config, n=data.n, device=torch.device("cpu")).run()
    losses = [[row["loss"] for row in course.metrics if "loss" in row] for course in (often, rarely, never)]
    assert losses[0] == losses[1] == losses[2]
    assert len(losses[0]) == 4
    saved = [(tmp_path / name / "step-000000012.safetensors").read_bytes() for name in ("often", "rarely")]
    assert saved[0] == saved[1]
    from safetensors.torch import load

    for name, tensor in load(saved[0]).items():
        assert torch.equal(tensor, learner.tensors()[name]), name


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_run_cut_in_the_middle_gives_the_same_figures(tmp_path, optimizer):
    config = replace(CONFIG, optimizer=optimizer, schedule="cosine", batch=2)  # 30 steps an epoch
    whole = train_vision_observed(config, glyphs(), folder=tmp_path / "whole")
    part = train_vision_observed(config, glyphs(), folder=tmp_path / "cut", budget=0.0)  # one chunk of 20 steps
    assert part[0].status == "out of time"
    assert part[1]["calls"][0]["steps"] == 20
    rest = train_vision_observed(config, glyphs(), folder=tmp_path / "cut")
    assert [call["status"] for call in rest[1]["calls"]] == ["out of time", "finished"]
    assert rest[0].metrics == whole[0].metrics
    assert rest[2].keys() == whole[2].keys()
    assert all((rest[2][name] == whole[2][name]).all() for name in whole[2])
    with pytest.raises(ValueError, match=r"holds a run with rate = 0\.002, not 0\.1"):
        train_vision_observed(replace(config, rate=0.1), glyphs(), folder=tmp_path / "cut")


def test_what_a_look_finds(tmp_path):
    """Against the definitions, on the trained parameters."""
    course, record, arrays = train_vision_observed(CONFIG, glyphs(), folder=tmp_path)
    assert [row["epoch"] for row in course.metrics] == [0, 1, 2, 3, 4]
    assert "loss" not in course.metrics[0]
    assert arrays["maps"].shape == (5, 10, 4)
    # Single precision.
    np.testing.assert_allclose(arrays["maps"].sum(axis=-1), 1.0, rtol=1e-6)
    assert arrays["shown_labels"].tolist() == list(range(10))
    assert arrays["shown_images"].shape == (10, 32, 32, 3)
    assert record["parameters"] == sum(p.numel() for p in VisionTransformer(vit_shape("nano", patch=16)).parameters())
    data = ImageData.of(glyphs())
    learner = VisionLearner(data, CONFIG)
    s = learner.model.class_attention(data.normal(data.test_images))[-1, :, :, 1:].double()
    s = (s / s.sum(dim=-1, keepdim=True)).mean(dim=1)
    sparsity = float((1 / (s**2).sum(dim=-1)).mean()) / 4
    # The same numbers in double precision, averaged in another order.
    assert course.metrics[0]["sparsity"] == pytest.approx(sparsity, rel=1e-12, abs=0)
    query, key = (w.detach().double() for w in learner.model.blocks[-1].attention.key_query())
    # As above; products of matrices of some tens of rows.
    assert course.metrics[0]["norm"] == pytest.approx(float(torch.linalg.norm(query.T @ key)), rel=1e-12, abs=0)
    head = torch.linalg.norm(query[:16].T @ key[:16])
    # As above.
    assert arrays["layer_norm"][0, -1, 0] == pytest.approx(float(head), rel=1e-12, abs=0)


def test_warm_up_and_schedule():
    learner = VisionLearner(ImageData.of(glyphs()), replace(CONFIG, warmup=1.0))
    order = torch.arange(60)
    seen = []
    for place in (0, 1, 2, 0):
        learner.run(order, 20, first=place, last=place + 1, rate=0.3)
        seen.append(learner.optimizer.param_groups[0]["lr"])
    # Thirds of a rate.
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.3], rel=1e-15 * 4, abs=0)
    with pytest.raises(ValueError, match="must be positive"):
        replace(CONFIG, rate=0.0)
