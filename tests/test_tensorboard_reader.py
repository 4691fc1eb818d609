#!/usr/bin/env python3
"""Reads the demo run of test_tensorboard, and a short run of nano in FP8, with the real tensorboard package.

    test_tensorboard_reader.py path/to/test_tensorboard path/to/train_gpt2_fp8

Exit 77: tensorboard is not installed.
"""
import os
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginAccumulator
    from tensorboard.plugins.hparams import metadata as hparams_metadata
    from tensorboard.util import tensor_util
except ImportError as error:
    print(f"skipped: {error} (pip install tensorboard)")
    sys.exit(77)

# What write_demo in test_tensorboard.cpp writes: a life of steps 0 to 9, killed within a record, and one from step 5.
EXPECTED_LOSS = [(step, 10.0 - step) for step in range(5)] + [(step, 100.0 + step) for step in range(5, 8)]


def check(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: found {found!r}, expected {expected!r}")


def check_classic(folder):
    """The accumulator that scripts use."""
    events = EventAccumulator(folder, size_guidance={"histograms": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    check(sorted(events.Tags()["scalars"]), ["train/loss", "val/loss"], "scalar tags")
    check([(e.step, e.value) for e in events.Scalars("train/loss")], EXPECTED_LOSS, "train/loss after the resume")
    nan = events.Scalars("val/loss")[0].value
    check(nan != nan, True, "NaN as a scalar")

    [event] = events.Histograms("weights/wte")
    histogram = event.histogram_value
    check(event.step, 4, "step of the histogram")
    check((histogram.min, histogram.max, histogram.num), (-2.0, 3.0, 6.0), "min, max, num")
    check((histogram.sum, histogram.sum_squares), (1.5, 4 + 0.75 + 9), "sum, sum of squares")
    filled = [count for count in histogram.bucket if count]
    check(filled, [1, 1, 1, 2, 1], "filled buckets")
    check(len(histogram.bucket), len(histogram.bucket_limit), "limits and buckets")

    [text] = events.Tensors("samples")
    check(text.tensor_proto.string_val[0].decode(), "Once upon a *time*\ufffd", "text")


def check_dashboards(folder):
    """The accumulator behind TensorBoard's pages: values are converted and handed to plugins."""
    events = PluginAccumulator(folder)
    events.Reload()
    plugins = {tag: events.SummaryMetadata(tag).plugin_data.plugin_name for tag in events.Tags()["tensors"]}
    check(plugins["train/loss"], "scalars", "plugin of train/loss")
    check(plugins["weights/wte"], "histograms", "plugin of weights/wte")
    check(plugins["samples"], "text", "plugin of samples")
    buckets = tensor_util.make_ndarray(events.Tensors("weights/wte")[0].tensor_proto)
    check((buckets.shape[1], float(buckets[:, 2].sum())), (3, 6.0), "converted histogram")
    check((float(buckets[0, 0]), float(buckets[-1, 1])), (-2.0, 3.0), "its outer edges")

    contents = {tag: events.SummaryMetadata(tag).plugin_data.content for tag in plugins if plugins[tag] == "hparams"}
    experiment = hparams_metadata.parse_experiment_plugin_data(contents["_hparams_/experiment"])
    check({info.name: info.type for info in experiment.hparam_infos}, {"fp8": 2, "limit": 1, "lr": 3, "model": 1},
          "hparam types")
    check([info.name.tag for info in experiment.metric_infos], ["train/loss"], "hparam metrics")
    start = hparams_metadata.parse_session_start_info_plugin_data(contents["_hparams_/session_start_info"])
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    check(values, {"fp8": True, "limit": "inf", "lr": 6e-4, "model": "nano"}, "hparam values")
    end = hparams_metadata.parse_session_end_info_plugin_data(contents["_hparams_/session_end_info"])
    check(end.status, 1, "status of the session")


def groups_in_order(tags):
    """As TensorBoard's page has them: by the first part of their tags, sorted."""
    return list(dict.fromkeys(tag.split("/", 1)[0] for tag in sorted(tags)))


def check_fp8_run(program, folder, *flags):
    """The scalar tags of nano, two steps in emulated FP8."""
    subprocess.run([program, "--model", "nano", "--precision", "fp8", "--device", "cpu", "--max_steps", "2", "--batch_size",
                    "1", "--target_batch_size", "1", "--eval_sequences", "1", "--sample_tokens", "4", "--run_name", "run",
                    *flags], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    events = EventAccumulator(os.path.join(folder, "runs/run"))
    events.Reload()
    tags = events.Tags()
    check(groups_in_order(tags["scalars"] + tags["histograms"])[:2], ["train", "val"], "the groups that open on top")
    check("sample/text_summary" in tags["tensors"] or "sample" in tags["tensors"], True, "a sample as text")
    check([e.step for e in events.Histograms("weights/wte.weight")], [2], "steps of histograms")
    return set(tags["scalars"])


SUMMARIES = {"vitals_fp8/" + name
             for name in ("fwd_scale", "bwd_scale", "worst_saturated", "worst_flushed", "blocks_in_bf16")}


def check_fp8_tags(program):
    with tempfile.TemporaryDirectory() as folder:
        tags = check_fp8_run(program, folder)
        check({tag for tag in tags if "fp8" in tag}, SUMMARIES, "FP8 tags by default")
        check(len(tags) < 40, True, f"fewer than 40 scalar tags, not {len(tags)}")
    with tempfile.TemporaryDirectory() as folder:
        detail = {tag for tag in check_fp8_run(program, folder, "--fp8_detail") if "fp8" in tag} - SUMMARIES
        check({tag.split("/")[0] for tag in detail},
              {"vitals_fp8_scale", "vitals_fp8_saturated", "vitals_fp8_flushed"}, "groups of --fp8_detail")
        check(len(detail), 3 * 14, "charts of --fp8_detail, whatever the depth")


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.join(temporary, "demo")
        subprocess.run([sys.argv[1], "--test-case=the demo run"], check=True, env={**os.environ, "GPT2_TB_OUT": folder})
        check_classic(folder)
        check_dashboards(folder)
    check_fp8_tags(sys.argv[2])
    print("tensorboard reads the demo run and finds nano's tags")


if __name__ == "__main__":
    main()
