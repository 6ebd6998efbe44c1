"""Fig. 2.3 of the thesis as printed; the neuron and ensemble that it leaves out as in Figs. 3.1 and 3.3."""

import inspect

import numpy as np

from latte import MemoryDataLayer, Net
from latte.ensemble import Ensemble
from latte.frontend.lower import lower
from latte.neuron import Neuron, sqrt
from swirl.ir.execute import execute
from swirl.ir.validate import validate


class BNNeuron(Neuron):
    def __init__(self, input_ensemble, batch_num, epsilon):
        super().__init__()
        channels, height, width = input_ensemble.shape
        self.inputs = []
        self.grad_inputs = []
        self.epsilon = epsilon
        self.gamma = np.ones(channels)
        self.beta = np.zeros(channels)
        self.grad_gamma = np.zeros(channels)
        self.grad_beta = np.zeros(channels)
        self.mean = np.zeros(channels)
        self.var = np.zeros(channels)
        self.x_hat = np.zeros((batch_num, channels, height, width))


class BNEnsemble(Ensemble):
    def forward(self, inputs, value, mean, var, x_hat, gamma, beta):
        N, C, H, W = inputs.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        mean[c] += inputs[n, c, h, w]
        for c in range(C):
            mean[c] = mean[c] / (N * H * W)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        var[c] += (inputs[n, c, h, w] - mean[c]) * (inputs[n, c, h, w] - mean[c])
        for c in range(C):
            var[c] = var[c] / (N * H * W)
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        x_hat[n, c, h, w] = (inputs[n, c, h, w] - mean[c]) / sqrt(var[c] + self.epsilon)
                        value[n, c, h, w] = gamma[c] * x_hat[n, c, h, w] + beta[c]

    def update_internal(self, grad, x_hat, grad_gamma, grad_beta):
        N, C, H, W = grad.shape
        for n in range(N):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        grad_gamma[c] += grad[n, c, h, w] * x_hat[n, c, h, w]
                        grad_beta[c] += grad[n, c, h, w]


# fmt: off
def BatchNormLayer(net, input_ensemble, epsilon=0.001):
    input_channels, input_height, input_width = input_ensemble.shape
    shape = (input_channels, input_height, input_width)
    neurons = np.empty(shape, dtype='object')
    batch_num = net.batch_size

    #Create an ensemble and initialize it
    neurons[:, :, :] = BNNeuron(input_ensemble, batch_num, epsilon)
    bn_ensemble = BNEnsemble(neurons)
    net.add_ensemble(bn_ensemble)

    #Mapping function for add_connections
    def mapping(c,x,y):
        return (range(c), range(x), range(y))
    net.add_connections(input_ensemble, bn_ensemble, mapping)
    return bn_ensemble
# fmt: on


def make(batch=3, shape=(4, 5, 6)):
    net = Net(batch, seed=1)
    return BatchNormLayer(net, MemoryDataLayer(net, shape))


def test_the_ensemble_and_its_fields() -> None:
    bn = make()
    assert (bn.name, bn.kind, bn.shape) == ("bn1", "bn", (4, 5, 6))
    assert {name: (spec.shape, spec.role) for name, spec in bn.fields().items()} == {
        "value": ((3, 4, 5, 6), "value"),
        "grad": ((3, 4, 5, 6), "grad"),
        "gamma": ((4,), "param"),
        "grad_gamma": ((4,), "param_grad"),
        "beta": ((4,), "param"),
        "grad_beta": ((4,), "param_grad"),
        "mean": ((4,), "value"),
        "var": ((4,), "value"),
        "x_hat": ((3, 4, 5, 6), "value"),
    }
    assert (bn.initial("gamma") == 1).all()


def test_naive_forward_is_correct_and_can_be_repeated() -> None:
    program = validate(lower(make(), "forward", batch_size=3))
    x = np.random.default_rng(0).normal(size=(3, 4, 5, 6)).astype(np.float32)
    arrays = {name: np.zeros(buffer.shape, np.float32) for name, buffer in program.buffers.items()}
    arrays |= {"inputs": x, "gamma": np.full(4, 2, np.float32), "beta": np.ones(4, np.float32)}
    arrays["of_items"] = np.array([90], np.int32)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    expected = 2 * (x - mean.reshape(1, 4, 1, 1)) / np.sqrt(var.reshape(1, 4, 1, 1) + 0.001) + 1
    for _ in range(2):
        execute(program, arrays, checking=True)
        np.testing.assert_allclose(arrays["value"], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(arrays["var"], var, rtol=1e-5)


def test_nests_are_the_figures_loops() -> None:
    program = lower(make(), "forward", batch_size=3)
    assert [nest.arguments for nest in program.nests] == [
        ("mean",),
        ("mean", "inputs"),
        ("mean", "of_items"),
        ("var",),
        ("mean", "var", "inputs"),
        ("var", "of_items"),
        ("value", "gamma", "beta", "mean", "var", "x_hat", "inputs"),
    ]
    assert program.nests[2].body_text == "for c in range(4):\n    mean[c] = mean[c] / float32(of_items[0])"
    assert program.buffers["of_items"].formula == "((items * 5) * 6)"
    assert program.aliases["_neuron_index_1"] == ("c",)
    assert program.aliases["_neuron_index_3"] == ("w",)


def test_hand_written_update() -> None:
    update = validate(lower(make(), "update_internal", batch_size=3))
    assert update.nests[0].body_text == inspect.cleandoc("""
        for n in range(3):
            for c in range(4):
                for h in range(5):
                    for w in range(6):
                        grad_gamma[c] += grad[n, c, h, w] * x_hat[n, c, h, w]
                        grad_beta[c] += grad[n, c, h, w]
    """)
