#pragma once
// Reads, checks and lists the options of one command.
//
//   Options options("ab", "[UNIT...]", "Runs the same cases under two environments.");
//   options.number("--launches", "N", launches, 1, 1000, "maximum launches per side");
//   options.text("--out", "DIR", out_dir, "folder of all launches");
//   if (!options.parse({argv + 2, argv + argc})) return harness::accepted;  // printed the help
//
// The value of an option is the next word, or follows '=', or follows a short option's letter
// (-b8). Every command has -h and --help. The manual page and the completion of shells come from
// the same table: parse() also answers roff_help and complete_word. Throws harness::UsageError for
// an unknown option (naming the nearest), a missing or wrong value, an option given twice, and an
// unexpected argument.

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "machine/base/error.h"

namespace suite {

// Throws a formatted text as an error of the user: reject("--axis is '{}'; expected …", text).
template <class... Values>
[[noreturn]] void reject(fmt::format_string<Values...> text, Values&&... values) {
  throw machine::UsageError(fmt::format(text, std::forward<Values>(values)...));
}

// Prints `shardmark: TEXT` to standard error and returns the code.
int complain(int code, std::string_view text);

// Returns the number in the text, or no value if the whole text is not a number.
template <class T>
std::optional<T> number_of(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return value;
}
// Returns the number in the text. Throws harness::UsageError: `KEY is 'TEXT'; expected …`.
std::int64_t whole_number(std::string_view key, const std::string& text, std::int64_t least,
                          std::int64_t most);
double real_number(std::string_view key, const std::string& text, double least, double most);
// Returns a number above 0.
double positive_number(std::string_view key, const std::string& text);

// "a,b" -> "a", "b".
std::vector<std::string> split_list(const std::string& text);

class Options {
 public:
  using Read = std::function<void(const std::string& value)>;
  using Choices = std::function<std::vector<std::string>()>;
  // The only word: prints the section of the manual instead of the help.
  static constexpr std::string_view roff_help = "--help=roff";
  // The first word: prints the words that can continue the last word, `WORD` or `WORD<tab>ABOUT`.
  static constexpr std::string_view complete_word = "--complete";
  // Number of times that an option may be given. last: the last value counts.
  enum class Times : unsigned char { once, last, each };

  // arguments: the text of the usage line, "BASE NEW". about: may be empty.
  Options(std::string command, std::string arguments, std::string about);

  // Title of the options that follow; empty: the help does not list them.
  void group(std::string title) { group_ = std::move(title); }
  // If one of the options that follow is given several times, its last value counts.
  void last_counts() { times_ = Times::last; }
  // Sets the text after the help. The function is called after the arguments are read.
  void footer(std::string text);
  void footer(std::function<std::string()> text) { footer_ = std::move(text); }

  // names: "--out", or "-o,--out". value: its name in the help (DIR, FILE, N, SECONDS).
  void read(const std::string& names, std::string value, Read read, std::string about,
            Times times = Times::once);
  void text(const std::string& names, std::string value, std::string& into, std::string about);
  // Collects all values of a repeatable option. `list`: a value may be a list, a,b.
  void texts(const std::string& names, std::string value, std::vector<std::string>& into,
             std::string about, bool list = true);
  template <class T>
  void number(const std::string& names, const std::string& value, T& into, std::int64_t least,
              std::int64_t most, const std::string& about) {
    read(
        names, value,
        [&into, names, least, most](const std::string& text) {
          into = static_cast<T>(whole_number(names, text, least, most));
        },
        about);
  }
  template <class T>
  void positive(const std::string& names, const std::string& value, T& into,
                const std::string& about) {
    read(
        names, value,
        [&into, names](const std::string& text) { into = positive_number(names, text); }, about);
  }
  void flag(const std::string& names, bool& into, std::string about);

  // Adds the words that are not options. `value` names them in errors; most: their largest number.
  void arguments(std::string value, std::vector<std::string>& into, std::string about,
                 std::size_t least = 0, std::size_t most = static_cast<std::size_t>(-1));
  // Adds an option that takes all words up to the next option: --against A B C.
  void takes_following(const std::string& name, std::string value, std::vector<std::string>& into,
                       std::string about);
  // Sets the values that completion offers for the latest option, or for the arguments. They are
  // called after the words before are read. Without choices a shell offers files.
  void choices(Choices choices);
  void argument_choices(Choices choices) { argument_choices_ = std::move(choices); }

  // Keeps unknown options and arguments with this prefix unchanged, in order.
  void pass(std::string prefix, std::vector<std::string>& into);
  // Keeps the first argument and all words after it unchanged.
  void pass_from_first_argument(std::vector<std::string>& into) { behind_first_ = &into; }

  // Returns false after printing the requested text: the help, or words that complete the line.
  bool parse(const std::vector<std::string>& words);
  std::string help() const;
  std::string manual() const;  // the help for man, in roff
  std::vector<std::string> names() const;

 private:
  struct Option {
    std::vector<std::string> names;
    std::string value, about, group;  // value: empty for flags
    Read read;
    Choices choices = {};
    Times times = Times::once;
    bool takes_following = false;
    int given = 0;
  };
  Option* find(std::string_view name);
  void take(Option& option, std::string_view name, const std::string& value);
  void take_option(const std::vector<std::string>& words, std::size_t& at);
  bool pass(const std::string& word);
  // Takes the word at `at`, and its value. Returns false at the command that takes all others.
  bool take_word(const std::vector<std::string>& words, std::size_t& at);
  bool complete(std::vector<std::string> words);
  void offer_names(std::string_view partial) const;
  std::string usage() const;
  std::vector<std::string> groups() const;

  std::string command_, arguments_text_, about_, group_ = "Options", passed_prefix_;
  Times times_ = Times::once;
  std::function<std::string()> footer_;
  std::vector<Option> options_;
  std::string argument_value_, argument_about_;
  Choices argument_choices_;
  std::vector<std::string>* arguments_ = nullptr;
  std::size_t least_arguments_ = 0, most_arguments_ = 0;
  std::vector<std::string>*passed_ = nullptr, *behind_first_ = nullptr;
  bool wants_help_ = false, wants_roff_ = false;
};

// Lines of "  name  text", the texts in one column and wrapped at 100 columns.
std::string two_columns(const std::vector<std::pair<std::string, std::string>>& rows);

// Returns a text for man, without its special characters.
std::string roff(std::string_view text);

}  // namespace suite
