#include "layers/dropout.h"

#include <utility>

#include "layers/parameter.h"

namespace layers {

Dropout::Dropout(const Context& context, std::string name, double probability)
    : context_(context), name_(std::move(name)), probability_(probability) {}

void Dropout::apply(const Draw& draw, const machine::Tensor& x, const machine::Tensor& out) const {
  context_.kernels().dropout(x, probability_, random_key(draw.seed, name_),
                             {draw.first_token + context_.first_row(x.rows()), 0, x.cols()}, out);
}

}  // namespace layers
