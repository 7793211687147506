#include "suite/files/safetensors.h"

#include <stdexcept>

#include "suite/testing/file_case.h"

namespace suite {
namespace {

using testing::append;
using testing::expect_words;
using testing::Folder;
using testing::read_bytes;
using testing::refusal;
using testing::write_bytes;

std::string with_header(const std::string& header, const std::string& data) {
  std::string bytes;
  append(bytes, std::uint64_t{header.size()});
  return bytes + header + data;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Safetensors, ReadsWrittenFiles) {
  const Folder folder;
  const std::string path = folder.path("a.safetensors");
  const std::vector<TensorEntry> entries{{"table \"é\"\n", "F32", {2, 3}},
                                         {"none", "BF16", {4, 0}},
                                         {"scalar", "F64", {}},
                                         {"odd", "U8", {3}}};
  const std::vector<std::string> values{std::string(24, 'a'), "", std::string(8, 'b'), "xyz"};
  const auto write = [&](std::size_t many) {
    SafetensorsWriter writer(path, entries);
    for (std::size_t i = 0; i < many; ++i) writer.add(std::as_bytes(std::span(values[i])));
    writer.finish();
  };
  EXPECT_THROW(write(3), std::logic_error);
  EXPECT_EQ(folder.files(), 0u) << "nothing half-written is left";
  write(4);
  EXPECT_EQ(folder.files(), 1u);
  const Safetensors file(path);
  ASSERT_EQ(file.tensors().size(), 4u);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StoredTensor* tensor = file.find(entries[i].name);
    ASSERT_TRUE(tensor);
    EXPECT_EQ(tensor->dtype, entries[i].dtype);
    EXPECT_EQ(tensor->shape, entries[i].shape);
    EXPECT_EQ(text_of(tensor->bytes), values[i]);
  }
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.tensors()[0].bytes.data()) % 8, 0u);
  EXPECT_EQ(dtype_of_tensor("BF16"), machine::Dtype::bfloat16);
  EXPECT_FALSE(dtype_of_tensor("BOOL"));

  // A new file replaces the old one only when it is complete.
  const std::string before = read_bytes(path);
  {
    SafetensorsWriter writer(path, {{"other", "U8", {1}}});
    writer.add(std::as_bytes(std::span(values[3])).first(1));
  }
  EXPECT_EQ(read_bytes(path), before);
  EXPECT_EQ(folder.files(), 1u);
  SafetensorsWriter writer(path, {{"other", "U8", {1}}});
  EXPECT_THROW(writer.add(std::as_bytes(std::span(values[3]))), std::logic_error);
}

// Other writers use any order and any white space in the header.
TEST(Safetensors, ReadsFilesOfOtherWriters) {
  const Folder folder;
  const std::string path = folder.path("a.safetensors");
  write_bytes(path, with_header("{\n \"b\": {\"data_offsets\": [2, 4], \"shape\": [2], "
                                "\"dtype\": \"I8\"},\t\"a\": {\"dtype\":\"U16\",\"shape\":[],"
                                "\"data_offsets\":[0,2]}}   ",
                                "1234"));
  const Safetensors file(path);
  EXPECT_EQ(text_of(file.find("a")->bytes), "12");
  EXPECT_EQ(text_of(file.find("b")->bytes), "34");
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, RejectsInvalidFieldsByName) {
  const Folder folder;
  const std::string path = folder.path("a.safetensors");
  const std::string a = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  const auto b = [](const std::string& offsets) {
    return R"("b":{"dtype":"U8","shape":[2],"data_offsets":)" + offsets + "}";
  };
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const std::string u8 = "\"U8\"";
  struct Wrong {
    std::string header;
    std::initializer_list<std::string> says;
  };
  for (const auto& [header, says] : std::initializer_list<Wrong>{
           {"{" + a + "," + b("[2,4]") + "}", {"accepted"}},
           {"", {"does not begin with {"}},
           {"[]", {"does not begin with {"}},
           {" {" + a + "}", {"does not begin with {"}},
           {"{" + a, {"not valid JSON", "byte"}},
           {"{" + a + "}x", {"not valid JSON"}},
           {"{\"\xff\":{}}", {"not valid JSON"}},
           {"{" + a + "," + a + "}", {"'a' is given twice"}},
           {"{" + a + "," + b("[1,3]") + "}", {"tensor 'b' begins at 1", "'a' ends at 2"}},
           {"{" + a + "," + b("[3,5]") + "}", {"no tensor has bytes 2 to 3", "tensor 'b'"}},
           {"{" + a + "}", {"4 bytes follow", "end at 2"}},
           {"{}", {"4 bytes follow", "end at 0"}},
           {"{" + a + "," + b("[2,4]") + R"(,"c":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})",
            {"tensor 'c' ends at 5", "only 4"}},
           {tensor(u8, "[2]", "[2,0]"), {"data_offsets of tensor 'a' are [2, 0]"}},
           {tensor(u8, "[3]", "[0,4]"), {"[0, 4]", "U8 [3] needs 3 bytes"}},
           {tensor("\"F32\"", "[2,1]", "[0,4]"), {"F32 [2, 1] needs 8 bytes"}},
           {tensor("\"F33\"", "[1]", "[0,4]"), {"tensor 'a'", "unknown dtype 'F33'", "'F32'"}},
           {tensor("\"F4\"", "[8]", "[0,4]"), {"unknown dtype 'F4'"}},
           {tensor("4", "[1]", "[0,4]"), {"dtype of tensor 'a' is 4", "text"}},
           {tensor("[]", "[1]", "[0,4]"), {"dtype of tensor 'a' is a list"}},
           {tensor(u8, "4", "[0,4]"), {"shape of tensor 'a' is 4", "a list"}},
           {tensor(u8, "[-1]", "[0,4]"), {"shape of tensor 'a' is -1", "whole numbers"}},
           {tensor(u8, "[4.0]", "[0,4]"), {"shape of tensor 'a' is '4.0'"}},
           {tensor(u8, "[18446744073709551616]", "[0,4]"), {"'18446744073709551616'", "2^64"}},
           {tensor(u8, "[[4]]", "[0,4]"), {"shape of tensor 'a' is a list"}},
           {tensor(u8, "[null]", "[0,4]"), {"is null"}},
           {tensor(u8, "[true]", "[0,4]"), {"is true"}},
           {tensor(u8, "[{}]", "[0,4]"), {"is an object"}},
           {tensor(u8, "[4294967296,4294967296]", "[0,4]"),
            {"shape of tensor 'a'", "too many elements"}},
           {tensor("\"F64\"", "[2305843009213693952]", "[0,0]"), {"too many elements"}},
           {tensor(u8, "[4]", "[0]"), {"data_offsets of tensor 'a' has 1", "expected 2"}},
           {tensor(u8, "[4]", "[0,4,4]"), {"has 3 numbers"}},
           {tensor(u8, "[4]", "\"0\""), {"data_offsets of tensor 'a' is '0'"}},
           {R"({"a":{"dtype":"U8","shape":[4]}})", {"tensor 'a' has no data_offsets"}},
           {R"({"a":{"shap":[4]}})", {"unknown key 'shap'", "'shape'"}},
           {R"({"a":{"shape":[4],"shape":[4]}})", {"tensor 'a' has two keys 'shape'"}},
           {R"({"a":3})", {"tensor 'a' is 3", "an object"}},
           {R"({"a\nb":"c\nd"})", {"tensor 'a\\x0ab' is 'c\\x0ad'"}},
           {R"({"a":[[[[)", {"tensor 'a' is a list"}},
           {R"({"__metadata__":[1]})", {"__metadata__ is a list"}},
           {R"({"__metadata__":{"k":1}})", {"'k' of __metadata__ is 1", "text"}},
           {R"({"__metadata__":{"k":{}}})", {"'k' of __metadata__ is an object"}},
           {R"({"__metadata__":{"k":"1","k":"2"}})", {"__metadata__ has 'k' twice"}},
           {R"({")" + std::string(5000, 'n') + R"(":1})", {"nnn…'"}},
       }) {
    write_bytes(path, with_header(header, "1234"));
    expect_words(refusal([&] { Safetensors{path}; }), says);
    EXPECT_LT(refusal([&] { Safetensors{path}; }).size(), 500u);
  }
  std::string dimensions = "1";
  for (int i = 0; i < 40; ++i) dimensions += ",1";
  write_bytes(path, with_header(tensor(u8, "[" + dimensions + "]", "[0,1]"), "1"));
  expect_words(refusal([&] { Safetensors{path}; }), {"tensor 'a'", "more than 32 dimensions"});

  std::string bytes;
  append(bytes, std::uint64_t{100'000'001});
  write_bytes(path, bytes + "{}");
  expect_words(refusal([&] { Safetensors{path}; }), {"100000001", "at most 100000000"});
  bytes.clear();
  append(bytes, std::uint64_t{3});
  write_bytes(path, bytes + "{}");
  expect_words(refusal([&] { Safetensors{path}; }), {"3 bytes", "only 2 follow"});
  write_bytes(path, "1234567");
  expect_words(refusal([&] { Safetensors{path}; }), {"7 bytes", "8"});
  write_bytes(path, "");
  expect_words(refusal([&] { Safetensors{path}; }), {"a.safetensors is empty"});
  expect_words(refusal([&] { Safetensors{folder.path("a.safetensor")}; }),
               {"cannot read", "did you mean", "a.safetensors"});
  expect_words(refusal([&] { Safetensors{folder.path("")}; }), {"directory"});

  using Entries = std::vector<TensorEntry>;
  const auto write = [&](const Entries& entries) {
    return refusal([&] { SafetensorsWriter(folder.path("new"), entries); });
  };
  expect_words(write({{"a", "U8", {1}}, {"a", "U8", {1}}}), {"'a' is given twice"});
  expect_words(write({{"a", "U9", {1}}}), {"unknown dtype 'U9'"});
  expect_words(write({{"a", "U8", {1ull << 63}}, {"b", "U8", {1ull << 63}}}), {"too many bytes"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("new")));
}

}  // namespace
}  // namespace suite
