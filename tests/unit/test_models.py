"""The networks: AlexNet against torchvision's and a count by hand, classifiers, a person's own."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from amp_sweep import models
from amp_sweep.models import ModelError


def test_alexnet_at_width_1_is_torchvisions_weight_for_weight_and_output_for_output() -> None:
    torch.manual_seed(3)
    mine = models.build("alexnet", 10, width=1.0)
    torch.manual_seed(3)
    theirs = torchvision.models.alexnet(weights=None, num_classes=10)
    own, expected = mine.state_dict(), theirs.state_dict()
    assert list(own) == list(expected)
    for name, value in expected.items():
        assert torch.equal(own[name], value), name
    images = torch.rand(2, 3, 63, 63)
    with torch.no_grad():
        assert torch.equal(mine.eval()(images), theirs.eval()(images))
        # In training too: the same dropout at the same places.
        torch.manual_seed(4)
        trained = mine.train()(images)
        torch.manual_seed(4)
        assert torch.equal(trained, theirs.train()(images))


def alexnet_parameters(width: float, outputs: int) -> int:
    """By hand, from Krizhevsky's layer table with torchvision's channel counts."""
    c = [round(channels * width) for channels in (64, 192, 384, 256, 256)]
    hidden = round(4096 * width)
    layers = [
        (3 * 11 * 11, c[0]),
        (c[0] * 5 * 5, c[1]),
        (c[1] * 3 * 3, c[2]),
        (c[2] * 3 * 3, c[3]),
        (c[3] * 3 * 3, c[4]),
        (c[4] * 6 * 6, hidden),
        (hidden, hidden),
        (hidden, outputs),
    ]
    return sum((inputs + 1) * out for inputs, out in layers)


@pytest.mark.parametrize("width", [1.0, 0.5, 0.25, 0.1])
def test_alexnet_has_the_parameters_that_its_width_gives(width: float) -> None:
    with torch.device("meta"):
        network = models.build("alexnet", 10, width=width)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == alexnet_parameters(width, 10)


def test_a_quarter_of_alexnet_has_3_6_million_parameters_and_the_whole_61_1() -> None:
    assert round(alexnet_parameters(0.25, 10) / 1e6, 1) == 3.6
    assert round(alexnet_parameters(1.0, 1000) / 1e6, 1) == 61.1


def test_no_width_means_the_whole_alexnet_and_a_tiny_one_keeps_a_channel() -> None:
    with torch.device("meta"):
        whole = models.build("alexnet", 5)
        tiny = models.build("alexnet", 5, width=1e-6)
    assert sum(p.numel() for p in whole.parameters()) == alexnet_parameters(1.0, 5)
    assert tiny(torch.empty(2, 3, 63, 63, device="meta")).shape == (2, 5)


FAMILIES = [
    *("convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3"),
    *("mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "resnet18"),
    *("shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "vgg11", "vit_b_16"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_classifier_of_each_family_gives_the_outputs_asked_for(name: str) -> None:
    try:
        with torch.device("meta"):
            network = models.build(name, 7)
    except NotImplementedError:  # it computes with values while it is built
        network = models.build(name, 7).to("meta")
    size = 299 if name == "inception_v3" else 224
    logits = network.train()(torch.empty(2, 3, size, size, device="meta"))
    # A plain tensor in training: GoogLeNet and Inception would give their extra outputs too.
    assert isinstance(logits, torch.Tensor) and logits.shape == (2, 7)


def test_a_classifier_has_torchvisions_own_initial_weights() -> None:
    torch.manual_seed(5)
    mine = models.build("resnet18", 4).state_dict()
    torch.manual_seed(5)
    theirs = torchvision.models.resnet18(num_classes=4).state_dict()
    assert all(torch.equal(mine[name], value) for name, value in theirs.items())


def test_googlenet_is_initialised_as_torchvision_does_by_default() -> None:
    torch.manual_seed(5)
    mine = models.build("googlenet", 4).state_dict()
    torch.manual_seed(5)
    theirs = torchvision.models.googlenet(num_classes=4, aux_logits=False, init_weights=True)
    assert all(torch.equal(mine[name], value) for name, value in theirs.state_dict().items())
    # A truncated normal of 0.01, and not the layers' own uniform.
    assert mine["conv1.conv.weight"].std().item() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(
    "name",
    [
        *("fasterrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "deeplabv3_resnet50", "raft_large"),
        *("r3d_18", "quantized_resnet18", "lenet", "AlexNet", "alexnet ", ""),
    ],
)
def test_what_is_no_classifier_is_refused_with_what_is(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        models.build(name, 3)
    assert f"model.name={name}:" in str(caught.value)
    assert "alexnet" in str(caught.value) and "package.module:callable" in str(caught.value)


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_dropout_is_replaced_everywhere_when_given_and_left_alone_otherwise(
    probability: float,
) -> None:
    def rates(network: nn.Module) -> set[float]:
        return {module.p for module in network.modules() if isinstance(module, nn.Dropout)}

    with torch.device("meta"):
        assert rates(models.build("alexnet", 3, width=0.1)) == {0.5}
        changed = models.build("alexnet", 3, width=0.1, dropout=probability)
        assert rates(changed) == {probability}
        assert rates(models.build("efficientnet_b0", 3, dropout=probability)) == {probability}


# ------------------------------------------------------------------ a person's own

OWN = """
import functools
from torch import nn

def network(num_classes, width=3):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(3 * 8 * 8, num_classes))

class Network(nn.Sequential):
    def __init__(self, *, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes))

class Holder:
    @staticmethod
    def make(**options):
        return network(**options)

partial = functools.partial(network, width=4)

def positional(outputs):
    return network(outputs)

def demanding(num_classes, size):
    return network(num_classes)

def wrong_thing(num_classes):
    return [num_classes]

value = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The name of something in a module of the test's own."""
    module = f"own_networks_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(OWN)
    (tmp_path / f"{module}_broken.py").write_text("import a_library_that_is_not_installed")
    (tmp_path / f"{module}_raising.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    return lambda name: f"{module}{name}"


@pytest.mark.parametrize("name", [":network", ":Network", ":Holder.make", ":partial"])
def test_an_own_callable_is_called_with_num_classes(own: Callable[[str], str], name: str) -> None:
    assert models.build(own(name), 6)(torch.zeros(2, 3, 8, 8)).shape == (2, 6)


def test_dropout_reaches_an_own_network(own: Callable[[str], str]) -> None:
    network = models.build(own(":network"), 6, dropout=0.25)
    assert [m.p for m in network.modules() if isinstance(m, nn.Dropout)] == [0.25]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (":missing", "has no 'missing'"),
        (":Holder.missing", "has no 'Holder.missing'"),
        ("_missing:network", "cannot import"),
        ("_broken:network", "a_library_that_is_not_installed"),
        ("_raising:network", "ZeroDivisionError: division by zero"),
        (":value", "'value' is not callable"),
        (":positional", "num_classes=N by keyword"),
        (":demanding", "num_classes=N by keyword"),
        (":wrong_thing", "returned list, not a module"),
    ],
)
def test_an_own_callable_that_cannot_be_used_is_refused_by_name(
    own: Callable[[str], str], name: str, words: str
) -> None:
    with pytest.raises(ModelError) as caught:
        models.build(own(name), 6)
    assert f"model.name={own(name)}" in str(caught.value)
    assert words in str(caught.value)


# ------------------------------------------------------------------ the image size


@pytest.mark.parametrize(("name", "smallest"), [("alexnet", 63), ("squeezenet1_0", 21)])
def test_too_small_an_image_is_refused_with_the_size_needed(name: str, smallest: int) -> None:
    models.check_image_size(name, smallest)
    # The oracle: the network itself, for real.
    network = models.build(name, 2, width=0.05 if name == "alexnet" else None)
    with torch.no_grad():
        network(torch.zeros(1, 3, smallest, smallest))
        with pytest.raises(RuntimeError):
            network(torch.zeros(1, 3, smallest - 1, smallest - 1))
    for size in (1, smallest // 2, smallest - 1):
        with pytest.raises(ModelError) as caught:
            models.check_image_size(name, size)
        assert f"data.image_size={size}" in str(caught.value) and name in str(caught.value)
        assert str(caught.value).endswith(f"at least {smallest}")


def test_a_smallest_size_that_is_a_power_of_two_is_found_too() -> None:
    models.check_image_size("vgg11", 32)
    with pytest.raises(ModelError, match="at least 32"):
        models.check_image_size("vgg11", 31)


def test_a_width_changes_nothing_about_the_size_needed() -> None:
    models.check_image_size("alexnet", 63, width=0.25, outputs=10)
    with pytest.raises(ModelError, match="at least 63"):
        models.check_image_size("alexnet", 62, width=0.25, outputs=10)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "regnet_y_400mf"])
def test_a_network_that_takes_small_images_passes(name: str) -> None:
    models.check_image_size(name, 32)


def test_a_network_of_one_size_refuses_every_other() -> None:
    models.check_image_size("vit_b_16", 224)
    with pytest.raises(ModelError, match="does not accept"):
        models.check_image_size("vit_b_16", 256)


def test_an_own_network_that_needs_values_while_it_is_built_has_shapes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "built_of_values.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Linear):\n"
        "    def __init__(self, num_classes):\n"
        "        super().__init__(int(torch.linspace(4, 8, 2)[1]), num_classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "built_of_values", raising=False)
    network = models.build_for_shapes("built_of_values:Net", 3)
    assert [tuple(weight.shape) for weight in network.parameters()] == [(3, 8), (3,)]


def test_an_own_network_is_checked_too(own: Callable[[str], str]) -> None:
    models.check_image_size(own(":network"), 8, outputs=6)
    with pytest.raises(ModelError, match="does not accept"):
        models.check_image_size(own(":network"), 9, outputs=6)


@pytest.mark.parametrize("faulty", ["images.abs().max().item()", "1 / 0"])
def test_an_own_network_that_runs_at_no_size_is_left_to_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: str
) -> None:
    (tmp_path / "needs_values.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self, num_classes):\n        super().__init__()\n\n"
        f"    def forward(self, images):\n        return images / ({faulty})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "needs_values", raising=False)
    network = models.build("needs_values:Net", 2)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        network(torch.empty(2, 3, 8, 8, device="meta"))
    models.check_image_size("needs_values:Net", 8)


def test_checking_a_size_leaves_the_random_numbers_alone() -> None:
    # The meta device draws nothing; own networks are built for real, before any seed is set.
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    models.check_image_size("alexnet", 63)
    assert torch.equal(torch.rand(3), expected)
