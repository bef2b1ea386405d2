"""Help of commands in sections: the text of each setting, and the command that prints them."""

from __future__ import annotations

import click

from syncpretrain.schedule.kinds import SCHEDULES
from syncpretrain.units.kinds import KINDS, UNITS

__all__ = ["OUTPUT", "SECTIONS", "TEXTS", "SectionedCommand"]


OUTPUT = "Run folder and output"  # also of options that belong to no other section


def _described(name: str) -> str:
    """Return the name of a kind of units, with the restriction that a user should know."""
    if KINDS[name].sample is None:
        return f"{name} (autoencoders)"
    return f"{name} (linear)" if KINDS[name].is_linear else name


def _listed(names: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _lower_rates() -> str:
    """Return the default learning rates below the usual one, and the kinds that have them."""
    rates: dict[float, list[str]] = {}
    for name in UNITS:
        rates.setdefault(KINDS[name].learning_rate, []).append(name)
    lower = sorted(rates)[:-1]
    return ", ".join(f"{rate:g} with {_listed(rates[rate])} units" for rate in lower)


# Texts by the name of the option. A text that names no default gets it appended.
SECTIONS: dict[str, dict[str, str]] = {
    "Comparison": {
        "starts": f"Starts to compare: {', '.join(SCHEDULES)} or random; a schedule also as"
        " NAME:always or NAME:drift:X. Default greedy,synchronized,random.",
        "seeds": "Runs of each start. Default 3.",
    },
    "Data and settings": {
        "data": "mnist, digits, a name of 'syncpretrain data list', a .npy, .npz, IDX, .csv or"
        " .parquet file, or a folder of images.",
        "target": "The column of a table that holds the labels, by name, or by number from 1 (-1"
        " for the last).",
        "drop": "Columns of a table to leave out.",
        "task": "What the labels are for. Default classification for text and whole numbers.",
        "test": "A part to test with: a fraction of the examples, or another file.",
        "unlabelled": "A file of more examples to train on, without labels.",
        "examples": "Train on N of the training examples only. Default all.",
        "validation": "Share of the training examples to hold out. Default 10,000 of MNIST's"
        " 60,000, or a tenth.",
        "labels": "Keep the labels of N training examples only. Default all.",
        "hidden": "In place of --layers: the units of each layer, above the values that the data"
        " have.",
        "preset": "Take the settings of a preset, listed by 'syncpretrain presets'; options given"
        " here win.",
        "config": "Take the settings of a run folder's config.toml; options given here win.",
        "print_config": "Print all settings as config.toml would have them, and train nothing.",
        "dry_run": "Check everything, predict the memory and the time, and train nothing.",
    },
    "Model": {
        "layers": "Values of an example, then units of each layer: 784,500,30; or"
        " 1x28x28,conv:20x5,pool:2,500 of images, conv:FILTERSxSIZE[:PAD][/GROUPS] and"
        " pool:SIZE[:mean].",
        "columns": "Columns of convolutions, joined in the middle.",
        "model": "Kind of all layers.",
        "visible_units": "Input: bernoulli (default), gaussian, auto, or by columns"
        " gaussian:5,softmax:3x7.",
        "hidden_units": f"{_listed([_described(name) for name in UNITS])}.",
        "visible_bias": "Start at 0 (default), or log-odds of the means.",
        "tied": "Autoencoders: the decoder shares the weights (default), or has its own.",
        "loss": "Loss of autoencoders. Default cross-entropy, squared for gaussian visible units.",
        "corruption": "Denoising: masking:0.25 (default), salt-and-pepper:SHARE or"
        " gaussian:DEVIATION.",
        "contraction": "Weight of the contractive penalty. Default 0.1.",
    },
    "Learning": {
        "epochs": "Default 10; auto: until settled, up to N (100).",
        "batch_size": "Examples in a minibatch.",
        "learning_rate": f"Default 0.1, {_lower_rates()}.",
        "momentum": "Default '0.5:5,0.9', which is 0.5 for 5 epochs, then 0.9; a ';' between"
        " layers.",
        "weight_decay": "",
        "l1": "Weight decay by the weights' signs.",
        "cd_steps": "Gibbs steps, the k of CD-k.",
        "sample_visible": "Reconstruct the input by samples, not means.",
        "persistent": "Keep the chains between minibatches (PCD).",
        "sparsity_target": "Mean activity to aim for.",
        "sparsity_cost": "Weight of the pull to that activity.",
        "hidden_dropout": "Share of hidden units left out of an example.",
        "early_stopping": "End a layer's own epochs when it overfits (the gap), or no longer gets"
        " better. The last is for autoencoders.",
        "patience": "Bad epochs that end a layer.",
        "seed": "The same seed gives the same model.",
    },
    "Schedule": {
        "schedule": "Layers in parallel (default), in turn or groups; auto: the fastest.",
        "group_size": "Layers that rounds train at a time. Default 2.",
        "pace": "Epoch k reads version k of the layer below (default), or the newest there is.",
        "handoff": "Train on whole versions of the layer below (default), or on its minibatches as"
        " they are computed.",
        "delay": "Epochs that a layer starts after the one below, with minibatch. Default 0.5.",
        "shuffle": "Order of a streamed run: rows (default), or blocks of N rows, for large files.",
        "refresh_epochs": "Epochs on each newer version.",
        "refresh_when": "Refresh on every version (default), or on one that differs by more than X"
        " from the last.",
        "settle": "Change of outputs that ends a layer's epochs. Default 0; with auto 0.15, or the"
        " X of drift:X.",
        "finish": "Stop when every version is read (default), or do not wait for refreshes.",
    },
    "Workers": {
        "runtime": "Layers in threads (default), processes, turns, or on ranks of mpiexec (mpi).",
        "backend": "CPU, all GPUs, or GPU N; auto (default) takes a GPU that CuPy can use.",
        "precision": "Matrix products; tf32 on a GPU.",
        "workers": "For all layers. Default the usable cores.",
        "replicas": "Workers of one layer, if to spare.",
        "split": "What replicas share: examples (default), an RBM's units, filters; or hybrid:"
        " examples of convolutions, units of others.",
        "shards": "Parts of a minibatch; they decide the result. Default as many as replicas.",
        "servers": "Async: slices of the parameters, each with a thread or rank.",
        "exchange": "Async with mpi: by messages (default), or one-sided in windows.",
        "blas_threads": "For greedy and fine-tuning; parallel layers take one each. Default the"
        " usable cores.",
    },
    "Fine-tuning": {
        "finetune": "Backpropagation through the stack.",
        "finetune_epochs": "",
        "finetune_optimizer": "cg, lbfgs: large batches, SciPy.",
        "finetune_learning_rate": "Default 0.001 for adam, 0.1 for sgd.",
        "finetune_rate_schedule": "How the rate falls to 0.",
        "finetune_momentum": "Momentum of sgd.",
        "finetune_nesterov": "Nesterov's momentum.",
        "finetune_weight_decay": "",
        "finetune_loss": "Loss of reconstruction. Default squared.",
        "finetune_dropout": "Share of hidden units left out.",
        "finetune_input_dropout": "Share of inputs left out.",
        "finetune_input_noise": "Deviation of noise on inputs.",
        "finetune_normalization": "batch standardizes relu units.",
        "finetune_unlabelled": "pseudo: guessed classes train too.",
        "finetune_patience": "End N epochs after the best; keep its weights.",
        "finetune_batch_size": "",
    },
    "Workers of fine-tuning": {
        "finetune_precision": "float32 (default), tf32, bfloat16 or auto.",
        "finetune_replicas": "Sharing a minibatch. Default one a usable core.",
        "finetune_split": "What replicas share. Default units, or hybrid.",
        "finetune_shards": "Default as many as replicas.",
    },
    "Asynchronous": {
        "push_every": "Local steps before a replica pushes.",
        "fetch_every": "Local steps before it fetches. Default as often.",
        "async_rate": "Divide changes by their staleness (default).",
        "delay_compensation": "Lambda of the compensation. Default 0, none.",
        "max_staleness": "Make a change anew that is staler than N.",
        "simulate_staleness": "In turns: apply changes N changes late.",
        "trim_replicas": "Stop replicas that do not pay.",
        "finetune_schedule": "",
        "finetune_runtime": "For async; or mpi, by examples.",
        "finetune_push_every": "As --push-every.",
        "finetune_fetch_every": "",
        "finetune_async_rate": "Default staleness.",
        "finetune_delay_compensation": "Default 0.",
        "finetune_max_staleness": "",
        "finetune_simulate_staleness": "",
        "finetune_trim_replicas": "",
        "finetune_servers": "",
    },
    OUTPUT: {
        "checkpoint_every": "Write a checkpoint once any layer, or fine-tuning, has done N epochs"
        " since the last one, or S seconds have passed.",
        "keep": "Checkpoints to keep.",
        "max_restarts": "Replace a process that dies, or else resume from the last checkpoint if a"
        " worker fails, at most N times in all.",
        "stall_timeout": "End a run that trains no minibatch for so long.",
    },
}
TEXTS = {name: text for texts in SECTIONS.values() for name, text in texts.items()}


FIRST_COLUMN = 26  # longer options have a line of their own
HOMES = {name: section for section, texts in SECTIONS.items() for name in texts}


class SectionedCommand(click.Command):
    """A command with its options in sections of its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of this command, section by section."""
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
                rows[HOMES.get(param.name or "", OUTPUT)].append(row)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records, col_max=FIRST_COLUMN)
