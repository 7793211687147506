#include "suite/recipes/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "machine/base/error.h"
#include "machine/base/names.h"
#include "suite/files/mapped_file.h"
#include "suite/files/new_file.h"

namespace suite::recipes {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Reads the members of an object, each once, and rejects others.
class Members {
 public:
  Members(std::string place, const Json& object) : place_(std::move(place)), object_(object) {
    if (!object.is_object()) throw FileError("{} is not an object", place_);
  }
  const Json* find(const std::string& key) {
    known_.push_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  const Json& required(const std::string& key) {
    const Json* const found = find(key);
    if (!found) throw FileError("{} has no {}", place_, key);
    return *found;
  }
  std::string text(const std::string& key, const Json* value) const {
    if (!value) return "";
    if (!value->is_string() || value->get<std::string>().empty())
      throw FileError("{}: {} is {}; expected a text", place_, key, value->dump());
    return value->get<std::string>();
  }
  std::int64_t whole(const std::string& key, std::int64_t most) {
    const Json& value = required(key);
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
        value.get<std::int64_t>() > most)
      throw FileError("{}: {} is {}; expected a whole number from 1 to {}", place_, key,
                      value.dump(), most);
    return value.get<std::int64_t>();
  }
  void end() const {
    for (const auto& [key, value] : object_.items())
      if (std::ranges::find(known_, key) == known_.end())
        throw FileError("{}: {}", place_, machine::unknown("key", printable(key), known_));
  }
  const std::string& place() const { return place_; }

 private:
  std::string place_;
  const Json& object_;
  std::vector<std::string> known_;
};

void check_value(const std::string& place, const Json& value) {
  if (value.is_structured()) throw FileError("{}: the new value is not a single value", place);
}

std::vector<Change> read_changed(const std::string& path, const Json* list) {
  std::vector<Change> changes;
  if (!list) return changes;
  if (!list->is_array()) throw FileError("{}: changed is not a list", path);
  for (const Json& one : *list) {
    Members members(path + ": changed", one);
    Change change;
    change.key = members.text("key", &members.required("key"));
    if (const Json* value = members.find("value")) change.value = *value;
    change.why = members.text("why", &members.required("why"));
    members.end();
    check_value(fmt::format("{}: changed: {}", path, printable(change.key)), change.value);
    changes.push_back(std::move(change));
  }
  return changes;
}

Recipe::Small read_small(const std::string& path, const Json& object) {
  Members members(path + ": small", object);
  Recipe::Small small;
  small.ranks = static_cast<int>(members.whole("ranks", 64));
  small.model = members.text("model", members.find("model"));
  if (const Json* changed = members.find("changed")) {
    if (!changed->is_object()) throw FileError("{}: small: changed is not an object", path);
    for (const auto& [key, value] : changed->items()) {
      check_value(fmt::format("{}: small: {}", path, printable(key)), value);
      small.changed.push_back({key, value});
    }
  }
  members.end();
  return small;
}

double bytes_of(const std::string& path, const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits > 6 || text.substr(std::min(digits, text.size())) != "GB")
    throw FileError("{}: gpu_memory is {}; expected gigabytes (example: 80GB)", path,
                    in_quotes(text));
  return 1e9 * std::stod(text.substr(0, digits));
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void write_text(const std::string& path, const std::string& text) {
  NewFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

bool is_argument(const Change& change) { return change.key.starts_with("--"); }

// Returns the changes for a size, of arguments or of keys of a ds_config.json. A change of the
// small size replaces one of the same key.
std::vector<Change> changes_of(const Recipe& recipe, Size size, bool arguments) {
  std::vector<Change> changes;
  const auto add = [&](const Change& change) {
    if (is_argument(change) != arguments) return;
    std::erase_if(changes, [&](const Change& other) { return other.key == change.key; });
    changes.push_back(change);
  };
  for (const Change& change : recipe.changed) add(change);
  if (size == Size::small)
    for (const Change& change : recipe.small.changed) add(change);
  return changes;
}

std::string quoted(const std::string& word) {
  if (!word.empty() && word.find_first_of(" \t\n\r\\'\"#") == std::string::npos) return word;
  return word.find('\'') == std::string::npos ? "'" + word + "'" : "\"" + word + "\"";
}

}  // namespace

std::string recipes_folder() {
  if (const char* given = std::getenv("SHARDMARK_RECIPES"); given && *given) return given;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (const char* place : {"../../suite/recipes", "../../../suite/recipes",
                            "../share/shardmark/recipes", "share/shardmark/recipes"})
    if (fs::is_directory(program / place, failed))
      return (program / place).lexically_normal().string();
  throw machine::MachineError("cannot find the recipes; set SHARDMARK_RECIPES to their folder");
}

std::vector<std::string> recipe_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed))
    if (fs::exists(entry.path() / "recipe.json", failed))
      names.push_back(entry.path().filename().string());
  if (names.empty()) throw FileError("{} contains no recipe", folder);
  std::ranges::sort(names);
  return names;
}

Recipe read_recipe_file(const std::string& path) {
  Json json;
  try {
    json = Json::parse(MappedFile(path).text(), [](int depth, Json::parse_event_t, Json&) {
      if (depth > 8) throw FileError("nested deeper than a recipe");
      return true;
    });
  } catch (const Json::exception& error) {
    throw FileError("{} is not JSON: {}", path, printable(error.what()));
  }
  Members members(path, json);
  Recipe recipe;
  recipe.folder = fs::path(path).parent_path().string();
  recipe.name = fs::path(recipe.folder).filename().string();
  recipe.about = members.text("about", &members.required("about"));
  const Json& sources = members.required("sources");
  if (!sources.is_array() || sources.empty()) throw FileError("{}: sources is not a list", path);
  for (const Json& source : sources) recipe.sources.push_back(members.text("sources", &source));
  recipe.needs = members.text("needs", members.find("needs"));
  recipe.model = members.text("model", members.find("model"));
  recipe.gpus = members.whole("gpus", 1'000'000);
  recipe.gpu_memory = bytes_of(path, members.text("gpu_memory", &members.required("gpu_memory")));
  recipe.parameters = members.whole("parameters", 1'000'000'000'000'000);
  recipe.changed = read_changed(path, members.find("changed"));
  recipe.small = read_small(path, members.required("small"));
  members.end();
  return recipe;
}

Recipe read_recipe(const std::string& folder, const std::string& name) {
  const std::vector<std::string> names = recipe_names(folder);
  if (std::ranges::find(names, name) == names.end())
    throw machine::UsageError(machine::unknown("recipe", printable(name), names));
  return read_recipe_file((fs::path(folder) / name / "recipe.json").string());
}

std::string changed_json(const std::string& file, const std::string& text,
                         const std::vector<Change>& changes) {
  Json json;
  try {
    json = Json::parse(text, nullptr, true, true);
    for (const Change& change : changes) {
      std::string path = "/" + change.key;
      std::ranges::replace(path, '.', '/');
      const Json::json_pointer at(path);
      if (!change.value.is_null())
        json[at] = change.value;
      else if (json.contains(at))
        json.at(at.parent_pointer()).erase(at.back());
      else
        throw FileError("{} has no {}, which the recipe removes", file, change.key);
    }
  } catch (const Json::exception& error) {
    throw FileError("{}: {}", file, printable(error.what()));
  }
  return json.dump(2) + "\n";
}

std::string changed_arguments(const std::string& file, const std::string& text,
                              const std::vector<Change>& changes) {
  std::vector<std::vector<std::string>> lines;  // an argument and its values
  for (const std::string& word : configuration::words_of(file, text)) {
    if (word.starts_with("--") || lines.empty()) lines.emplace_back();
    lines.back().push_back(word);
  }
  for (const Change& change : changes) {
    const std::size_t removed =
        std::erase_if(lines, [&](const auto& line) { return line.front() == change.key; });
    if (change.value.is_null() && removed == 0)
      throw FileError("{} has no {}, which the recipe removes", file, change.key);
    if (change.value.is_null()) continue;
    lines.push_back({change.key});
    if (!change.value.is_boolean()) lines.back().push_back(text_of(change.value));
  }
  std::string changed;
  for (const auto& line : lines) {
    for (const std::string& word : line) changed += quoted(word) + " ";
    changed.back() = '\n';
  }
  return changed;
}

void make_folder(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed)
    throw machine::MachineError(
        fmt::format("cannot make the folder {}: {}", folder, failed.message()));
}

configuration::Sources write_files(const Recipe& recipe, Size size, const std::string& folder) {
  make_folder(folder);
  std::error_code failed;
  configuration::Sources sources;
  const std::string json = recipe.folder + "/ds_config.json";
  const std::string arguments = recipe.folder + "/arguments.txt";
  if (fs::exists(json, failed)) {
    sources.deepspeed_file = folder + "/ds_config.json";
    write_text(sources.deepspeed_file, changed_json(json, std::string(MappedFile(json).text()),
                                                    changes_of(recipe, size, false)));
  }
  if (fs::exists(arguments, failed)) {
    sources.megatron_file = folder + "/arguments.txt";
    write_text(sources.megatron_file,
               changed_arguments(arguments, std::string(MappedFile(arguments).text()),
                                 changes_of(recipe, size, true)));
  }
  if (sources.file().empty())
    throw FileError("{} has neither ds_config.json nor arguments.txt", recipe.folder);
  sources.model = size == Size::small ? recipe.small.model : recipe.model;
  sources.gpus = size == Size::small ? recipe.small.ranks : recipe.gpus;
  return sources;
}

std::vector<std::string> run_words(const Recipe& recipe, const configuration::Sources& files,
                                   const std::vector<std::string>& given) {
  std::vector<std::string> words{"run", "gpt_step"};
  if (!files.deepspeed_file.empty()) words.insert(words.end(), {"--config", files.deepspeed_file});
  if (!files.megatron_file.empty())
    words.insert(words.end(), {"--megatron-arguments", files.megatron_file});
  const auto gives = [&](const std::string& name) {
    return std::ranges::any_of(given, [&](const std::string& word) {
      return word == name || word.starts_with(name + "=");
    });
  };
  if (!files.model.empty() && !gives("--model"))
    words.insert(words.end(), {"--model", files.model});
  if (!gives("--ranks")) words.insert(words.end(), {"--ranks", std::to_string(recipe.small.ranks)});
  words.insert(words.end(), given.begin(), given.end());
  return words;
}

}  // namespace suite::recipes
