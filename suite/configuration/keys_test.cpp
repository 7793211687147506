#include "suite/configuration/keys.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace suite::configuration {
namespace {

TEST(Keys, HaveUniqueNamesAndAnEffect) {
  std::set<std::string_view> names;
  TrainingConfig usual;
  for (const Key& key : keys()) {
    EXPECT_FALSE(key.name().empty());
    for (const std::string_view name : {key.deepspeed, key.megatron})
      if (!name.empty()) {
        EXPECT_TRUE(names.insert(name).second) << name;
      }
    const bool has_field = key.effect == Effect::honoured || key.effect == Effect::planned;
    EXPECT_EQ(key.field != nullptr, has_field) << key.name();
    EXPECT_EQ(key.why.empty(), key.effect == Effect::honoured) << key.name();
    EXPECT_EQ(key.in_step != nullptr, key.effect == Effect::planned) << key.name();
    EXPECT_EQ(key.about.empty(), key.axis.empty()) << key.name();
    // A rejected section has no supported keys.
    EXPECT_FALSE(is_section(key.deepspeed)) << key.name();
    if (key.field && key.field(usual).kind() == Kind::word && !key.limits.choices.empty() &&
        key.axis != "model") {
      const std::string text = key.field(usual).text();
      EXPECT_TRUE(text == "none" ||
                  std::ranges::find(key.limits.choices, text) != key.limits.choices.end())
          << key.name() << " " << text;
    }
  }
  for (const Word& word : words()) {
    EXPECT_TRUE(find_key(word.to) || is_section(word.to)) << word.to;
    EXPECT_FALSE(find_key(&Key::deepspeed, word.from) || find_key(&Key::megatron, word.from))
        << word.from;
  }
}

TEST(Keys, AreFoundByEachOfTheirNames) {
  EXPECT_EQ(find_key("zero_optimization.stage"), find_key("--zero-stage"));
  EXPECT_EQ(find_key(&Key::axis, "zero-stage"), find_key("--zero-stage"));
  EXPECT_EQ(find_key(&Key::deepspeed, "zero-stage"), nullptr);
  EXPECT_EQ(find_key(""), nullptr);
}

// Every value that a key prints can be parsed again.
TEST(Keys, FieldsParseTheirOwnText) {
  TrainingConfig config, fresh;
  for (const Key& key : keys()) {
    if (!key.field) continue;
    const Field field = key.field(config);
    const std::string text = field.text();
    if (text == "none" || field.kind() == Kind::pair) continue;
    field.set(value_of(field.kind(), text));
    EXPECT_EQ(field.text(), text) << key.name();
    field.copy(key.field(fresh));
    EXPECT_EQ(field.text(), text) << key.name();
  }
}

}  // namespace
}  // namespace suite::configuration
