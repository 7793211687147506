#pragma once
// Named recipes: published configurations of trainings, as files.
//
//   suite/recipes/NAME/ds_config.json   DeepSpeed's, as published (optional)
//   suite/recipes/NAME/arguments.txt    Megatron-LM's, as published (optional)
//   suite/recipes/NAME/recipe.json      source, model, GPUs, and the changes of keys:
//     changed          keys that no step here has, each with its reason
//     small            ranks, model and changes that shrink the training to a small machine
//     needs            a feature that is missing; a recipe without it must run
//
//   const Recipe recipe = read_recipe(recipes_folder(), "bloom_176b");
//   const configuration::Sources files = write_files(recipe, Size::small, "out/recipe");

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "suite/configuration/resolve.h"

namespace suite::recipes {

// A new value of a key of a published file: "--num-layers", or "zero_optimization.stage". Null
// removes the key.
struct Change {
  std::string key;
  nlohmann::json value;
  std::string why{};
};

struct Recipe {
  std::string name, folder, about;
  std::vector<std::string> sources;  // papers and addresses
  std::string needs;                 // empty: nothing is missing
  std::string model;                 // by name; empty: the arguments give the shape
  std::int64_t gpus = 1;
  double gpu_memory = 0;        // bytes
  std::int64_t parameters = 0;  // as published
  std::vector<Change> changed{};
  struct Small {
    int ranks = 1;
    std::string model;
    std::vector<Change> changed{};
  } small{};
};

// The files in full, or shrunk.
enum class Size : unsigned char { published, small };

// Returns the folder of all recipes: $SHARDMARK_RECIPES, the source tree's, or the installed one.
// Throws machine::MachineError if there is none.
std::string recipes_folder();
// Returns the names in alphabetical order.
std::vector<std::string> recipe_names(const std::string& folder);
// Throws machine::UsageError for an unknown name (naming the nearest), FileError for a bad file.
Recipe read_recipe(const std::string& folder, const std::string& name);
// Reads a recipe.json. Throws FileError with the file and the key.
Recipe read_recipe_file(const std::string& path);

// Returns the files' text with the changes. Throws FileError for a changed key that is neither in
// the file nor given a value, because such a change has no effect.
std::string changed_json(const std::string& file, const std::string& text,
                         const std::vector<Change>& changes);
std::string changed_arguments(const std::string& file, const std::string& text,
                              const std::vector<Change>& changes);

// Throws machine::MachineError.
void make_folder(const std::string& folder);

// Writes ds_config.json and arguments.txt into the folder, which it makes. Returns them as sources,
// with the model. Published: also with the number of GPUs.
configuration::Sources write_files(const Recipe& recipe, Size size, const std::string& folder);

// Returns the words of `shardmark run` for the shrunk recipe. `given`: the user's own words.
std::vector<std::string> run_words(const Recipe& recipe, const configuration::Sources& files,
                                   const std::vector<std::string>& given);

}  // namespace suite::recipes
