#!/usr/bin/env python3
"""Every recipe runs in its shrunk form, or states the feature that it needs."""

import json
import os
import re
import unittest

from process import NO_FIGURES, TemporaryFolder, read_run, shardmark


class Recipes(TemporaryFolder):
    def listed(self):
        """Returns the names of the recipes that run, and of those that do not yet."""
        done = shardmark("recipes", "list")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)
        recipes = re.findall(r"^(\w+)\n  about +.*\n(?:   .*\n)*  published +.*\n(?:   .*\n)*  here +(runs|does not run yet, because it needs)",
                             done.stdout, re.MULTILINE)
        running = [name for name, here in recipes if here == "runs"]
        waiting = [name for name, here in recipes if here != "runs"]
        self.assertIn(f"{len(recipes)} recipes: {len(running)} run here, {len(waiting)} do not yet", done.stdout)
        return running, waiting

    def test_every_recipe_runs_or_is_counted(self):
        running, waiting = self.listed()
        self.assertGreaterEqual(len(running), 5)
        for name in running:
            with self.subTest(name):
                out = self.path(name)
                done = shardmark("recipes", "run", name, "--max-seconds", "0.01", "--no-limits", "--out", out, env=NO_FIGURES)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                case, = read_run(out)["benchmarks"]
                self.assertEqual(case["verdict"], "pass")
                self.assertEqual(sorted(case["oracles"]), ["determinism", "memory", "numerics", "schedule", "volume"])
                self.assertTrue(os.listdir(os.path.join(out, "recipe")))
        for name in waiting:
            with self.subTest(name):
                done = shardmark("recipes", "run", name, "--out", self.path(name))
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(f"{name} does not run: ", done.stderr)
                self.assertFalse(os.path.exists(self.path(name)))

    def test_a_recipe_shows_its_changes_and_writes_its_files(self):
        done = shardmark("recipes", "show", "bloom_176b", self.path("files"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("arXiv:2211.05100", done.stdout)
        self.assertIn("ALiBi is not implemented", done.stdout)
        planned = shardmark("plan", "--config", self.path("files/published/ds_config.json"), "--megatron-arguments",
                            self.path("files/published/arguments.txt"), "--gpus", "384")
        self.assertIn("384 = tp 4 x pp 12 x cp 1 x dp 8", planned.stdout, planned.stderr)

    def test_strategies_are_compared(self):
        out = self.path("compared")
        done = shardmark("recipes", "compare", "--max-seconds", "0.01", "--no-limits", "--out", out, env=NO_FIGURES, timeout=400)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertLessEqual(max(map(len, done.stdout.split("\n\n")[-1].splitlines())), 120)
        rows = {line[:20].strip(): [cell.split() for cell in line.split("|")[1:]] for line in done.stdout.splitlines()
                if line.count("|") == 4 and line.endswith("pass")}
        with open(os.path.join(out, "strategies.json"), encoding="utf-8") as file:
            named = [strategy["name"] for strategy in json.load(file)["strategies"]]
        self.assertEqual(list(rows), named)
        cases = read_run(out)["benchmarks"]
        self.assertEqual(len(cases), len(named))
        losses = [case["losses"] for case in cases]
        for other in losses[1:]:  # the same sequences, in another order of summation
            for a, b in zip(losses[0], other, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-4)
        memory, sent = ({name: [float(x.replace("-", "0")) for x in cells[i]] for name, cells in rows.items()} for i in (0, 1))
        # Closed forms: 4 + 4 + 8 bytes a parameter, 2 (p - 1) / p of the gradients by a ring, and less with shards.
        whole = memory["one device"]
        for name in ("ZeRO-1", "ZeRO-2", "ZeRO-3"):
            self.assertAlmostEqual(memory[name][2], whole[2] / 4, delta=0.02 * whole[2], msg=name)
        self.assertLess(memory["ZeRO-3"][0], 0.8 * whole[0])  # a layer and its next are gathered
        self.assertAlmostEqual(sent["data parallel"][2], 1.5 * whole[1], delta=0.02 * whole[1])
        self.assertEqual([sent[name][2] > 0 for name in ("one device", "tensor parallel", "pipeline, 1F1B")], [False] * 3)
        bubbles = {name: cells[3][1] for name, cells in rows.items()}
        self.assertEqual([bubbles["layer-wise"], bubbles["pipeline, GPipe"], bubbles["tensor parallel"]], ["75", "27", "-"])

    def test_wrong_words_name_the_nearest(self):
        for words, says in ((["show", "bloom"], "'bloom_176b'"), (["lst"], "'list'"), (["run"], "requires NAME"), ([], "requires ACTION")):
            done = shardmark("recipes", *words)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
