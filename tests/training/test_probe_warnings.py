"""What a user is warned of whose model can be trained, in both frameworks the same."""

from probed import Own, probe, refused


class OfTheBatch(Own):
    """Normalised by the batch in evaluations too."""

    def build_torch(self):
        import torch

        class Model(torch.nn.Linear):
            def forward(self, inputs):
                outputs = super().forward(inputs)
                return outputs / outputs.std(dim=0, keepdim=True)

        return Model(4, 10)

    def build_keras(self):
        import keras

        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(10)(inputs)
        return keras.Model(inputs, outputs / keras.ops.std(outputs, axis=0, keepdims=True))


def test_outputs_that_depend_on_the_batch_are_a_warning(framework):
    (warning,) = probe(framework, OfTheBatch())
    assert "depend on the other samples of the batch" in warning


class Softmax(Own):
    def end(self, framework):
        if framework == "torch":
            import torch

            return [torch.nn.Softmax(dim=1)]
        import keras

        return [keras.layers.Softmax()]


class SoftmaxWithLoss(Softmax):
    """Probabilities are right where the user's own loss takes them."""

    def torch_loss(self, outputs, labels):
        return -outputs[:, 0].log()

    def keras_loss(self, outputs, labels):
        import tensorflow as tf

        return -tf.math.log(outputs[:, 0])


def test_a_softmax_at_the_end_is_a_warning(framework):
    (warning,) = probe(framework, Softmax())
    assert "look like probabilities" in warning
    assert probe(framework, SoftmaxWithLoss()) == []


class Unused(Own):
    def build_torch(self):
        import torch

        model = super().build_torch()
        model.spare = torch.nn.Parameter(torch.zeros(3))
        model.forward = lambda inputs: model[0](inputs)
        return model

    def build_keras(self):
        import keras

        inputs = keras.Input((4,))
        kept, cut = keras.layers.Dense(10)(inputs), keras.layers.Dense(10, name="spare")(inputs)
        return keras.Model(inputs, keras.layers.Lambda(lambda both: both[0])([kept, cut]))


def test_parameters_without_a_gradient_are_a_warning(framework):
    (warning,) = probe(framework, Unused())
    assert "parameters get no gradient (the first: " in warning
    assert "spare" in warning


def test_several_workers_in_torch_need_a_gradient_of_every_parameter(framework):
    if framework == "torch":  # TensorFlow takes 0 for it
        error = refused(framework, Unused(), several=True)
        assert "1 of 3 parameters get no gradient (the first: spare), and several" in str(error)
    else:
        assert len(probe(framework, Unused(), several=True)) == 1


class OwnJudge(Own):
    """Any outputs are right where both hooks are the user's."""

    units = 1

    def torch_loss(self, outputs, labels):
        return (outputs[:, 0] - labels.float()) ** 2

    def torch_correct(self, outputs, labels):
        return (outputs[:, 0] - labels.float()).abs() < 1

    def keras_loss(self, outputs, labels):
        import tensorflow as tf

        return (outputs[:, 0] - tf.cast(labels, tf.float32)) ** 2

    def keras_correct(self, outputs, labels):
        import tensorflow as tf

        return tf.abs(outputs[:, 0] - tf.cast(labels, tf.float32)) < 1


def test_outputs_are_the_users_where_both_hooks_are(framework):
    assert probe(framework, OwnJudge()) == []
