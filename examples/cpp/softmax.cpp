// Softmax of a small matrix on an AMD GPU, with no Python: softmax dist/rows-gfx942
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <hip/hip_runtime_api.h>
#include <rows.h>

namespace {

void check(hipError_t status)
{
    if (status != hipSuccess) throw std::runtime_error(hipGetErrorString(status));
}

void check(const aot_status &status)
{
    if (status.code != AOT_OK) throw std::runtime_error(status.message);
}

// A matrix of float32 in device memory.
class Matrix {
public:
    Matrix(int64_t rows, int64_t cols)
    {
        const int64_t shape[] = {rows, cols};
        check(hipMalloc(&memory_, static_cast<size_t>(rows * cols) * sizeof(float)));
        tensor = aot_packed(reinterpret_cast<uintptr_t>(memory_), AOT_FLOAT32, 2, shape);
    }
    Matrix(const Matrix &) = delete;
    Matrix &operator=(const Matrix &) = delete;
    ~Matrix() { static_cast<void>(hipFree(memory_)); }

    void write(std::vector<float> values, hipStream_t stream)
    {
        check(hipMemcpyHtoDAsync(memory_, values.data(), bytes(), stream));
        check(hipStreamSynchronize(stream));
    }
    std::vector<float> read(hipStream_t stream) const
    {
        std::vector<float> values(bytes() / sizeof(float));
        check(hipMemcpyDtoHAsync(values.data(), memory_, bytes(), stream));
        check(hipStreamSynchronize(stream));
        return values;
    }

    aot_tensor tensor;

private:
    size_t bytes() const { return static_cast<size_t>(aot_bytes(&tensor)); }
    void *memory_ = nullptr;
};

void run(const char *folder)
{
    constexpr int64_t rows = 2, cols = 8;
    aot_bundle *rows_bundle = nullptr;
    check(rows_open(folder, 0, &rows_bundle));
    hipStream_t stream = nullptr;
    check(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));

    std::vector<float> numbers;
    for (int i = 0; i < rows * cols; i++) numbers.push_back(static_cast<float>(i % 5));
    Matrix x(rows, cols), out(rows, cols);
    x.write(numbers, stream);

    rows_softmax_args args{}; // what is not set is not passed: there is no mask
    args.x = x.tensor;
    args.out = out.tensor;
    args.scale = aot_set_float(0.5);
    std::printf("%s\n", rows_softmax_explain(rows_bundle, &args).message);
    check(rows_softmax(rows_bundle, &args, stream));
    for (float value : out.read(stream)) std::printf("%.9g\n", static_cast<double>(value));

    args.x.shape[1] = cols + 1;
    std::printf("%s\n", rows_softmax(rows_bundle, &args, stream).message);
    check(hipStreamDestroy(stream));
    aot_close(rows_bundle);
}

} // namespace

int main(int count, char **arguments)
{
    try {
        if (count != 2) throw std::runtime_error("usage: softmax FOLDER, that of a bundle of manifests/rows.yaml");
        run(arguments[1]);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "softmax: %s\n", error.what());
        return 1;
    }
    return 0;
}
