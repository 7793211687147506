"""figures.py draws every kind from a run that carries every kind, and says what it can't draw."""
import contextlib
import csv
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

import figure_layout
import synthetic_run

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
from shardmark.drawing import bars, limits, run_json, sheet, training  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = {"bus_bandwidth", "speedup", "step_time", "timeline", "memory", "memory_bandwidth", "matrix_rate",
         "link_matrix", "loss", "memory_map", "scaling", "bubble", "step_breakdown", "mfu"}


def figures(*arguments):
    return subprocess.run([sys.executable, os.path.join(HERE, "figures.py"), *arguments], capture_output=True,
                          text=True, check=False)


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


class AllOfThem(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.run_dir = cls.place.name
        cls.document = synthetic_run.document()
        synthetic_run.write(cls.run_dir, cls.document)
        cls.ran = figures(cls.run_dir)
        cls.directory = os.path.join(cls.run_dir, "figures")
        cls.listing = json.loads(read(cls.directory, "figures.json"))

    @classmethod
    def tearDownClass(cls):
        cls.place.cleanup()

    def rows(self, name):
        with open(os.path.join(self.directory, f"{name}.csv"), encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def test_all_kinds(self):
        self.assertEqual((self.ran.returncode, self.ran.stderr), (0, ""))
        self.assertEqual({entry["kind"] for entry in self.listing}, KINDS)
        self.assertEqual(self.ran.stdout, f"figures: {len(self.listing)} in {self.directory}\n")
        expected = {"figures.json"} | {f'{e["name"]}.{s}' for e in self.listing for s in ("svg", "csv")}
        self.assertEqual(set(os.listdir(self.directory)), expected)
        for entry in self.listing:
            with open(os.path.join(self.directory, f'{entry["name"]}.svg'), encoding="utf-8") as file:
                size = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', file.read()).groups()
            for value, written in zip((entry["width"], entry["height"]), size):
                self.assertAlmostEqual(value, float(written), delta=0.1, msg=entry["name"])
            self.assertTrue(entry["group"] and entry["about"][0].isupper(), entry)

    def test_layout(self):
        """No text overlaps another, leaves its figure or is too small to read."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(list(figure_layout.findings_of_run(self.run_dir)), [])

    def test_layout_of_bad_figures(self):
        for change, words in ((lambda axes: axes.set_xlabel("long " * 30), "leaves the figure"),
                              (lambda axes: axes.text(0.5, 0.5, "x", fontsize=3), "is shown with 5."),
                              (lambda axes: axes.set_xticks([0, 0.01], ["first", "second"]), "'first' overlaps 'second'"),
                              (lambda axes: axes.plot([0, 1], label="word " * 30), "the legend leaves the figure")):
            figure, axes = sheet.new_figure(2)
            change(axes)
            sheet.legend_above(axes)
            figure.draw_without_rendering()
            found = list(figure_layout.findings(figure))
            self.assertTrue(any(words in line for line in found), (words, found))

    def test_pdf(self):
        """A PDF has fonts that journals accept and is one column wide."""
        with tempfile.TemporaryDirectory() as run_dir:
            synthetic_run.write(run_dir, self.document)
            self.assertEqual(figures(run_dir, "--format", "pdf", "--format", "png").returncode, 0)
            drawn = {name: read(run_dir, "figures", name) for name in os.listdir(os.path.join(run_dir, "figures"))}
        for entry in self.listing:
            self.assertTrue(drawn[f'{entry["name"]}.png'].startswith(b"\x89PNG"))
            data = drawn[f'{entry["name"]}.pdf']
            self.assertTrue(data.startswith(b"%PDF"))
            self.assertFalse(b"/Type3" in data, entry["name"])
            self.assertTrue(b"/FontFile2" in data, entry["name"])  # an embedded TrueType font
            width = float(re.search(rb"/MediaBox \[ 0 0 ([0-9.]+)", data).group(1))
            self.assertAlmostEqual(width, 3.4 * 72, places=3)

    def test_svg(self):
        """Well formed, text as paths, and no id twice over all of them."""
        seen = set()
        for entry in self.listing:
            text = read(self.directory, f'{entry["name"]}.svg').decode()
            ids = [e.get("id") for e in ElementTree.fromstring(text).iter() if e.get("id")]
            self.assertEqual(len(ids), len(set(ids)))
            self.assertFalse(seen & set(ids))
            seen |= set(ids)
            for used in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
                self.assertIn(used, ids)
            self.assertNotIn("<text", text)

    def test_tables(self):
        for entry in self.listing:
            rows = self.rows(entry["name"])
            self.assertGreater(len(rows), 1, entry["name"])
            for row in rows:
                self.assertNotIn(None, row, entry["name"])
                self.assertNotIn(None, row.values(), entry["name"])

    def test_bus_bandwidth_is_the_run_s(self):
        row = next(r for r in self.rows("bus_bandwidth-all_reduce-4_ranks-float")
                   if r["line"] == "ring, mpi" and r["bytes"] == "2048")
        entry = next(e for e in self.document["benchmarks"]
                     if e["name"] == "all_reduce/algorithm:ring/transport:mpi/dtype:float/ranks:4/bytes:2048")
        for column, value in (("busbw_GBps", entry["busbw_GBps"]),
                              ("busbw_low_GBps", 1.5 * 2048 / entry["ci_high_s"] * 1e-9),
                              ("busbw_high_GBps", 1.5 * 2048 / entry["ci_low_s"] * 1e-9),
                              ("limit_GBps", 1.5 * 2048 / entry["limit_s"] * 1e-9)):
            self.assertAlmostEqual(float(row[column]) / value, 1, places=7, msg=column)

    def test_utilization_of_peak_and_of_matrix_product(self):
        rows = [row for e in self.listing if e["kind"] == "mfu" for row in self.rows(e["name"])]
        self.assertEqual({(row["mfu"], row["mfu_of_gemm"], row["peak_TFLOPs"]) for row in rows}, {("0.3", "0.4", "312")})

    def test_failed_and_skipped_cases(self):
        rows = self.rows("bus_bandwidth-all_reduce-4_ranks-float")
        self.assertEqual([(r["line"], r["bytes"]) for r in rows if r["verdict"] == "fail"],
                         [("direct, shared memory", "32768")])
        self.assertNotIn("ring, nccl", {r["line"] for r in rows})

    def test_link_matrix(self):
        """The data have every ordered pair of the largest number of ranks, full host names, and slow pairs."""
        self.assertEqual([e["name"] for e in self.listing if e["kind"] == "link_matrix"],
                         [f"link_matrix-shared_memory-{m}-6_ranks-1_MiB" for m in ("together", "alone")])
        rows = self.rows("link_matrix-shared_memory-together-6_ranks-1_MiB")
        self.assertEqual(len(rows), 6 * 5)
        entry = next(e for e in self.document["benchmarks"]
                     if e["unit"] == "link_matrix" and e["case"]["ranks"] == "6")["link_matrix"]
        for row in rows:
            at, to = int(row["from"]), int(row["to"])
            self.assertAlmostEqual(float(row["bandwidth_GBps"]), entry["bandwidth_GBps"][at][to], places=6)
            self.assertAlmostEqual(float(row["latency_us"]), entry["latency_us"][at][to], places=6)
            self.assertEqual((row["from_host"], row["to_host"]), (entry["hosts"][at], entry["hosts"][to]))
        self.assertEqual([(r["from"], r["to"], r["slow"]) for r in rows if r["slow"]], [("1", "4", "bandwidth")])
        caption = next(e["caption"] for e in self.listing if e["kind"] == "link_matrix")
        self.assertIn("1 (node-000.cluster.example) to 4 (node-001.cluster.example)", caption)

    def test_scaling(self):
        """Strong: one line of 8 sequences. Weak: one of 8 sequences a rank."""
        for kind, batches in (("strong", (8, 8, 8)), ("weak", (8, 16, 32))):
            rows = self.rows(f"scaling_{kind}-training_speed")
            self.assertEqual([r["ranks"] for r in rows], ["1", "2", "4"])
            for row, batch in zip(rows, batches):
                entry = next(e for e in self.document["benchmarks"] if e["unit"] == "training_speed"
                             and (e["case"]["ranks"], e["case"]["global-batch-size"]) == (row["ranks"], str(batch)))
                self.assertAlmostEqual(float(row["tokens_per_second"]) / entry["tokens_per_second"], 1, places=7)
            self.assertAlmostEqual(float(rows[2]["efficiency"]), (8 + 0.1) / (batches[2] + 4 * 0.4) * batches[2] / 8, places=7)

    def test_bubble(self):
        """Each schedule has a line with the run's measured and expected bubbles."""
        rows = self.rows("bubble-4_stages")
        self.assertEqual({r["line"] for r in rows}, {"1f1b", "interleaved-1f1b, v 2", "zb-h1", "zb-v"})
        for row in rows:
            entry = next(e for e in self.document["benchmarks"] if e["unit"] == "pipeline_bubble" and
                         e["case"]["micro_batches"] == row["micro_batches"] and
                         row["line"].startswith(e["case"]["schedule"].replace("_", "-")))
            self.assertAlmostEqual(float(row["measured"]), entry["bubble_measured"], places=7)
            self.assertAlmostEqual(float(row["expected"]), entry["bubble_expected"], places=7)

    def test_timeline_of_chunks(self):
        rows = self.rows(next(e["name"] for e in self.listing if e["kind"] == "timeline" and "zb_v" in e["name"]))
        self.assertEqual({r["name"][0] for r in rows}, set("FIW"))
        self.assertTrue(any(r["name"].endswith(".1") for r in rows))

    def test_memory_map(self):
        """The data have the place and time of every allocation. The caption states why the run ended."""
        rows = self.rows("memory_map-memory_arena-memory_arena")
        maps = next(e for e in self.document["benchmarks"] if e["unit"] == "memory_arena")["memory_maps"]
        for key in ("category", "address", "bytes", "begin", "end"):
            self.assertEqual([r[key] for r in rows], [str(b[key]) for one in maps for b in one["blocks"]])
        self.assertEqual({r["map"] for r in rows}, {"without arenas", "with arenas"})
        caption = next(e["caption"] for e in self.listing if e["kind"] == "memory_map")
        self.assertIn("it requests 1,536 bytes, 2,048 are free, and the longest hole has 1,024", caption)

    def test_same_bytes_twice(self):
        name = next(e["name"] for e in self.listing if e["kind"] == "timeline")
        before = {s: read(self.directory, f"{name}.{s}") for s in ("svg", "csv")}
        self.assertEqual(figures(self.run_dir, "--only", "timeline").returncode, 0)
        self.assertEqual(before, {s: read(self.directory, f"{name}.{s}") for s in before})


class Labels(unittest.TestCase):
    """Labels of real runs that the synthetic run lacks."""

    def overlaps(self, change):
        figure, axes = sheet.new_figure(1.2)
        change(axes)
        figure.draw_without_rendering()
        return list(figure_layout.findings(figure))

    def test_names_of_files_fit(self):
        """A step with many keys has a longer name than a file may have."""
        self.assertEqual(sheet.file_name("timeline", "gpt_step", "", "TP 2"), "timeline-gpt_step-TP_2")
        long = [sheet.file_name("timeline", "gpt_step", "key_of_a_model_" * 20 + last) for last in "ab"]
        self.assertEqual([len(name) for name in long], [sheet.LONGEST_NAME] * 2)
        self.assertNotEqual(*long)

    def test_line_styles_differ(self):
        """A collective has more algorithms than there are colours."""
        styles = {(style["color"], style["marker"]) for style in (sheet.line_style(i, 0) for i in range(24))}
        self.assertEqual(len(styles), 24)

    def test_folded(self):
        self.assertEqual(bars.folded(["float", "ranks 2"]), "float, ranks 2")
        self.assertEqual(bars.folded(["shared memory", "float", "bias on", "ranks 2"], width=20),
                         "shared memory, float,\nbias on, ranks 2")
        self.assertEqual(bars.folded(["max live parameters 1000000000", "half"], width=20),
                         "max live parameters\n1000000000, half")

    def test_unevenly_spaced_sizes(self):
        sizes = [2**n for n in (12, 14, 16, 18, 20, 22, 23, 24, 25, 26, 27, 28)]

        def draw(axes):
            axes.plot(sizes, sizes)
            sheet.byte_axis(axes, sizes)
        self.assertEqual(self.overlaps(draw), [])

    def test_long_labels_of_bars(self):
        def draw(axes):
            labels = [bars.folded(["gradient accumulation steps 3", "stage3 max live parameters 1000000000"])] * 2
            axes.barh(range(2), [470, 480])
            sheet.label_bars(axes, labels)
            axes.set_xlabel("time of a step [ms]")
            sheet.legend_above(axes, title="vocabulary-parallel-cross-entropy: measured above, formula below (paler)",
                               handles=[axes.patches[0]], labels=["parameters"])
        self.assertEqual(self.overlaps(draw), [])

    def test_values_do_not_cover_ticks(self):
        figure, axis = limits._bars(["float", "bfloat16"], [147, 618], 2266)
        limits._write_values(axis, [147, 618], ["51%", "27%"], [288, 2266])
        figure.draw_without_rendering()
        self.assertGreater(axis.texts[0].get_window_extent().x0, axis.transData.transform((288, 0))[0])

    def test_lines_of_a_loss_name_only_differences(self):
        cases = [run_json.Case({"unit": "gpt_step", "case": {"schedule": "1f1b", "dtype": d, "optimizer": o}})
                 for d, o in (("float", "adamw"), ("half", "adamw"), ("half", "sgd"))]
        self.assertEqual(list(training._names([[cases[0]], [cases[1]]], cases)), ["float", "half"])


class OfAComparison(unittest.TestCase):
    def draw(self, cases, **changes):
        verdicts = ["SLOWER", "FASTER", "EQUIVALENT", "INCONCLUSIVE"]
        times = [{"name": f"all_reduce/algorithm:ring/bytes:{8 << i % 20}/ranks:{i}", "unit": "all_reduce",
                  "case": {"algorithm": "ring", "bytes": str(8 << i % 20), "ranks": str(i)}, "verdict": verdicts[i % 4],
                  "ratio": 0.9 + 0.005 * i, "p": 0.01, "q": 0.02, "exact": True, "kind": "latency", "floor": 0.05,
                  "base_s": [1e-6, 2e-6, 4e-6], "new_s": [1e-6]} for i in range(cases)]
        for i, case in enumerate(times):
            if i % 5:  # the others have too few launches
                case["interval"] = [case["ratio"] * 0.98, case["ratio"] * 1.02]
        document = {"schema": "shardmark-compare/1", "date": "2026-11-21T12:00:00+00:00", "labels": ["A", "B"],
                    "base": ["a/1"] * 9, "new": ["b/1"] * 9, "level": 0.05, "times": times, **changes}
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "compare.json"), "w", encoding="utf-8") as file:
                json.dump(document, file)
            ran = figures(folder, "--format", "pdf")
            made = os.path.join(folder, "figures")
            if ran.returncode:
                return ran, [], b""
            with open(os.path.join(made, "shifts.csv"), encoding="utf-8", newline="") as file:
                return ran, list(csv.DictReader(file)), read(made, "shifts.pdf")

    def test_shifts(self):
        ran, rows, pdf = self.draw(60)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(len(rows), 60)  # the table has all cases, the figure only some
        ratios = [float(row["ratio"]) for row in rows]
        self.assertEqual(ratios, sorted(ratios))
        self.assertEqual((rows[0]["low"], rows[1]["low"]), ("", f"{0.905 * 0.98:.9g}"))
        self.assertEqual(float(rows[0]["base_s"]), 2e-6)
        self.assertTrue(pdf.startswith(b"%PDF") and b"/Type3" not in pdf)

    def test_levels(self):
        runs = [{"run": i, "date": f"2026-11-{i + 1:02}", "commit": f"c{i}", "seconds": 1e-6 * (2 if i > 6 else 1),
                 "level": 1e-6 * (2 if i > 6 else 1), "change": i == 7,
                 "breaks": [{"field": "software.nccl.loaded", "before": "1", "after": "2"}] if i == 3 else []}
                for i in range(12)]
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "history.json"), "w", encoding="utf-8") as file:
                json.dump({"schema": "shardmark-history/1", "tracks": [{"name": "barrier/ranks:2", "runs": runs}]}, file)
            ran = figures(folder, "--only", "memory")
            self.assertEqual((ran.returncode, ran.stdout), (2, ""))
            self.assertIn("has only levels", ran.stderr)
            ran = figures(folder)
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            with open(os.path.join(folder, "figures", "history-barrier_ranks_2.csv"), encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self.assertEqual([row["run"] for row in rows if row["change"] == "True"], ["7"])
        self.assertEqual([row["breaks"] for row in rows if row["breaks"]], ["software.nccl.loaded"])

    def test_another_schema(self):
        ran, _, _ = self.draw(2, schema="other/1")
        self.assertEqual((ran.returncode, ran.stderr.count("\n")), (2, 1))
        self.assertIn("other/1", ran.stderr)


class Strategies(unittest.TestCase):
    def test_names_bytes_and_bubbles_are_drawn(self):
        named = [{"name": name, "source": "", "axes": {"pipeline-model-parallel-size": pp, "zero-stage": zero}}
                 for name, pp, zero in (("GPipe", "4", "0"), ("ZeRO-1", "1", "1"), ("not measured", "2", "2"))]
        document = synthetic_run.document()
        document["benchmarks"] = [
            synthetic_run.entry("gpt_step", strategy["axes"], 0.01, random.Random(1), **more,
                                memory=[{"category": category, "measured": 2**20, "expected": 2**20}
                                        for category in ("parameters", "optimizer")])
            for strategy, more in zip(named, ({"bubble_measured": 0.4, "bubble_expected": 0.3, "wire_bytes_pp": 4096},
                                              {"wire_bytes_dp": 8192}))]
        with tempfile.TemporaryDirectory() as run_dir:
            synthetic_run.write(run_dir, document)
            with open(os.path.join(run_dir, "strategies.json"), "w", encoding="utf-8") as file:
                json.dump({"schema": "shardmark-strategies/1", "strategies": named}, file)
            ran = figures(run_dir, "--only", "strategies")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            with open(os.path.join(run_dir, "figures", "strategies.csv"), encoding="utf-8") as file:
                rows = list(csv.reader(file))[1:]
        self.assertEqual({row[0] for row in rows}, {"GPipe", "ZeRO-1"})
        self.assertIn(["GPipe", "bubble", "", "0.4", "0.3", "pass"], rows)
        self.assertIn(["ZeRO-1", "sent", "dp", "8192", "", "pass"], rows)


class Contexts(unittest.TestCase):
    def test_algorithms_are_lines_over_ranks(self):
        def entry(unit, ranks, length, memory, axes):
            return synthetic_run.entry(
                unit, {"ranks": ranks, "dtype": "float", "seq-length": length, **axes}, 0.01, random.Random(1),
                tokens_per_second=100 * ranks + length,
                memory=[{"category": name, "measured": memory, "expected": memory} for name in ("activations", "buffers")])

        kinds = [("ring_attention", {"cp-comm-type": "p2p", "placement": "zigzag"}, "ring"),
                 ("ring_attention", {"cp-comm-type": "a2a+p2p", "placement": "zigzag"}, "Ulysses and ring"),
                 ("ulysses_attention", {"placement": "zigzag"}, "Ulysses"),
                 ("fpdt_attention", {"placement": "striped", "ds-sequence-parallel-fpdt-chunk-size": 64,
                                     "ds-sequence-parallel-fpdt-offloading": "on"}, "FPDT, chunks on the host")]
        document = synthetic_run.document()
        # 100 bytes a token and 1000 bytes, of both categories together, divided by the ranks.
        document["benchmarks"] = [entry(unit, ranks, length, (50 * length + 500) / ranks, axes)
                                  for unit, axes, _ in kinds for ranks in (2, 4) for length in (100, 300)]
        with tempfile.TemporaryDirectory() as run_dir:
            synthetic_run.write(run_dir, document)
            ran = figures(run_dir, "--only", "contexts")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            with open(os.path.join(run_dir, "figures", "contexts-float.csv"), encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        self.assertEqual({row["algorithm"] for row in rows}, {line for _, _, line in kinds})
        self.assertEqual({row["seq_length"] for row in rows}, {"300"})
        of = {(row["ranks"], row["quantity"]): float(row["value"]) for row in rows if row["algorithm"] == "Ulysses"}
        self.assertEqual(of["4", "tokens_per_second"], 700)
        self.assertEqual(of["4", "memory"], 31000 / 4)
        self.assertAlmostEqual(of["4", "longest_sequence"], (4 * 2**30 - 1000) / 100, delta=1)

    def test_one_length_has_no_figure(self):
        document = synthetic_run.document()
        with tempfile.TemporaryDirectory() as run_dir:
            synthetic_run.write(run_dir, document)
            self.assertIn("two sequence lengths", figures(run_dir, "--only", "contexts").stdout)


class TensorGrids(unittest.TestCase):
    def test_modes_are_lines_over_ranks(self):
        measured = [("1d", 4, 1, "summa", 100), ("1d", 16, 1, "summa", 200), ("2d", 4, 1, "summa", 300),
                    ("2d", 4, 1, "cannon", 350), ("2.5d", 16, 1, "summa", 400), ("2.5d", 16, 4, "summa", 500),
                    ("2.5d", 8, 2, "summa", 600)]
        document = synthetic_run.document()
        document["benchmarks"] = [
            synthetic_run.entry("grid_mlp", {"ranks": ranks, "tensor-parallel-mode": mode, "tensor-parallel-depth": depth,
                                             "tensor-parallel-product": product, "tokens": 36}, 0.01, random.Random(1),
                                wire_bytes_measured=sent * ranks,
                                memory=[{"category": name, "measured": 1024, "expected": 1024} for name in ("buffers", "gradients")])
            for mode, ranks, depth, product, sent in measured]
        with tempfile.TemporaryDirectory() as run_dir:
            synthetic_run.write(run_dir, document)
            ran = figures(run_dir, "--only", "tensor_grids")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            with open(os.path.join(run_dir, "figures", "tensor_grids-grid_mlp-36.csv"), encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
        sent = {(row["mode"], row["ranks"], row["depth"]): row["value"] for row in rows if row["quantity"] == "bytes_sent"}
        # With depth 4 the layers of 16 ranks are 2 x 2, so that is not 2.5d.
        self.assertEqual(sent, {("1d", "4", "1"): "100", ("1d", "16", "1"): "200", ("2d", "4", "1"): "300",
                                ("2d cannon", "4", "1"): "350", ("2.5d", "16", "1"): "400", ("2.5d", "8", "2"): "600"})
        self.assertEqual({row["value"] for row in rows if row["quantity"] == "memory"}, {"2048"})


class LessThanAll(unittest.TestCase):
    def draw(self, text, *arguments):
        with tempfile.TemporaryDirectory() as run_dir:
            if text is not None:
                with open(os.path.join(run_dir, "run.json"), "w", encoding="utf-8") as file:
                    file.write(text)
            ran = figures(run_dir, *arguments)
            made = os.path.join(run_dir, "figures")
            return ran, sorted(os.listdir(made)) if os.path.isdir(made) else None

    def test_absent_data_is_named(self):
        document = synthetic_run.document()
        document["benchmarks"] = [e for e in document["benchmarks"] if e["unit"] == "all_gather"]
        document["context"]["rates"] = {}
        ran, made = self.draw(json.dumps(document))
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertIn("figures: pipeline timeline: no case with more than one stage carries a timeline\n", ran.stdout)
        self.assertEqual(ran.stdout.count("\n"), len(KINDS) - 2 + 1)
        self.assertEqual(len(made), 2 * 2 + 1)

    def test_no_case_yet(self):
        document = synthetic_run.document()
        document["benchmarks"] = []
        document["context"].update(rates={}, status="running")
        ran, made = self.draw(json.dumps(document))
        self.assertEqual((ran.returncode, ran.stderr, made), (0, "", ["figures.json"]))

    def test_one_rank_one_size(self):
        document = synthetic_run.document()
        document["benchmarks"] = [e for e in document["benchmarks"] if e["case"].get("bytes") == "8"]
        ran, made = self.draw(json.dumps(document), "--only", "bus_bandwidth")
        self.assertEqual((ran.returncode, ran.stderr, made), (0, "", []))
        self.assertIn("fewer than three sizes", ran.stdout)

    def test_several_launches(self):
        document = synthetic_run.document()
        first = next(e for e in document["benchmarks"] if e["unit"] == "all_gather")
        document["benchmarks"] = [{**first, "repetition_index": i, "real_time": t, "busbw_GBps": 1000 / t}
                                  for i, t in enumerate((100.0, 80.0, 110.0))]
        for factor in (10, 100):  # three sizes make a line
            size = str(factor * int(first["case"]["bytes"]))
            document["benchmarks"].append({**first, "name": f"{first['name']}x{factor}",
                                           "case": {**first["case"], "bytes": size}, "bytes": int(size)})
        with tempfile.TemporaryDirectory() as run_dir:
            synthetic_run.write(run_dir, document)
            self.assertEqual(figures(run_dir, "--only", "bus_bandwidth").returncode, 0)
            name = next(n for n in os.listdir(os.path.join(run_dir, "figures")) if n.endswith(".csv"))
            with open(os.path.join(run_dir, "figures", name), encoding="utf-8") as file:
                row = next(csv.DictReader(file))
        self.assertEqual(row["launches"], "3")
        for column, value in (("busbw_GBps", 10), ("busbw_low_GBps", 1000 / 110), ("busbw_high_GBps", 12.5)):
            self.assertAlmostEqual(float(row[column]), value, places=6)

    def test_bad_input(self):
        whole = json.dumps(synthetic_run.document())
        untimed = synthetic_run.document()
        del untimed["benchmarks"][3]["time_unit"]
        for text, words in ((None, ["run.json", "No such file"]), ("", ["not JSON", "cut off"]),
                            (whole[:len(whole) // 2], ["not JSON", "cut off"]), ("[1, 2]", ["not a run"]),
                            ('{"context": {}, "benchmarks": []}', ["schema"]),
                            (whole.replace("shardmark-run/2", "other/1"), ["other/1"]),
                            (json.dumps(untimed), ["benchmarks[3]", "all_reduce/", "time_unit"])):
            ran, made = self.draw(text)
            self.assertEqual((ran.returncode, ran.stdout, made), (2, "", None), words)
            self.assertEqual(ran.stderr.count("\n"), 1, ran.stderr)
            for word in words:
                self.assertIn(word, ran.stderr)

    def test_timelines_that_are_too_many(self):
        """Some cases of every schedule are kept, in the order of the run."""
        cases = [run_json.Case({"unit": "pipeline_step", "case": {"schedule": s, "tokens": t}})
                 for s, t in (("1f1b", 1), ("1f1b", 2), ("1f1b", 3), ("zb_v", 1))]
        kept = run_json.varied(cases, 3)
        self.assertEqual([(c.axes["schedule"], c.axes["tokens"]) for c in kept], [("1f1b", "1"), ("1f1b", "2"), ("zb_v", "1")])
        self.assertEqual(run_json.varied(cases, 4), cases)

    def test_units_of_many_cases(self):
        """One figure shows some of the cases and says so. --only draws all."""
        document = synthetic_run.document()
        one = next(e for e in document["benchmarks"] if "memory" in e)
        document["context"]["rates"] = {}
        document["benchmarks"] = [{k: v for k, v in {**one, "case": {"dtype": "float", "tokens": str(i)}}.items()
                                   if k in ("name", "real_time", "time_unit", "unit", "case", "memory", "verdict")}
                                  for i in range(40)]
        ran, made = self.draw(json.dumps(document))
        self.assertIn("figures: memory by category: 14 of 40 cases of gpt_step drawn; --only memory draws them all\n", ran.stdout)
        self.assertEqual([name for name in made if name.endswith(".svg")], ["memory-gpt_step.svg"])
        _, made = self.draw(json.dumps(document), "--only", "memory")
        self.assertEqual(len([name for name in made if name.endswith(".svg")]), 3)

    def test_unknown_kind(self):
        ran, _ = self.draw("{}", "--only", "timelines")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("timeline", ran.stderr)


if __name__ == "__main__":
    unittest.main()
