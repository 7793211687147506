// `shardmark completion`: the completion of bash, zsh and fish. The scripts ask the program for the
// words that continue a line, so that they know its units and axes.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"

namespace suite {
namespace {

struct Shell {
  std::string_view name, script;
};
constexpr Shell shells[] = {
    // Bash splits words at '=', so --profile=quick is three words.
    {"bash", R"shell(# bash completion of shardmark
_shardmark() {
  local word reply stem= words=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if [[ ${#words[@]} -gt 0 && ( $word == = || ${words[-1]} == --*= ) ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
  done
  [[ ${words[-1]} != --*=* ]] || stem=${words[-1]%%=*}=
  COMPREPLY=()
  while IFS=$'\t' read -r reply _; do
    COMPREPLY+=("${reply#"$stem"}")
  done < <("${COMP_WORDS[0]}" completion words "${words[@]}" 2>/dev/null)
}
complete -o default -F _shardmark shardmark
)shell"},
    {"zsh", R"shell(#compdef shardmark
_shardmark() {
  local line
  local -a offered
  for line in "${(@f)$($words[1] completion words "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -n $line ]] && offered+=("${${line//:/\\:}/$'\t'/:}")
  done
  if (( $#offered )); then
    _describe shardmark offered
  else
    _files
  fi
}
if [[ $funcstack[1] == _shardmark ]]; then
  _shardmark "$@"
else
  compdef _shardmark shardmark
fi
)shell"},
    {"fish", R"shell(# fish completion of shardmark
function __shardmark_words
    set --local words (commandline --tokenize --cut-at-cursor --current-process)
    $words[1] completion words $words[2..] (commandline --current-token --cut-at-cursor) 2>/dev/null
end
complete --command shardmark --arguments '(__shardmark_words)'
)shell"},
};

std::vector<std::string> shell_names() {
  std::vector<std::string> names;
  for (const Shell& shell : shells) names.emplace_back(shell.name);
  return names;
}

// Prints the words that can follow. `line`: the words after the program; the last one is
// incomplete.
void print_words(const std::vector<std::string>& line) {
  if (line.size() < 2) {
    for (const Command& command : commands())
      if (line.empty() || command.name.starts_with(line[0]))
        fmt::print("{}\t{}\n", command.name, command.about);
    return;
  }
  for (const Command* command = find_command(line[0]); command;
       command = find_command(command->takes_options_of)) {
    std::vector<std::string> words{"shardmark", std::string(command->name),
                                   std::string(Options::complete_word)};
    words.insert(words.end(), line.begin() + 1, line.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    command->run(static_cast<int>(words.size()), argv.data());
  }
}

}  // namespace

int run_completion(int argc, char** argv) {
  std::vector<std::string> rest;
  Options options("completion", "SHELL",
                  "Prints the completion of a shell: bash, zsh or fish. For this session: "
                  "source <(shardmark completion bash)");
  options.pass_from_first_argument(rest);
  options.argument_choices(shell_names);
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (rest.empty()) reject("completion requires SHELL: bash, zsh or fish");
  if (rest[0] == "words") {
    print_words({rest.begin() + 1, rest.end()});
    return harness::accepted;
  }
  const auto* shell = std::ranges::find(shells, rest[0], &Shell::name);
  if (shell == std::end(shells))
    throw harness::UsageError(machine::unknown("shell", rest[0], shell_names()));
  if (rest.size() > 1) reject("unexpected argument '{}'", rest[1]);
  fmt::print("{}", shell->script);
  return harness::accepted;
}

}  // namespace suite
