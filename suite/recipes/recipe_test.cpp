#include "suite/recipes/recipe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "harness/json/json.h"
#include "suite/recipes/check.h"
#include "suite/testing/file_case.h"

namespace suite::recipes {
namespace {

using testing::expect_words;
using testing::Folder;
using testing::refusal;
using testing::write_bytes;

TEST(Recipes, PublishedSizesFitTheirGpus) {
  const std::string folder = recipes_folder();
  const std::vector<std::string> names = recipe_names(folder);
  EXPECT_GE(names.size(), 9U);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Recipe recipe = read_recipe(folder, name);
    const Checked checked = check(recipe);
    EXPECT_EQ(checked.plan.resolved.config.degrees.ranks(), recipe.gpus);
    // A changed key may add a layer.
    EXPECT_LT(std::abs(checked.parameters / static_cast<double>(recipe.parameters) - 1), 0.03);
    EXPECT_GT(planned_bytes(checked.plan), 0);
    EXPECT_LE(planned_bytes(checked.plan), recipe.gpu_memory);
    EXPECT_EQ(checked.why_not.empty(), recipe.needs.empty()) << checked.why_not;
  }
}

TEST(Recipes, ChangesReplaceAddAndRemoveKeys) {
  const std::string json =
      changed_json("ds_config.json", "{\"a\": 1, // a comment\n \"b\": {\"c\": 2, \"d\": 3}}",
                   {{"b.c", 5}, {"b.d", nullptr}, {"e.f", true}});
  EXPECT_EQ(harness::Json::parse(json),
            harness::Json::parse(R"({"a": 1, "b": {"c": 5}, "e": {"f": true}})"));
  EXPECT_EQ(changed_arguments("arguments.txt",
                              "--num-layers 96 --fp16 --rampup-batch-size 16 16 58 # comment\n"
                              "--name 'two words'",
                              {{"--num-layers", 4},
                               {"--rampup-batch-size", nullptr},
                               {"--swiglu", true},
                               {"--style", "cosine"}}),
            "--fp16\n--name 'two words'\n--num-layers 4\n--swiglu\n--style cosine\n");
}

TEST(Recipes, RejectsAChangeWithoutEffect) {
  expect_words(refusal([] {
                 changed_json("d.json", "{}", {{"a.b", nullptr}});
               }),
               {"d.json", "a.b"});
  expect_words(refusal([] { changed_json("d.json", "{\"a\": 1}", {{"a.b", 2}}); }), {"d.json"});
  expect_words(refusal([] {
                 changed_arguments("a.txt", "--b 1", {{"--c", nullptr}});
               }),
               {"a.txt", "--c"});
}

TEST(Recipes, RejectsFilesThatAreNotRecipes) {
  const Folder folder;
  const auto read = [&](const std::string& text) {
    write_bytes(folder.path("recipe.json"), text);
    return refusal([&] { read_recipe_file(folder.path("recipe.json")); });
  };
  const std::string most = R"({"about": "a", "sources": ["s"], "gpus": 1, "parameters": 1,
                               "gpu_memory": "80GB", "small": {"ranks": 2)";
  EXPECT_EQ(read(most + "}}"), "accepted");
  expect_words(read("[1"), {"recipe.json", "JSON"});
  expect_words(read("[]"), {"not an object"});
  expect_words(read(R"({"about": "a"})"), {"no sources"});
  expect_words(read(most + "}, \"chang\": []}"), {"'chang'", "'changed'"});
  expect_words(read(most + ", \"rank\": 2}}"), {"small", "'rank'", "'ranks'"});
  expect_words(read(most + ", \"changed\": {\"--a\": [1]}}}"), {"--a", "single value"});
  expect_words(read(most + "}, \"changed\": [{\"key\": \"a\"}]}"), {"changed", "no why"});
}

TEST(Recipes, AUsersWordsReplaceThoseOfTheRecipe) {
  Recipe recipe;
  recipe.small.ranks = 4;
  const configuration::Sources files{.deepspeed_file = "d.json", .model = "tiny"};
  EXPECT_EQ(run_words(recipe, files, {}),
            (std::vector<std::string>{"run", "gpt_step", "--config", "d.json", "--model", "tiny",
                                      "--ranks", "4"}));
  EXPECT_EQ(run_words(recipe, files, {"--ranks=2", "--model", "small"}),
            (std::vector<std::string>{"run", "gpt_step", "--config", "d.json", "--ranks=2",
                                      "--model", "small"}));
}

}  // namespace
}  // namespace suite::recipes
