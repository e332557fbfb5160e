// The operators as torch sees them: torch.ops.descant.*; shapes and meaning are documented in plain.py.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "attention.h"
#include "elementwise.h"
#include "linear.h"

namespace descant {
namespace {

using at::Tensor;
using OptionalTensor = const std::optional<Tensor>&;

// Up to here linear.h computes, and beyond the library's matrix product, for which bfloat16 weights are widened first.
constexpr int64_t FEW_ROWS = 256;
constexpr int64_t CHUNK = 1 << 20;  // weights widened at a time, so that they are still in cache when multiplied

template <typename K>
K* pointer(const Tensor& t) {
  return reinterpret_cast<K*>(t.data_ptr());
}

template <typename F>
void dispatch(const Tensor& t, F run) {
  if (t.scalar_type() == at::kFloat)
    run(float());
  else if (t.scalar_type() == at::kBFloat16)
    run(bf16());
  else
    TORCH_CHECK(false, "descant's CPU operators compute in float32 and bfloat16, not ", t.scalar_type(), ".");
}

// Room that is kept between calls: fresh memory costs a page fault each 4 KB.
float* room(std::vector<float>& buffer, int64_t size) {
  if (int64_t(buffer.size()) < size) buffer.resize(size);
  return buffer.data();
}

// The rows of x as they are multiplied, and their stride; x itself, where it is that already.
template <typename T>
std::pair<const Row<T>*, int64_t> rows_of(const Tensor& x) {
  if constexpr (std::is_same_v<Row<T>, T>) {
    return {pointer<T>(x), x.stride(0)};
  } else {
    static thread_local std::vector<float> buffer;
    const int64_t rows = x.size(0), in = x.size(1);
    float* wide = room(buffer, rows * in);
    for (int64_t r = 0; r < rows; r++) widen(pointer<T>(x) + r * x.stride(0), wide + r * in, in);
    return {wide, in};
  }
}

template <typename T>
void row_updates(const Tensor& a, const Tensor& b, const Tensor& slots, const Tensor& ranks, const Tensor& scalings,
                 int64_t stacks, std::vector<float>& hidden, std::vector<RowUpdate<T>>& updates) {
  const int64_t rows = slots.numel();
  const int32_t *slot = slots.data_ptr<int32_t>(), *rank = ranks.data_ptr<int32_t>();
  const float* scale = scalings.data_ptr<float>();
  const int64_t widest = stacks * b.size(2);
  updates.resize(rows);
  hidden.resize(rows * widest);
  for (int64_t r = 0; r < rows; r++)
    updates[r] = {pointer<T>(a) + slot[r] * a.stride(0), pointer<T>(b) + slot[r] * b.stride(0), rank[slot[r]],
                  scale[slot[r]], hidden.data() + r * widest};
}

// y (float32) += the adapters' updates, one matrix product for each run of rows under one adapter.
void add_updates(Tensor& y, const Tensor& x, const Tensor& a, const Tensor& b, const Tensor& slots, const Tensor& ranks,
                 const Tensor& scalings, at::IntArrayRef ends) {
  const int64_t rows = slots.numel(), stacks = ends.size();
  const int32_t* slot = slots.data_ptr<int32_t>();
  for (int64_t first = 0, last; first < rows; first = last) {
    for (last = first + 1; last < rows && slot[last] == slot[first];) last++;
    const int64_t rank = ranks.data_ptr<int32_t>()[slot[first]];
    if (rank == 0) continue;
    const double scale = scalings.data_ptr<float>()[slot[first]];
    Tensor hidden =
        at::mm(x.slice(0, first, last), a[slot[first]].slice(0, 0, stacks * rank).to(at::kFloat).t()).mul_(scale);
    for (int64_t s = 0; s < stacks; s++) {
      const int64_t from = s ? ends[s - 1] : 0;
      Tensor part = y.slice(0, first, last).slice(1, from, ends[s]);
      part.addmm_(hidden.slice(1, s * rank, (s + 1) * rank),
                  b[slot[first]].slice(0, from, ends[s]).slice(1, 0, rank).to(at::kFloat).t());
    }
  }
}

Tensor many_rows(const Tensor& x, const Tensor& w, OptionalTensor bias, OptionalTensor a, OptionalTensor b,
                 OptionalTensor slots, OptionalTensor ranks, OptionalTensor scalings, at::IntArrayRef ends) {
  const Tensor wide = x.to(at::kFloat);
  const int64_t out = w.size(0), in = w.size(1);
  Tensor y;
  if (w.scalar_type() == at::kFloat) {
    y = at::mm(wide, w.t());
  } else {
    y = at::empty({x.size(0), out}, wide.options());
    const int64_t step = std::max<int64_t>(1, CHUNK / in);
    static thread_local std::vector<float> chunk;
    float* buffer = room(chunk, step * in);
    for (int64_t first = 0; first < out; first += step) {
      const int64_t count = std::min(step, out - first);
      const bf16* from = pointer<bf16>(w) + first * in;
      at::parallel_for(0, count, 64, [&](int64_t begin, int64_t end) {
        widen(from + begin * in, buffer + begin * in, (end - begin) * in);
      });
      Tensor part = y.narrow(1, first, count);
      at::mm_out(part, wide, at::from_blob(buffer, {count, in}, wide.options()).t());
    }
  }
  if (bias) y.add_(*bias);
  if (slots) add_updates(y, wide, *a, *b, *slots, *ranks, *scalings, ends);
  return y.to(x.scalar_type());
}

Tensor torch_linear(const Tensor& x, const Tensor& w, OptionalTensor bias, OptionalTensor a, OptionalTensor b,
                    OptionalTensor slots, OptionalTensor ranks, OptionalTensor scalings, at::IntArrayRef ends) {
  TORCH_CHECK(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1) && w.is_contiguous() &&
                  x.stride(1) == 1 && x.scalar_type() == w.scalar_type(),
              "linear: rows ", x.sizes(), " ", x.scalar_type(), " do not fit weights ", w.sizes(), " ", w.scalar_type());
  const int64_t rows = x.size(0), in = x.size(1), out = w.size(0);
  Tensor y;
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    if (rows > FEW_ROWS && std::is_same_v<Row<T>, float>) {
      y = many_rows(x, w, bias, a, b, slots, ranks, scalings, ends);
      return;
    }
    y = at::empty({rows, out}, x.options());
    const auto [from, stride] = rows_of<T>(x);
    static thread_local std::vector<RowUpdate<T>> updates;
    static thread_local std::vector<float> hidden;
    Linear<T> job{};
    if (slots) {
      row_updates<T>(*a, *b, *slots, *ranks, *scalings, ends.size(), hidden, updates);
      auto* each = updates.data();
      at::parallel_for(0, rows, 4, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; r++) shrink(each[r], from + r * stride, in, int64_t(ends.size()));
      });
      job.updates = updates.data();
      job.b_stride = b->stride(1);
      job.stack_ends = ends.data();
      job.stacks = ends.size();
    }
    job.x = from;
    job.x_stride = stride;
    job.w = pointer<T>(w);
    job.bias = bias ? pointer<T>(*bias) : nullptr;
    job.y = pointer<T>(y);
    job.rows = rows;
    job.in = in;
    job.out = out;
    job.run();
  });
  return y;
}

Tensor torch_rms_norm(const Tensor& x, OptionalTensor residual, const Tensor& weight, double eps) {
  const int64_t dim = weight.numel(), rows = x.numel() / dim;
  const Tensor in = x.stride(-1) == 1 && x.dim() == 2 ? x : x.contiguous();
  Tensor y = at::empty(x.sizes(), x.options());
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    rms_norm<T>(pointer<T>(in), x.dim() == 2 ? in.stride(0) : dim, residual ? pointer<T>(*residual) : nullptr,
                pointer<T>(weight), pointer<T>(y), rows, dim, eps);
  });
  return y;
}

Tensor torch_silu_mul(const Tensor& x) {
  const int64_t dim = x.size(-1) / 2;
  auto sizes = x.sizes().vec();
  sizes.back() = dim;
  const Tensor in = x.contiguous();
  Tensor y = at::empty(sizes, x.options());
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    silu_mul<T>(pointer<T>(in), pointer<T>(y), y.numel() / dim, dim);
  });
  return y;
}

void torch_rotate_(Tensor x, const Tensor& positions, const Tensor& cos_sin, int64_t head_dim, bool neox) {
  TORCH_CHECK(x.dim() == 2 && x.stride(1) == 1 && positions.numel() == x.size(0), "rotate_: rows ", x.sizes(),
              " do not fit positions ", positions.sizes());
  const Tensor places = positions.to(at::kLong).contiguous();
  dispatch(x, [&](auto tag) {
    using T = decltype(tag);
    dispatch(cos_sin, [&](auto cache) {
      using C = decltype(cache);
      rotate<T, C>(pointer<T>(x), x.stride(0), places.data_ptr<int64_t>(), pointer<C>(cos_sin), x.size(0),
                   x.size(1) / head_dim, head_dim, cos_sin.size(-1), neox);
    });
  });
}

// Write every `copies`-th row of k and v into the pool.
void store_kv(const Tensor& k, const Tensor& v, const Tensor& keys, const Tensor& values, const Tensor& slots,
              int64_t copies) {
  TORCH_CHECK(k.dim() == 3 && k.stride(2) == 1 && k.stride(1) == k.size(2) && v.stride(2) == 1 &&
                  v.stride(1) == v.size(2) && keys.stride(1) == k.size(2) && values.stride(1) == v.size(2) &&
                  k.scalar_type() == keys.scalar_type() && slots.numel() * copies == k.size(0),
              "attention: keys ", k.sizes(), " ", k.scalar_type(), " do not fit a pool ", keys.sizes(), " ",
              keys.scalar_type());
  const Tensor places = slots.to(at::kLong).contiguous();
  const size_t size = k.element_size();
  const auto copy = [&](const Tensor& from, const Tensor& to, int64_t row) {
    std::memcpy(static_cast<char*>(to.data_ptr()) + places.data_ptr<int64_t>()[row] * to.stride(0) * size,
                static_cast<const char*>(from.data_ptr()) + row * copies * from.stride(0) * size,
                from.size(1) * from.size(2) * size);
  };
  for (int64_t row = 0; row < slots.numel(); row++) {
    copy(k, keys, row);
    copy(v, values, row);
  }
}

Tensor torch_attention(const Tensor& q, OptionalTensor k, OptionalTensor v, OptionalTensor slots, Tensor keys,
                       Tensor values, const Tensor& tables, const Tensor& requests, const Tensor& lengths,
                       const Tensor& counts, int64_t copies, double scaling) {
  TORCH_CHECK(q.dim() == 3 && keys.dim() == 3 && q.stride(2) == 1 && q.stride(1) == q.size(2) && keys.stride(2) == 1 &&
                  keys.stride(1) == keys.size(2) && keys.strides() == values.strides() &&
                  keys.scalar_type() == q.scalar_type() && q.size(2) % 2 == 0 && tables.scalar_type() == at::kInt && tables.stride(1) == 1,
              "attention: queries ", q.sizes(), " ", q.scalar_type(), " do not fit a pool ", keys.sizes(), " ",
              keys.scalar_type());
  if (k) store_kv(*k, *v, keys, values, *slots, copies);
  Tensor out = at::empty(q.sizes(), q.options());
  const Tensor index = requests.to(at::kLong), length = lengths.to(at::kLong), count = counts.to(at::kLong);
  dispatch(q, [&](auto tag) {
    using T = decltype(tag);
    Attention<T> job{};
    job.q = pointer<T>(q);
    job.q_stride = q.stride(0);
    job.keys = pointer<T>(keys);
    job.values = pointer<T>(values);
    job.pool_stride = keys.stride(0);
    job.out = pointer<T>(out);
    job.heads = q.size(1);
    job.kv_heads = keys.size(1);
    job.dim = q.size(2);
    job.copies = copies;
    job.scaling = scaling;
    int64_t row = 0;
    for (int64_t i = 0; i < index.numel(); i++) {
      const int64_t rows = count.data_ptr<int64_t>()[i] * copies;
      job.requests.push_back({tables.data_ptr<int32_t>() + index.data_ptr<int64_t>()[i] * tables.stride(0), row, rows,
                              length.data_ptr<int64_t>()[i]});
      row += rows;
    }
    TORCH_CHECK(row == q.size(0), "attention: the requests have ", row, " rows, the queries ", q.size(0), ".");
    job.run();
  });
  return out;
}

}  // namespace

TORCH_LIBRARY(descant, m) {
  m.def(
      "linear(Tensor x, Tensor w, Tensor? bias, Tensor? a, Tensor? b, Tensor? slots, Tensor? ranks, Tensor? scalings, "
      "int[] ends) -> Tensor");
  m.def("rms_norm(Tensor x, Tensor(a!)? residual, Tensor weight, float eps) -> Tensor");
  m.def("silu_mul(Tensor x) -> Tensor");
  m.def("rotate_(Tensor(a!) x, Tensor positions, Tensor cos_sin, int head_dim, bool neox) -> ()");
  m.def(
      "attention(Tensor q, Tensor? k, Tensor? v, Tensor? slots, Tensor(a!) keys, Tensor(b!) values, Tensor tables, "
      "Tensor requests, Tensor lengths, Tensor counts, int copies, float scaling) -> Tensor");
}

TORCH_LIBRARY_IMPL(descant, CPU, m) {
  m.impl("linear", torch_linear);
  m.impl("rms_norm", torch_rms_norm);
  m.impl("silu_mul", torch_silu_mul);
  m.impl("rotate_", torch_rotate_);
  m.impl("attention", torch_attention);
}

}  // namespace descant
