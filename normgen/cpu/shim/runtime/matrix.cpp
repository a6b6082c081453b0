// Matrix instructions of a warp. Tensor cores cut off: they align the products of a step and the sum so far to the largest
// of them, drop what lies behind one bit more than a float has, and cut the result, too. Here they take 8 products of
// 16 bits a step, or 4 of TF32, as sm_80 does; later ones take more at a time, and cut off less often.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime.h"

namespace normgen_cpu {

namespace {

constexpr int kMost = 16, kLines = 16, kColumns = 8;  // of one mma: most along k
constexpr int kBits = 24;                             // behind the leading one of the largest addend

// Of normal numbers, which all of these are: the library's ldexp and ilogb took most of the time of a product.
double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof power);
  return power;
}

int exponent_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<int>(bits >> 52 & 2047u) - 1023;
}

int deep_of(Factors kind) { return kind == Factors::kTf32 ? 8 : 16; }
int at_once_of(Factors kind) { return deep_of(kind) / 2; }  // products that are cut off together

// Of a TF32 nobody reads the last 13 bits.
double number_of(unsigned bits, Factors kind) {
  if (kind != Factors::kF16) {
    const unsigned word = kind == Factors::kBf16 ? bits << 16 : bits & ~0x1fffu;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
  const int exponent = static_cast<int>(bits >> 10 & 31u);
  const double part = bits & 1023u;
  const double size = exponent == 31 ? (part != 0 ? std::numeric_limits<double>::quiet_NaN() : HUGE_VAL)
      : exponent == 0 ? part * power_of_two(-24) : (1024 + part) * power_of_two(exponent - 25);
  return (bits & 0x8000u) != 0 ? -size : size;
}

// Towards 0.
float cut(double value) {
  float near = static_cast<float>(value);
  if (!std::isfinite(near) || std::fabs(static_cast<double>(near)) <= std::fabs(value)) return near;
  unsigned bits;
  std::memcpy(&bits, &near, sizeof bits);
  --bits;  // the next one below, of either sign
  std::memcpy(&near, &bits, sizeof near);
  return near;
}

template <int kCount>
float step_of(const double* products, float sum) {
  double largest = std::fabs(sum), plain = sum;
  for (int i = 0; i < kCount; ++i) {
    largest = std::max(largest, std::fabs(products[i]));
    plain += products[i];
  }
  if (!std::isfinite(plain)) return static_cast<float>(plain);
  if (largest == 0.0) return static_cast<float>(plain);
  const int scale = kBits - exponent_of(largest);
  const double up = power_of_two(scale);
  int64_t total = static_cast<int64_t>(sum * up);
  for (int i = 0; i < kCount; ++i) total += static_cast<int64_t>(products[i] * up);
  return cut(static_cast<double>(total) * power_of_two(-scale));
}

float step(const double* products, Factors kind, float sum) {
  return kind == Factors::kTf32 ? step_of<4>(products, sum) : step_of<8>(products, sum);
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

// A word of a matrix has two factors side by side along k, or one.
void multiply_matrices(const Request* const* lanes) {
  const auto kind = static_cast<Factors>(lanes[0]->predicate);
  const int deep = deep_of(kind), at_once = at_once_of(kind), each = deep / 8;
  double left[kLines][kMost], right[kColumns][kMost];
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& given = *static_cast<const MatrixParts*>(lanes[lane]->in);
    for (int i = 0; i < each; ++i) {
      const unsigned kept = each == 1 ? ~0u : 0xffffu;
      const int k = each * (lane % 4) + i;
      for (int word = 0; word < 4; ++word) {  // of lines lane / 4 and 8 on, then the same of the other half of k
        left[lane / 4 + word % 2 * 8][k + word / 2 * deep / 2] = number_of(given.left[word] >> 16 * i & kept, kind);
      }
      for (int word = 0; word < 2; ++word) {
        right[lane / 4][k + word * deep / 2] = number_of(given.right[word] >> 16 * i & kept, kind);
      }
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& given = *static_cast<const MatrixParts*>(lanes[lane]->in);
    for (int i = 0; i < 4; ++i) {
      float* sum = (i < 2 ? given.upper : given.lower) + i % 2;
      const int line = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
      for (int first = 0; first < deep; first += at_once) {
        double products[kMost];
        for (int k = 0; k < at_once; ++k) products[k] = left[line][first + k] * right[column][first + k];
        *sum = step(products, kind, *sum);
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

// The factors of 32 of a line's 128 bytes, within which pieces of 16 bytes change places.
void read_factors(uintptr_t start, int line, const Product& product, double* factors) {
  for (int piece = 0; piece < 2; ++piece) {
    const uintptr_t plain = start + static_cast<uintptr_t>(line) * 128 + piece * 16, from = plain ^ (plain >> 7 & 7) << 4;
    check_read_for("tensor cores read factors", from, 16, product.pc);
    const auto* halves = reinterpret_cast<const unsigned short*>(from);
    const auto* words = reinterpret_cast<const unsigned*>(from);
    const int count = deep_of(product.kind) / 2;
    for (int i = 0; i < count; ++i) {
      factors[count * piece + i] = number_of(product.kind == Factors::kTf32 ? words[i] : halves[i], product.kind);
    }
  }
}

void multiply(int warp, const Product& product, Products& products) {
  const int deep = deep_of(product.kind), at_once = at_once_of(product.kind);
  double left[kLines][kMost], right[kMost];
  float* sums[kWarp];
  for (int lane = 0; lane < kWarp; ++lane) sums[lane] = products.sums.at(product.sums[lane]).data();
  for (int line = 0; line < kLines; ++line) read_factors(product.left, warp % 4 * kLines + line, product, left[line]);
  for (int column = 0; column < product.columns; ++column) {
    read_factors(product.right, column, product, right);
    for (int line = 0; line < kLines; ++line) {
      float& sum = sums[line % 8 * 4 + column % 8 / 2][column / 8 * 4 + line / 8 * 2 + column % 2];
      if (!product.adds) sum = 0.0f;
      for (int first = 0; first < deep; first += at_once) {
        double terms[kMost];
        for (int k = 0; k < at_once; ++k) terms[k] = left[line][first + k] * right[first + k];
        sum = step(terms, product.kind, sum);
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
