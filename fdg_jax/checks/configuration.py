"""The arguments of `fdg_jax.Pipeline`, checked and with every name resolved, and the specs of its stages."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from fdg_jax import corrections, split
from fdg_jax.arrays import plain
from fdg_jax.checks import arguments, correction_parts, no_effect
from fdg_jax.checks.batches import check_example, check_mean
from fdg_jax.checks.plan import plan
from fdg_jax.config import FIELDS
from fdg_jax.corrections.interface import Correction, Late
from fdg_jax.errors import BadInput
from fdg_jax.options.fields import checked
from fdg_jax.stages.functions import ComputeOptions, Spec, drawing_key, loss_of, split_variables
from fdg_jax.stages.nonfinite import guard_loss
from fdg_jax.stages.own_modules import Shapes, check_loss, check_number, check_shapes, fitting_variables
from fdg_jax.stages.precision import precision
from fdg_jax.stages.preprocessing import preprocessed
from fdg_jax.stages.shapes import describe, examples, shape_of
from fdg_jax.stages.sharded import first_variables, shardings
from fdg_jax.stages.stage import Stage
from fdg_jax.stages.switches import name_of
from fdg_jax.stages.tracing import TracedModule, trace_forward, trace_or_refuse
from fdg_jax.transport import notices
from fdg_jax.transport.devices import MeshPlace, Place, all_here, check_no_mesh, is_here

Tree = Any
Batch = tuple[Tree, Tree]
MANY_SHAPES = 5  # of batches, before a warning


class Configuration:
    """The arguments of `fdg_jax.Pipeline`, with every name resolved. The docstring of `Pipeline` explains them.

    engines: the names of all engines. Raises BadInput for every mistake that can be found without shapes.
    """

    def __init__(
        self, stages, loss, optimizer, method, engines: Sequence[str], *, engine, beta, correct, learning_rate,
        momentum, devices, weights, dtype, remat, preprocess, guard, norms, ema, axis_rules,
        options: Mapping[str, Any], cut, K,
    ):  # fmt: skip
        self.stages = arguments.check_problem(stages, loss, of="stage" if cut is None else "block")
        self.asked_cut, self.blocks = cut, self.stages
        if cut is not None:
            K = arguments.number_of_stages(cut, K, devices, alone=engine != "pipeline")
            self.stages = split.stages(self.blocks, arguments.first_cut(cut, K, self.blocks))
        elif K is not None and len(self.stages) != K:
            fact = f"K={K!r}, but {len(self.stages)} stages were given"
            raise BadInput(f"{fact}. Leave K out, or add split='balanced' if these are blocks of a network to be cut.")
        self.K = K = len(self.stages)
        if engine not in engines:
            raise BadInput(f"engine={engine!r} is not known. Use pipeline (K devices), delay-line or scan (1 device).")
        self.beta = beta = checked(FIELDS["beta"], beta)
        asked = {name: value for name, value in {"weights": weights, **options}.items() if value is not None}
        self.plan = made = plan(
            method, K, correct=correct, beta=beta, weights=checked(FIELDS["weights"], weights or "stashed"),
            engine=engine, remat=remat, asked=asked if beta == 1.0 else {**asked, "beta": beta},
        )  # fmt: skip
        self.given_rate, self.learning_rate = learning_rate, arguments.rate_of(learning_rate)
        self.momentum = None if momentum is None else checked(FIELDS["momentum"], momentum)
        dtype = checked(FIELDS["dtype"], dtype)
        self.loss_draws = arguments.required(loss) == 3
        self.compute = [
            ComputeOptions(
                precision(dtype, last=k == K), k in made.remat,
                loss_draws=self.loss_draws and (k == K or self.stage_class.local_loss),
            ) for k in range(1, K + 1)
        ]  # fmt: skip
        given, spread = arguments.check_devices(devices, K, alone=engine != "pipeline"), made.method.places
        if spread and any(isinstance(each, Mesh) for each in given):
            fact = f"method {made.method.name} spreads every stage over the K devices by itself"
            raise BadInput(f"{fact}. Give one device for each stage, devices=jax.devices()[:{K}], and no replicas.")
        self.places = spread(given) if spread else [MeshPlace(e) if isinstance(e, Mesh) else Place(e) for e in given]
        self.devices = [place.device for place in self.places]
        self.optimizers = arguments.stage_optimizers(optimizer, K)
        self.loss, self.preprocess = loss, arguments.check_preprocess(preprocess)
        own = arguments.OF_PIPELINE
        self.guard, self.norms = checked(own["guard"], guard), checked(own["gradient_norms"], norms)
        self.ema, self.axis_rules = checked(own["ema"], ema), arguments.check_rules(axis_rules)

    @property
    def stage_class(self) -> type[Stage]:
        """The class that makes each stage: the method's own, else `Stage`."""
        return self.plan.method.stage or Stage

    def stage_corrections(self, params: Sequence[Tree]) -> list[Correction]:
        """The correction of each stage's late gradients. Raises BadInput if a stage cannot have its correction.

        params: for each stage, the shapes of its parameters.
        """
        found = []
        for k, staleness in enumerate(self.plan.schedule.mean_staleness, 1):
            late = Late(k, self.K, staleness, self.learning_rate, self.momentum)
            made = corrections.for_stage(self.plan.corrections, late)
            for kind, correction in made:
                correction_parts.check(kind, correction, k, self.optimizers[k - 1], params[k - 1])
            found.append(corrections.together([correction for _, correction in made]))
            correction_parts.check_correctable(k, found[-1], self.stage_class, self.plan.weights)
        return found

    def specs(
        self, key: jax.Array, example_batch: Batch, variables: Sequence[Mapping] | Mapping | None
    ) -> tuple[list[Spec], Batch]:
        """Returns the spec of each stage, and the example batch as shapes. Arguments as for `Pipeline.init`.

        Raises BadInput, before anything compiles, if shapes or types do not fit.
        """
        check_no_mesh()
        use = "init(jax.random.key(0), (inputs, labels))"
        arguments.check_key(key, "init takes a JAX random key, then an example batch", use)
        example = check_example(example_batch)
        self.check_replicas(examples(example[0]) // self.plan.schedule.micro_batches)
        if self.asked_cut is not None:
            variables = self.cut(key, example, variables)
        if isinstance(variables, Mapping):
            variables = arguments.cut_variables(variables, self.stages)
        stages = list(zip(self.stages, self.compute, self.plan.other_weights, self.optimizers, strict=True))
        shapes = check_shapes(stages, self.loss, self.preprocess, example, variables)
        report = guard_loss(self.loss) if self.guard else self.loss
        loss = lambda *a: loss_of(report(*a))  # noqa: E731  # the function must not hold this object
        corrected, specs = self.stage_corrections([seen.params for seen in shapes.stages]), []
        self.check_sown([seen.compute for seen in shapes.stages])
        self.check_parts(shapes)
        for k, (module, seen, init) in enumerate(zip(self.stages, shapes.stages, shapes.inits, strict=True), 1):
            stage_key, correction = jax.random.fold_in(key, k), corrected[k - 1]
            made = self.first_variables(k, seen, init, stage_key, given=variables is not None)
            spec = Spec(
                k=k,
                K=self.K,
                module=module,
                optimizer=correction.around(self.optimizers[k - 1]),
                loss=report if shapes.report is shapes.loss else loss,
                report=report,
                variables=made,
                x=seen.x,
                y=seen.y,
                outputs=shapes.stages[-1].y,
                labels=shapes.labels,
                value=shapes.loss,
                reported=shapes.report,
                key=jax.random.fold_in(stage_key, 2),
                options=self.plan.stage_options,
                compute=seen.compute,
                guard=self.guard,
                norms=self.norms,
                correction=correction,
                ema=self.ema,
            )
            specs.append(spec)
        self.needed = [(seen.variables, seen.x) for seen in shapes.stages]
        self.followed = [(spec.module, spec.compute, shape_of(spec.variables)) for spec in specs]
        self.example, self.sizes = example, {tuple(leaf.shape for leaf in jax.tree.leaves(example))}
        no_effect.warn(self.plan, self.momentum, self.optimizers[0], shapes.stages[0].params)
        if not all_here(self.places):
            notices.check_same(self.settings(key, specs))
        return specs, example

    def first_variables(self, k: int, seen: TracedModule, init: Any, key: jax.Array, given: bool) -> dict[str, Tree]:
        """The first variables of stage k, on its devices. If the devices belong to another process, returns shapes.

        Each process makes the variables of its own stages only, and no device has to hold the variables of all stages.

        seen, init: from `check_shapes`. key: the stage's random key. given: whether the caller gave the variables.
        """
        place, cut = self.places[k - 1], None
        if isinstance(place, MeshPlace):
            cut = shardings(k, place.mesh, seen.axes, seen.variables, self.axis_rules)
        here = any(map(is_here, place.devices))
        made = first_variables(init, key, cut, given) if here else jax.eval_shape(init, key)
        if seen.draws:
            made["rng"] = drawing_key(key)
        return jax.device_put(made, place.device) if is_here(place.device) and cut is None else made

    def check_replicas(self, n: int) -> None:
        """Raises BadInput if the devices of a stage do not divide a batch, or micro-batch, of n examples. A method that
        distributes its stages itself has its own rule."""
        for k, place in enumerate(self.places, 1):
            if n % place.parts and not self.plan.method.places:
                fact = f"a batch of {n} examples cannot be divided among the {place.parts} devices of stage k={k}"
                raise BadInput(f"{fact}: each would compute all of it. Use a multiple of {place.parts} examples.")

    def fitting(self, variables: Sequence[Mapping] | Mapping | None) -> list[dict[str, Tree]] | None:
        """Turns the user's variables, of the whole network or of each stage, into a dictionary for each stage, in the
        containers of its module. Raises BadInput if they do not fit."""
        if variables is None:
            return None
        if isinstance(variables, Mapping):
            variables = arguments.cut_variables(variables, self.stages)
        check_number(self.K, variables)
        found = zip(self.needed, variables, strict=True)
        return [fitting_variables(k, needed, given, x) for k, ((needed, x), given) in enumerate(found, 1)]

    def check_size(self, batch: Batch) -> None:
        """Raises BadInput if the stages cannot take arrays with the shapes of a batch (inputs, labels). Warns once if
        batches of many shapes come.

        Each valid shape is checked once. If only the batch size is new and the method cuts batches into parts, nothing
        is checked, since stages see other sizes.
        """
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        if shapes in self.sizes:
            return
        like = jax.tree.leaves(self.example)
        longer = [shape[1:] for shape in shapes] != [leaf.shape[1:] for leaf in like]
        fixed = self.stage_class.fixed_lengths
        if longer and (fixed or not all_here(self.places)):
            why = f"method {self.plan.method.name}" if fixed else "a pipeline in several processes"
            fact = f"a batch is {describe(batch)}, but at init it was {describe(like)}, and {why} cannot change shapes"
            raise BadInput(f"{fact}. Only the batch size may differ: pad the batch, with weights 0 (fdg_jax.Weighted).")
        if longer or (self.plan.schedule.micro_batches == 1 and not self.plan.method.places):
            self.follow(batch)
        self.sizes.add(shapes)
        if len(self.sizes) == MANY_SHAPES + 1:
            fact = f"batches of {len(self.sizes)} shapes have come, and every stage compiles anew for each shape"
            way_out = "Pad batches to one length, or to a few (buckets), with weights 0 (fdg_jax.Weighted)"
            warnings.warn(f"{fact}. {way_out}. This warning comes only once.", stacklevel=4)

    def follow(self, batch: Batch) -> None:
        """Traces a batch, (inputs, labels) as shapes, through all stages in training mode. Raises BadInput if a stage
        or the loss cannot take the batch. Later, an error within a tick would leave the stages at different batches."""
        n, (x, labels) = examples(batch[0]), preprocessed(self.preprocess, *map(shape_of, batch))
        for k, (module, compute, variables) in enumerate(self.followed, 1):
            fact = f"stage k={k} ({name_of(module)}) cannot take {describe(x)}, from a batch of {n} examples."
            way_out = "Leave that batch out, or fill it up with examples of weight 0 (fdg_jax.Weighted)."
            state = split_variables(variables)
            _, x, _ = trace_or_refuse(fact, trace_forward, module, compute, *state, x, way_out=way_out)
        check_loss(self.loss, x, labels, self.loss_draws)

    def check_sown(self, compute: Sequence[ComputeOptions]) -> None:
        """Raises BadInput if a stage below K sows losses, which would count once for every micro-batch."""
        sowing = [k for k, each in enumerate(compute, 1) if each.sows and k < self.K]
        if sowing and self.plan.schedule.micro_batches > 1:
            raise BadInput(
                f"stage k={sowing[0]} sows losses, and method {self.plan.method.name} cuts a batch into "
                f"{self.plan.schedule.micro_batches} micro-batches: these losses would count once for each. Use "
                "micro_batches=1, or another method."
            )

    def check_parts(self, shapes: Shapes) -> None:
        """Raises BadInput if batches are cut into parts and the loss is no mean over examples."""
        M, parts, other = self.plan.schedule.micro_batches, "", "use a method that sees whole batches, such as bp"
        if M > 1:
            parts = f"{M} micro-batches"
        elif self.plan.stage_options.get("batch_norm") == "local" and self.K > 1:
            parts, other = f"parts for {self.K} replicas", "use batch_norm='sync', where the loss sees the whole batch"
        if parts and not self.loss_draws:  # a loss that draws random numbers gives another value at each call
            cuts = f"method {self.plan.method.name} cuts a batch into {parts}"
            weighted = "labels.mean(values) if the labels are fdg_jax.Weighted"
            way_out = f"Return the mean over the examples ({weighted}), or {other}."
            check_mean(self.loss, shapes.stages[-1].y, shapes.labels, cuts, way_out)

    def cut(self, key: jax.Array, example: Batch, variables: Any) -> Any:
        """Cuts the blocks into stages, now that shapes are known. Returns the given variables. If none are given,
        returns initial variables of the whole network, which do not depend on the cut."""
        x, _ = preprocessed(self.preprocess, *map(shape_of, example))
        self.stages = split.stages(self.blocks, arguments.cut(self.asked_cut, self.K, self.blocks, x, self.places))
        if variables is not None:
            return variables
        return trace_or_refuse(f"the blocks cannot take {describe(x)}.", split.init_whole, self.blocks, key, x)

    def settings(self, key: jax.Array, specs: Sequence[Spec]) -> dict[str, str]:
        """The settings that all processes of a pipeline must share: name -> text.

        Loss, optimizer, preprocess and learning rate schedules are functions and cannot be compared.
        """
        plan, schedule = self.plan, self.plan.schedule
        asked = {f"{kind.name}'s {name}": value for kind, own in plan.corrections for name, value in own.items()}
        found = {
            "JAX": jax.__version__,
            "NumPy": np.__version__,
            "Optax": optax.__version__,
            "K": self.K,
            "method": plan.method.name,
            "beta": self.beta,
            "weights": plan.weights,
            "staleness": list(schedule.mean_staleness),
            "accumulate": schedule.accumulate,
            "accumulation": schedule.accumulation,
            "micro-batches": schedule.micro_batches,
            "guard": self.guard,
            "gradient norms": self.norms,
            "ema": self.ema,
            "axis rules": self.axis_rules,
            "remat": [compute.remat for compute in self.compute],
            "correct": ",".join(plan.corrected_by) or "none",
            **asked,
            **plan.stage_options,
            "random key": np.ravel(plain(key)).tolist(),
            "learning rate": "a schedule" if callable(self.given_rate) else self.given_rate,
            "momentum": self.momentum,
            "inputs": describe(specs[0].x),
            "labels": describe(specs[0].labels),
            "what the loss returns": describe(specs[0].reported),
        }
        for spec in specs:
            state = f"{describe(spec.variables)} in {spec.compute.precision.compute_dtype or 'its own dtype'}"
            found[f"as stage k={spec.k}"] = f"{type(spec.module).__name__} with {state}, giving {describe(spec.y)}"
        return {name: str(value) for name, value in found.items()}
