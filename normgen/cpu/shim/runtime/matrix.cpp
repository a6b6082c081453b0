// Matrix instructions of a warp. Tensor cores cut off: they align the products of a step and the sum so far to the largest
// of them, drop what lies behind one bit more than a float has, and cut the result, too. Here they take 8 products a
// step, as sm_80 does; later ones take more at a time, and cut off less often.
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime.h"

namespace normgen_cpu {

namespace {

constexpr int kDeep = 16, kLines = 16, kColumns = 8;  // of one mma
constexpr int kAtOnce = 8;                            // products that are cut off together
constexpr int kBits = 24;                             // behind the leading one of the largest addend

double number_of(unsigned bits, bool is_bf16) {
  if (is_bf16) {
    const unsigned word = bits << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  const int exponent = static_cast<int>(bits >> 10 & 31u);
  const double part = bits & 1023u;
  const double size = exponent == 31 ? (part != 0 ? std::numeric_limits<double>::quiet_NaN() : HUGE_VAL)
      : exponent == 0 ? std::ldexp(part, -24) : std::ldexp(1024 + part, exponent - 25);
  return (bits & 0x8000u) != 0 ? -size : size;
}

float cut(double value) {
  const float near = static_cast<float>(value);
  if (std::isinf(near) || std::isnan(near)) return near;
  return std::fabs(static_cast<double>(near)) > std::fabs(value) ? std::nextafterf(near, 0.0f) : near;
}

float step(const double* products, float sum) {
  double largest = std::fabs(sum), plain = sum;
  for (int i = 0; i < kAtOnce; ++i) {
    largest = std::fmax(largest, std::fabs(products[i]));
    plain += products[i];
  }
  if (!std::isfinite(plain)) return static_cast<float>(plain);
  if (largest == 0.0) return static_cast<float>(plain);
  const int scale = kBits - std::ilogb(largest);
  const double up = std::ldexp(1.0, scale);
  int64_t total = static_cast<int64_t>(sum * up);
  for (int i = 0; i < kAtOnce; ++i) total += static_cast<int64_t>(products[i] * up);
  return cut(std::ldexp(static_cast<double>(total), -scale));
}

}  // namespace

void read_matrices(const Request* const* lanes) {
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      unsigned short pair[2];
      for (int i = 0; i < 2; ++i) {
        const int line = lane / 4, column = 2 * (lane % 4) + i;
        const bool by_column = lanes[lane]->predicate != 0;
        const auto* from = static_cast<const unsigned short*>(lanes[8 * matrix + (by_column ? column : line)]->in);
        pair[i] = from[by_column ? line : column];
      }
      std::memcpy(static_cast<unsigned*>(lanes[lane]->out) + matrix, pair, sizeof pair);
    }
  }
}

void multiply_matrices(const Request* const* lanes) {
  const bool is_bf16 = lanes[0]->predicate != 0;
  double left[kLines][kDeep], right[kDeep][kColumns];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& given = *static_cast<const MatrixParts*>(lanes[lane]->in);
    for (int i = 0; i < 8; ++i) {  // halves of words: of lines lane / 4 and 8 on, then the same of k 8 on
      const double value = number_of(given.left[i / 2] >> 16 * (i % 2) & 0xffffu, is_bf16);
      left[lane / 4 + i / 2 % 2 * 8][2 * (lane % 4) + i % 2 + i / 4 * 8] = value;
    }
    for (int i = 0; i < 4; ++i) {
      const double value = number_of(given.right[i / 2] >> 16 * (i % 2) & 0xffffu, is_bf16);
      right[2 * (lane % 4) + i % 2 + i / 2 * 8][lane / 4] = value;
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& given = *static_cast<const MatrixParts*>(lanes[lane]->in);
    for (int i = 0; i < 4; ++i) {
      float* sum = (i < 2 ? given.upper : given.lower) + i % 2;
      const int line = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
      for (int first = 0; first < kDeep; first += kAtOnce) {
        double products[kAtOnce];
        for (int k = 0; k < kAtOnce; ++k) products[k] = left[line][first + k] * right[first + k][column];
        *sum = step(products, *sum);
      }
    }
  }
}

// A lane's sums are nobody's until they are waited for: NaN.
void start_products(Block& block, int warp, const Request* const* lanes) {
  Product product = *static_cast<const Product*>(lanes[0]->in);
  Products& products = block.products[warp];
  for (int lane = 0; lane < kWarp; ++lane) {
    const Product& own = *static_cast<const Product*>(lanes[lane]->in);
    if (own.left != product.left || own.right != product.right || own.adds != product.adds) {
      record_fault(kDivergentBarrier, product.pc, "lanes 0 and %d of a warp give tensor cores different factors", lane);
      return;
    }
    float* const sums = product.sums[lane] = static_cast<float*>(lanes[lane]->out);
    const int count = product.columns / 2;
    if (products.sums.try_emplace(sums, sums, sums + count).second) std::memset(sums, kPoison, count * sizeof *sums);
  }
  products.open.push_back(product);
}

namespace {

// Sixteen factors of a line of 128 bytes, within which pieces of 16 bytes change places.
void read_factors(uintptr_t start, int line, const Product& product, double* factors) {
  for (int piece = 0; piece < 2; ++piece) {
    const uintptr_t plain = start + static_cast<uintptr_t>(line) * 128 + piece * 16, from = plain ^ (plain >> 7 & 7) << 4;
    check_read_for("tensor cores read factors", from, 16, product.pc);
    const auto* bits = reinterpret_cast<const unsigned short*>(from);
    for (int i = 0; i < 8; ++i) factors[8 * piece + i] = number_of(bits[i], product.is_bf16);
  }
}

void multiply(int warp, const Product& product, Products& products) {
  double left[kLines][kDeep], right[kDeep];
  float* sums[kWarp];
  for (int lane = 0; lane < kWarp; ++lane) sums[lane] = products.sums.at(product.sums[lane]).data();
  for (int line = 0; line < kLines; ++line) read_factors(product.left, warp % 4 * kLines + line, product, left[line]);
  for (int column = 0; column < product.columns; ++column) {
    read_factors(product.right, column, product, right);
    for (int line = 0; line < kLines; ++line) {
      float& sum = sums[line % 8 * 4 + column % 8 / 2][column / 8 * 4 + line / 8 * 2 + column % 2];
      if (!product.adds) sum = 0.0f;
      for (int first = 0; first < kDeep; first += kAtOnce) {
        double terms[kAtOnce];
        for (int k = 0; k < kAtOnce; ++k) terms[k] = left[line][first + k] * right[first + k];
        sum = step(terms, sum);
      }
    }
  }
}

}  // namespace

// Of the oldest groups, up to those that are left; sums that nothing is on its way to are their lane's again.
void finish_products(Block& block, int warp, size_t groups_left) {
  Products& products = block.products[warp];
  while (products.groups.size() > groups_left) {
    for (const Product& product : products.groups.front()) multiply(warp, product, products);
    products.groups.erase(products.groups.begin());
  }
  if (!products.groups.empty() || !products.open.empty()) return;
  for (const auto& [place, sums] : products.sums) std::memcpy(place, sums.data(), sums.size() * sizeof(float));
  products.sums.clear();
}

}  // namespace normgen_cpu
