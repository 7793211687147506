#include "suite/files/indexed_tokens.h"

#include <functional>
#include <limits>
#include <stdexcept>

#include "suite/files/corpus.h"
#include "suite/testing/file_case.h"

namespace suite {
namespace {

using testing::append;
using testing::expect_words;
using testing::Folder;
using testing::read_bytes;
using testing::refusal;
using testing::write_bytes;

// Three sequences of uint16 in two documents. Each field is separate, so tests can corrupt it.
struct Index {
  std::string magic{"MMIDIDX\0\0", 9};
  std::uint64_t version = 1;
  std::uint8_t type = 8;
  std::uint64_t sequences = 3, documents = 3;
  std::vector<std::int32_t> sizes{2, 0, 3};
  std::vector<std::int64_t> pointers{0, 4, 4}, ends{0, 2, 3};
  std::string more;

  std::string bytes() const {
    std::string text = magic;
    append(text, version);
    append(text, type);
    append(text, sequences);
    append(text, documents);
    for (const auto size : sizes) append(text, size);
    for (const auto pointer : pointers) append(text, pointer);
    for (const auto end : ends) append(text, end);
    return text + more;
  }
};
const std::string data{"\1\0\2\0\3\0\4\0\xff\xff", 10};

std::vector<std::int64_t> all(const IndexedTokens& tokens) {
  std::vector<std::int64_t> read(tokens.tokens());
  tokens.read(0, read.size(), read.data());
  return read;
}

TEST(IndexedTokens, ReadsEveryTypeOfTheFormat) {
  const Folder folder;
  struct Extremes {
    TokenType type;
    std::int64_t least, most;
  };
  for (const Extremes& of :
       {Extremes{TokenType::uint8, 0, 255}, Extremes{TokenType::int8, -128, 127},
        Extremes{TokenType::int16, -32768, 32767}, Extremes{TokenType::uint16, 0, 65535},
        Extremes{TokenType::int32, std::numeric_limits<std::int32_t>::min(),
                 std::numeric_limits<std::int32_t>::max()},
        Extremes{TokenType::int64, std::numeric_limits<std::int64_t>::min(),
                 std::numeric_limits<std::int64_t>::max()}}) {
    const auto type = of.type;
    const std::int64_t least = of.least, most = of.most;
    const std::string prefix = folder.path(std::string(name(type)));
    const std::vector<std::int64_t> first{least, 1, most}, second, third{7};
    {
      IndexedTokensWriter writer(prefix, type);
      for (const auto& document : {first, second, third}) writer.add_document(document);
      if (type != TokenType::int64)
        expect_words(refusal([&] { writer.add_document(std::vector{most + 1}); }),
                     {prefix, std::to_string(most + 1), std::string(name(type))});
    }
    EXPECT_FALSE(std::filesystem::exists(prefix + ".idx")) << "nothing before finish";
    IndexedTokensWriter writer(prefix, type);
    for (const auto& document : {first, second, third}) writer.add_document(document);
    writer.finish();
    const IndexedTokens tokens(prefix);
    EXPECT_EQ(tokens.type(), type);
    EXPECT_EQ(tokens.sequences(), 3u);
    EXPECT_EQ(tokens.documents(), 3u);
    EXPECT_EQ(tokens.begin(2), 3u);
    EXPECT_EQ(tokens.document(3), 3u);
    EXPECT_EQ(all(tokens), (std::vector<std::int64_t>{least, 1, most, 7}));
    std::int64_t last = 0;
    tokens.read(3, 1, &last);
    EXPECT_EQ(last, 7);
    EXPECT_THROW(tokens.read(3, 2, &last), std::out_of_range);
    EXPECT_THROW(tokens.read(5, ~std::uint64_t{0}, &last), std::out_of_range);
  }
  EXPECT_EQ(folder.files(), 12u) << "only the pairs are left";
}

// The file may store sequences in any order.
TEST(IndexedTokens, FollowsThePointers) {
  const Folder folder;
  Index index;
  index.sizes = {3, 0, 2};
  index.pointers = {4, 0, 0};
  write_bytes(folder.path("pair.idx"), index.bytes());
  write_bytes(folder.path("pair.bin"), data);
  const IndexedTokens tokens(folder.path("pair"));
  EXPECT_EQ(all(tokens), (std::vector<std::int64_t>{3, 4, 65535, 1, 2}));
  EXPECT_EQ(tokens.document(1), 2u);
}

TEST(IndexedTokens, RejectsInvalidFieldsByName) {
  const Folder folder;
  const std::string prefix = folder.path("pair");
  struct Wrong {
    std::function<void(Index&)> make;
    std::initializer_list<std::string> says;
  };
  const std::int64_t far = std::numeric_limits<std::int64_t>::max() - 1;
  for (const auto& [make, says] : std::initializer_list<Wrong>{
           {[](Index&) {}, {"accepted"}},
           {[](Index& i) { i.magic[3] = 'X'; }, {"pair.idx", "MMIDIDX"}},
           {[](Index& i) { i.version = 2; }, {"pair.idx", "version is 2", "expected 1"}},
           {[](Index& i) { i.type = 0; }, {"pair.idx", "dtype code is 0", "1 to 5 or 8"}},
           {[](Index& i) { i.type = 9; }, {"dtype code is 9"}},
           {[](Index& i) { i.type = 6; }, {"dtype code is 6 (float64)"}},
           {[](Index& i) { i.type = 7; }, {"dtype code is 7 (float32)"}},
           {[](Index& i) { i.sequences = 8; }, {"sequences is 8", "94 bytes"}},
           {[](Index& i) { i.sequences = ~std::uint64_t{0} / 12 + 1; }, {"sequences is"}},
           {[](Index& i) { i.documents = 4; }, {"documents + 1 is 4", "at most 3"}},
           {[](Index& i) { i.documents = std::uint64_t{1} << 61; }, {"documents + 1 is"}},
           {[](Index& i) { i.documents = 0; }, {"documents + 1 is 0", "at least 1"}},
           {[](Index& i) { i.documents = 2; }, {"94 bytes", "need 86"}},
           {[](Index& i) { i.more = "abc"; }, {"97 bytes", "need 94", "modes"}},
           {[](Index& i) { i.sizes[1] = -1; }, {"size of sequence 1 is -1", "0 or more"}},
           {[](Index& i) { i.sizes[2] = 4; }, {"sequence 2", "bytes 4 to 12", "pair.bin has 10"}},
           {[](Index& i) { i.sizes[2] = std::numeric_limits<std::int32_t>::max(); },
            {"sequence 2"}},
           {[](Index& i) { i.pointers[2] = -4; }, {"pointer of sequence 2 is -4"}},
           {[](Index& i) { i.pointers[2] = 3; }, {"pointer of sequence 2 is 3", "multiple of 2"}},
           {[](Index& i) { i.pointers[1] = 12; }, {"sequence 1", "bytes 12 to 12"}},
           {[&](Index& i) { i.pointers[2] = far; }, {"sequence 2", std::to_string(far)}},
           {[](Index& i) { i.sizes[1] = 5, i.pointers[1] = 0; },
            {"0 to 1 have 7 tokens", "holds 5"}},
           {[](Index& i) { i.sizes[2] = 2; }, {"pair.bin has 10 bytes", "4 tokens", "have 8"}},
           {[](Index& i) { i.ends[0] = 1; }, {"document index 0 is 1", "expected 0"}},
           {[](Index& i) { i.ends[1] = -1; }, {"document index 1 is -1", "0 to 3"}},
           {[](Index& i) { i.ends[1] = 4; }, {"document index 1 is 4", "0 to 3"}},
           {[](Index& i) {
              i.ends = {0, 3, 2};
            },
            {"document index 2 is 2", "3 to 3"}},
           {[](Index& i) { i.ends[2] = 2; }, {"last document index is 2", "expected 3"}},
       }) {
    Index index;
    make(index);
    write_bytes(prefix + ".idx", index.bytes());
    write_bytes(prefix + ".bin", data);
    expect_words(refusal([&] { IndexedTokens{prefix}; }), says);
  }
  Index none;
  none.sizes = {0, 0, 0}, none.pointers = {0, 0, 0};
  write_bytes(prefix + ".idx", none.bytes());
  expect_words(refusal([&] { IndexedTokens{prefix}; }), {"pair.idx", "no tokens"});
  write_bytes(prefix + ".idx", Index().bytes().substr(0, 33));
  expect_words(refusal([&] { IndexedTokens{prefix}; }), {"pair.idx has 33 bytes", "34"});
  write_bytes(prefix + ".idx", "");
  expect_words(refusal([&] { IndexedTokens{prefix}; }), {"pair.idx is empty"});
  write_bytes(prefix + ".idx", Index().bytes());
  write_bytes(prefix + ".bin", "");
  expect_words(refusal([&] { IndexedTokens{prefix}; }), {"pair.bin is empty"});
  std::filesystem::remove(prefix + ".bin");
  expect_words(refusal([&] { IndexedTokens{prefix}; }), {"cannot read", "pair.bin"});
  std::filesystem::create_directory(prefix + ".bin");
  expect_words(refusal([&] { IndexedTokens{prefix}; }), {"pair.bin", "directory"});
  expect_words(refusal([&] { IndexedTokensWriter(prefix, TokenType::uint8); }),
               {"pair.bin", "not a regular file"});
  expect_words(refusal([&] { IndexedTokensWriter(folder.path("no/pair"), TokenType::uint8); }),
               {"no/pair.bin"});
}

TEST(TextTokens, ParagraphsBecomeDocumentsWithoutLoss) {
  const Folder folder;
  const std::string text = "\n\none\ntwo\n\n \t\r\nthree \xc3\xa9\n\nfour";
  write_bytes(folder.path("text"), text);
  const TokenCounts counts = write_text_tokens(folder.path("text"), folder.path("pair"));
  EXPECT_EQ(counts.documents, 3u);
  EXPECT_EQ(counts.tokens, text.size());
  EXPECT_EQ(read_bytes(folder.path("pair.bin")), text);
  const IndexedTokens tokens(folder.path("pair"));
  EXPECT_EQ(tokens.documents(), 3u);
  EXPECT_EQ(tokens.begin(1), text.find("three"));
  EXPECT_EQ(tokens.begin(2), text.find("four"));

  write_bytes(folder.path("blank"), "\n \n");
  EXPECT_EQ(write_text_tokens(folder.path("blank"), folder.path("b")).documents, 1u);
  write_bytes(folder.path("empty"), "");
  expect_words(refusal([&] { write_text_tokens(folder.path("empty"), folder.path("e")); }),
               {"empty is empty"});
}

TEST(Corpus, ATextAndItsPairDrawTheSameTokens) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 400; ++i) text += i % 23 == 0 ? "\n\n" : std::to_string(i * i);
  write_bytes(folder.path("text"), text);
  write_text_tokens(folder.path("text"), folder.path("pair"));
  const Corpus of_text = Corpus::from_file(folder.path("text"), 32, 256);
  const Corpus of_pair = Corpus::from_file(folder.path("pair"), 32, 256);
  EXPECT_EQ(of_text.size(), of_pair.size());
  for (std::uint64_t index = 0; index < 50; ++index) {
    std::vector<std::int32_t> a(64), b(64);
    of_text.draw(5, index, 32, a.data(), a.data() + 32);
    of_pair.draw(5, index, 32, b.data(), b.data() + 32);
    EXPECT_EQ(a, b);
    EXPECT_NE(text.find(std::string(a.begin(), a.begin() + 32) + static_cast<char>(a[63])),
              std::string::npos);
  }
}

TEST(Corpus, RejectsInvalidFiles) {
  const Folder folder;
  IndexedTokensWriter writer(folder.path("pair"), TokenType::int32);
  writer.add_document(std::vector<std::int64_t>{1, 2, 256, 3});
  writer.add_document(std::vector<std::int64_t>{-1});
  writer.finish();
  std::array<std::int32_t, 8> buffer{};
  const auto draw = [&](int sequence, int vocabulary) {
    Corpus::from_file(folder.path("pair"), sequence, vocabulary)
        .draw(1, 0, sequence, buffer.data(), buffer.data() + 4);
  };
  expect_words(refusal([&] { draw(4, 256); }), {"pair", "token 2 is 256", "vocabulary has 256"});
  expect_words(refusal([&] { draw(4, 257); }), {"pair", "token 4 is -1"});
  expect_words(refusal([&] { draw(5, 257); }), {"has 5 tokens", "need 6"});
  expect_words(refusal([&] { Corpus::check(folder.path("pair.idx")); }),
               {"pair.idx is one file", "give the prefix " + folder.path("pair")});
  expect_words(refusal([&] { Corpus::check(folder.path("pai.idx")); }),
               {"did you mean", "pair.idx"});
  std::filesystem::remove(folder.path("pair.bin"));
  expect_words(refusal([&] { Corpus::check(folder.path("pair")); }), {"cannot read", "pair.bin"});
}

}  // namespace
}  // namespace suite
